"""`scripts/train_alternating.sh --tiny`, two rounds of a tiny random model: each stage starts from what came before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny_models

pytest.importorskip("trl")
ROOT = Path(__file__).resolve().parents[2]
STAGES = ("1-executor", "1-planner", "2-executor", "2-planner")


def run(out: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / "scripts" / "train_alternating.sh"), *words, "--out", str(out)]
    environment = {**os.environ, "MIA_VENV": str(Path(sys.prefix)), **more}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_without_a_server_it_says_what_is_missing(tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert ended.returncode == 1
    assert "set SERVE" in ended.stderr
    assert "whole number" in run(tmp_path, "--rounds", "two").stderr


@pytest.mark.long
def test_two_rounds_and_a_stage_that_was_lost(tmp_path: Path) -> None:
    place = tiny_models.chat_llama(tmp_path / "model")
    words = ["--tiny", "--rounds", "2", "--policy.path", str(place), "--policy.lora_rank", "2", "--rollout.rows", "2"]
    words += ["--grpo.max_steps", "1", "--grpo.num_generations", "2", "--grpo.gradient_accumulation_steps", "1"]
    words += ["--grpo.save_steps", "1", "--agent.executor.max_tokens", "8", "--agent.answer.max_tokens", "6"]
    words += ["--agent.planner.max_tokens", "8", "--agent.reflector.max_tokens", "8"]
    words += ["--models.planner.url", f"local:{place}", "--models.executor.url", f"local:{place}"]
    out = tmp_path / "out"
    ended = run(out, *words)
    assert ended.returncode == 0, ended.stderr[-3000:]
    for stage in STAGES:
        assert (out / stage / "final" / "adapter_model.safetensors").is_file()
    assert ended.stdout.splitlines()[-2:] == [
        f"executor  {out}/2-executor/final",
        f"planner   {out}/2-planner/final",
    ]
    kept = (out / "1-planner" / "final" / "adapter_model.safetensors").stat().st_mtime_ns
    shutil.rmtree(out / "2-planner" / "final")
    again = run(out, *words)
    assert again.returncode == 0, again.stderr[-3000:]
    assert "round 2, executor: done" in again.stderr
    assert (out / "2-planner" / "final").is_dir()
    assert (out / "1-planner" / "final" / "adapter_model.safetensors").stat().st_mtime_ns == kept
