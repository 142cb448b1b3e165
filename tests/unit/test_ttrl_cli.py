"""`mia ttrl` from the command line: a whole run, its summary, resuming it, what is refused; both profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.cli import read_profile
from mia.errors import ConfigError
from tests import tiny_models
from tests.evaluating import write_questions
from ttrl.cli import main
from ttrl.config import TtrlConfig, settled

pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize(("name", "size", "rate"), [("ttrl/tiny", 8, 1e-4), ("ttrl/paper", 32, 1e-6)])
def test_profiles(name: str, size: int, rate: float) -> None:
    config = settled(read_profile(TtrlConfig, name, {}))
    assert (config.eval.together, config.learn.n, config.grpo["learning_rate"]) == (size, 4, rate)
    assert config.learn.arm.startswith("full")
    assert config.policy.lora_rank > 0


def words(place: Path, asked: Path, out: Path) -> list[str]:
    flags: dict[str, Any] = {
        "policy.path": place, "policy.lora_rank": 2, "rollout.context": 4096, "rollout.limit": 4096,
        "dataset.name": "jsonl", "dataset.split": "",
        "dataset.path": asked, "eval.batch": 2, "learn.n": 2, "agent.planner.max_tokens": 8,
        "agent.reflector.max_tokens": 4, "agent.executor.max_tokens": 12, "agent.answer.max_tokens": 8,
        "models.executor.url": f"local:{place}", "models.executor.context": 4096,
    }  # fmt: skip
    return ["ttrl/tiny", "--out", str(out), *(w for name, value in flags.items() for w in (f"--{name}", str(value)))]


@pytest.mark.long
def test_a_run_and_its_resumption(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("trl")
    place = tiny_models.chat_llama(tmp_path / "model", positions=4096)
    given = words(place, write_questions(tmp_path / "q.jsonl", 5), tmp_path / "out")
    assert main([*given, "--limit", "3", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)["epoch-1"]
    assert (summary["complete"], summary["done"]) == (True, 3)
    out = tmp_path / "out"
    assert (out / "final" / "adapter_model.safetensors").is_file()
    assert "mia ttrl ttrl/tiny" in json.loads((out / "final" / "training.json").read_text())["command"]
    assert (out / "epoch-1" / "report.md").is_file()
    before = {path: path.read_bytes() for path in out.rglob("*.jsonl")}
    assert main([*given, "--limit", "3", "--resume"]) == 0
    assert {path: path.read_bytes() for path in out.rglob("*.jsonl")} == before
    with pytest.raises(ConfigError, match="holds a run already"):
        main([*given, "--limit", "3"])
    with pytest.raises(ConfigError, match=r"eval\.limit was 3 and is 4"):
        main([*given, "--limit", "4", "--resume"])


def test_no_folder_is_bad_usage() -> None:
    with pytest.raises(SystemExit) as stop:
        main(["ttrl/tiny"])
    assert stop.value.code == 2
