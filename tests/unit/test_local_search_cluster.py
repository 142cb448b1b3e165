"""Shards of a build on Ray, on a cluster of two nodes on this machine, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from local_search.cluster import Ray
from mia.errors import ConfigError

NO_RAY = importlib.util.find_spec("ray") is None
needs_ray = pytest.mark.skipif(NO_RAY, reason="needs the extra cluster: pip install -e '.[cluster]' -c constraints.txt")

WORK = """
import os, time
from pathlib import Path
from mia.errors import DataError

def where(task):
    import ray
    time.sleep(0.3)
    return task * task, ray.get_runtime_context().get_node_id()

def broken(task):
    if task == 2:
        raise DataError("row 2 is broken", remedy="mend it", code="broken_row")
    return task

def dies_once(marker):
    if not Path(marker).exists():
        Path(marker).touch()
        os._exit(1)
    return "done"
"""
SCRIPT = """
import json, sys
from pathlib import Path
from ray.cluster_utils import Cluster
from local_search.cluster import Ray
from mia.errors import MiaError
import cluster_work as work

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
mapper = Ray(cluster.address)
found = {"where": list(mapper(range(8), work.where)), "none": list(mapper([], work.where))}
got = []
try:
    got.extend(mapper([1, 2, 3], work.broken))
except MiaError as error:
    found["error"] = [type(error).__name__, error.code, error.remedy]
found["lost"] = list(mapper([str(Path(sys.argv[1]) / "marker")], work.dies_once))
print(json.dumps(found))
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script saw on the two nodes."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "cluster_work.py").write_text(WORK)
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        capture_output=True,
        text=True,
        timeout=180,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


@needs_ray
def test_results_come_in_the_order_of_the_tasks_from_both_nodes(found: dict[str, Any]) -> None:
    assert [value for value, _ in found["where"]] == [0, 1, 4, 9, 16, 25, 36, 49]
    assert len({node for _, node in found["where"]}) == 2
    assert found["none"] == []


@needs_ray
def test_errors_keep_class_code_and_remedy(found: dict[str, Any]) -> None:
    assert found["error"] == ["DataError", "broken_row", "mend it"]


@needs_ray
def test_a_task_whose_process_died_is_done_again(found: dict[str, Any]) -> None:
    assert found["lost"] == ["done"]


@needs_ray
def test_no_cluster_there_is_told(tmp_path: Path) -> None:
    code = "from local_search.cluster import Ray; list(Ray('127.0.0.1:9')([1], abs))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert "ConfigError: no Ray cluster at 127.0.0.1:9" in ended.stderr


@pytest.mark.skipif(not NO_RAY, reason="Ray is installed")
def test_without_ray_the_remedy_is_the_extra() -> None:
    with pytest.raises(ConfigError) as caught:
        list(Ray()([1], abs))
    assert caught.value.code == "missing_extra"
    assert "[cluster]" in caught.value.remedy
