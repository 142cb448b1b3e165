"""`mia train planner` against a frozen Executor behind HTTP: its rewards, and what becomes of calls that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference.datasets import load_dataset
from inference.datasets.config import DatasetConfig
from tests import tiny_models
from tests.endpoints import VLLM, strict, text
from web_tools.stub import Answer, Seen, Server, serving

pytest.importorskip("trl")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

RIGHT, WRONG, BROKEN = load_dataset(DatasetConfig(name="miniwiki", split="train")).examples[:3]


def executor(body: dict[str, Any]) -> str:
    """Knows the answer to one question, and another one wrong."""
    asked = text(body["messages"][0])
    return f"<answer>{RIGHT.reference.answers[0] if RIGHT.question.text in asked else 'nowhere'}</answer>"


@pytest.fixture
def endpoint() -> Iterator[Server]:
    well = strict(VLLM, executor)

    def answer(request: Seen) -> Answer:
        if request.method == "POST" and BROKEN.question.text in text(request.json["messages"][0]):
            return Answer({"error": {"message": "out of memory", "type": "x"}}, status=400)
        return well(request)

    with serving(answer) as server:
        yield server


def test_two_steps_against_an_endpoint(tmp_path: Path, endpoint: Server) -> None:
    from planner_train.cli import main

    place, out = tiny_models.chat_llama(tmp_path / "model"), tmp_path / "out"
    words = ["train/planner_tiny", "--policy.path", str(place), "--policy.lora_rank", "2", "--out", str(out)]
    words += ["--models.executor.url", f"{endpoint.url}/v1", "--models.executor.model", "frozen"]
    words += ["--rollout.rows", "3", "--grpo.num_generations", "2", "--grpo.per_device_train_batch_size", "6"]
    words += ["--grpo.gradient_accumulation_steps", "1", "--grpo.max_steps", "2", "--grpo.save_steps", "2"]
    words += ["--agent.planner.max_tokens", "8", "--agent.reflector.max_tokens", "8"]
    assert main(words) == 0
    for step in range(2):
        file = out / "rollouts" / f"train-{step:06d}-0.jsonl"
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        assert len(lines) == 6
        for line in lines:
            if line["prompt"] == BROKEN.question.text:
                assert line["failure"]["boundary"] == "model"
                assert "out of memory" in line["failure"]["message"]
                continue
            # A random model's verdict cannot be read: no decision, no format.
            right = float(line["prompt"] == RIGHT.question.text)
            assert line["scores"] == {"final": right, "first": right, "decision": 0.0, "format": 0.0}
            assert line["run"]["judgement"]["correct"] is bool(right)
            assert [each["purpose"] for each in line["run"]["steps"]] == ["plan", "act", "reflect"]
            assert sum(line["tokens"]["sampled"]) <= 2 * 8
    state = json.loads((out / "checkpoint-2" / "trainer_state.json").read_text(encoding="utf-8"))
    for logged in (line for line in state["log_history"] if "reward" in line):
        assert logged["health/dropped"] == pytest.approx(1 / 3)
        assert logged["reward"] == pytest.approx(0.9 / 2)  # of the four rollouts that count
    assert all(request.json["model"] == "frozen" for request in endpoint.seen)
