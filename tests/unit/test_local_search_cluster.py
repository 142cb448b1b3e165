"""Shards of a build on Ray, on a cluster of two nodes on this machine, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from local_search.build_vectors import write_vectors
from local_search.build_workers import Here
from local_search.cluster import Ray
from local_search.corpus import Row
from local_search.encoder import MiniLM
from local_search.passages import writing
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
from local_search.build import build_index
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
folder = Path(sys.argv[1])
found["seen"] = []
build = lambda name, mapper: build_index(
    folder / "corpus.jsonl", folder / name, memory=2 * 10**9, mapper=mapper, format="jsonl",
    step=lambda stage, done, total: found["seen"].append(stage),
)[0]
one, two = build("here", None), build("there", mapper)
found["same"] = one.files == two.files
found["files"] = sorted(two.files)
print(json.dumps(found))
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script saw on the two nodes."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "cluster_work.py").write_text(WORK)
    rows = (json.dumps({"id": str(n), "contents": f'"T{n}"\n{n % 7} rivers. ' * 40}) for n in range(60))
    (folder / "corpus.jsonl").write_text("\n".join(rows))
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
def test_an_index_built_on_the_cluster_has_the_same_bytes(found: dict[str, Any]) -> None:
    assert found["same"]
    assert {"passages.jsonl", "bm25/data.csc.index.npy", "dense/vectors.faiss"} <= set(found["files"])


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


@pytest.mark.parametrize("kept", [0, 256, 300])
def test_vectors_are_the_same_however_they_are_shared_out(kept: int, tmp_path: Path) -> None:
    """`kept`: vectors that an earlier build, which was killed, has written; of the last chunk not all."""
    total = 600
    deque(writing((Row(str(n), f"{n} and {n * n}") for n in range(total)), tmp_path), maxlen=0)
    encoder = MiniLM()
    done: list[int] = []
    here = write_vectors(tmp_path, tmp_path / "here.f32", total, encoder, None, lambda n: None)
    (tmp_path / "shared.f32").write_bytes(here[:kept].tobytes())
    shared = write_vectors(tmp_path, tmp_path / "shared.f32", total, encoder, Here(), done.append, part=256)
    assert shared.shape == (600, 384)
    assert shared.tobytes() == here.tobytes()
    assert done == {0: [256, 512, 600], 256: [512, 600], 300: [512, 600]}[kept]
    assert sorted(path.name for path in tmp_path.glob("*.f32*")) == ["here.f32", "shared.f32"]
