"""`mia eval --engine ray` on a cluster of two nodes on this machine: the same predictions as one process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inference.evaluation.config import EvalConfig
from mia.cli import main
from mia.config import load
from mia.errors import ConfigError
from tests.doubles import chat_endpoint
from tests.evaluating import lines_of, oracle, wire, write_questions

ROOT = Path(__file__).resolve().parents[2]
NO_RAY = importlib.util.find_spec("ray") is None
needs_ray = pytest.mark.skipif(NO_RAY, reason="needs the extra cluster: pip install -e '.[cluster]' -c constraints.txt")
SCRIPT = """
import os, sys
from ray.cluster_utils import Cluster
from mia.cli import main

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
os.environ["RAY_ADDRESS"] = cluster.address
code = main(sys.argv[1:])
cluster.shutdown()
sys.exit(code)
"""


def on_cluster(folder: Path, argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *argv, "--engine", "ray"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "MIA_HOME": str(folder / "home"),
            "RAY_USAGE_STATS_ENABLED": "0",
        },
    )


@needs_ray
@pytest.mark.long
def test_two_nodes_give_the_predictions_of_one_process(tmp_path: Path) -> None:
    questions = write_questions(tmp_path / "questions.jsonl", 30)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "contents": "\\"Vienna\\"\\nVienna lies on the Danube."}\n', encoding="utf-8")
    assert main(["index", "build", str(corpus), "--out", str(tmp_path / "index"), "--engines", "bm25"]) == 0
    config = tmp_path / "mine.toml"
    with chat_endpoint(wire(oracle)) as url:
        config.write_text(
            f'[dataset]\nname = "jsonl"\npath = "{questions}"\n[models.default]\nurl = "{url}"\nmodel = "stub"\n'
            f'[search]\nindex = "{tmp_path / "index"}"\nmode = "bm25"\n[method]\nname = "plan_only"\n'
            '[eval]\nmemory = "read-only"\n',
            encoding="utf-8",
        )
        assert main(["eval", str(config), "--out", str(tmp_path / "one")]) == 0
        done = on_cluster(tmp_path, ["eval", str(config), "--out", str(tmp_path / "many")])
    assert done.returncode == 0, done.stderr
    one, many = ((tmp_path / name / "predictions.jsonl").read_bytes() for name in ("one", "many"))
    assert one == many
    assert len(lines_of(tmp_path / "many" / "predictions.jsonl")) == 30
    assert json.loads((tmp_path / "many" / "summary.json").read_bytes())["complete"]
    # What an agent there cannot open is told here, with its remedy.
    broken = on_cluster(tmp_path, ["eval", str(config), "--out", str(tmp_path / "x"), "--search.index", "/nowhere"])
    assert broken.returncode in (1, 2)
    assert "/nowhere" in broken.stderr
    assert "remedy" in broken.stderr


@pytest.mark.skipif(not NO_RAY, reason="Ray is installed")
def test_without_ray_the_remedy_is_the_extra(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["eval", "eval/miniwiki", "--engine", "ray", "--eval.memory", "read-only", "--out", str(tmp_path / "run")]
    assert main(argv) == 2
    assert "[cluster]" in capsys.readouterr().err


def test_online_memory_does_not_go_to_a_cluster() -> None:
    with pytest.raises(ConfigError, match="online memory learns in one place"):
        load(EvalConfig, None, {"eval.engine": "ray"})
