"""`mia train executor`: what is refused, the estimate, both recipes, two steps of a tiny model by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from executor_train.cli import main, plans_of
from executor_train.config import RolloutConfig
from executor_train.estimate import Shape, estimate
from mia.errors import ConfigError, DataError
from planner_train import cli as planner_cli
from tests import tiny_models

pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")

TINY = "train/executor_tiny"
SHORT = ["--agent.executor.max_tokens", "12", "--agent.answer.max_tokens", "8", "--rollout.rows", "4"]


@pytest.mark.long
def test_two_steps_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tiny_models.chat_llama(tmp_path / "model")
    out = tmp_path / "out"
    words = ["--policy.path", str(place), "--policy.lora_rank", "2", "--grpo.num_generations", "2", "--out", str(out)]
    words += ["--grpo.max_steps", "2", "--grpo.gradient_accumulation_steps", "1", "--grpo.save_steps", "1"]
    assert main([TINY, *words, *SHORT]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out / "final")
    assert (out / "final" / "adapter_model.safetensors").is_file()
    assert (out / "final" / "chat_template.jinja").read_text() == (place / "chat_template.jinja").read_text()
    lines = [json.loads(line) for file in (out / "rollouts").iterdir() for line in file.read_text().splitlines()]
    assert len(lines) == 8
    assert main([TINY, *words, *SHORT, "--resume", "--grpo.max_steps", "3"]) == 0
    assert (out / "checkpoint-3").is_dir()
    assert json.loads((out / "final" / "trainer_state.json").read_text())["global_step"] == 3
    record = json.loads((out / "final" / "training.json").read_text())
    assert record["command"].startswith(f"mia train executor {TINY} --policy.path {place} ")
    told = {"role": "executor", "method": "GRPO", "base": str(place), "dataset": "miniwiki, train", "seed": 42}
    assert told.items() <= record.items()


def test_a_dry_run_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tiny_models.chat_llama(tmp_path / "model")
    assert main([TINY, "--policy.path", str(place), "--dry-run", "--gpus", "2"]) == 0
    assert "32 rollouts, at most 65536 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("role", "gpus"), [("executor", 8), ("planner", 4)]
)  # the paper: 128 questions x 8 rollouts, of at most 32768 tokens
def test_the_recipes_take_steps_of_the_papers_size(
    role: str, gpus: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mains = {"executor": main, "planner": planner_cli.main}
    place = tiny_models.chat_llama(tmp_path / "model")
    words = ["--policy.path", str(place), "--dry-run", "--gpus", str(gpus), "--sharded"]
    assert mains[role]([f"train/{role}", *words]) == 0
    assert f"1024 rollouts, at most {1024 * 32768} tokens" in capsys.readouterr().out


def test_a_setting_that_trl_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_generation"):
        main([TINY, "--grpo.num_generation", "4", "--out", str(tmp_path)])


def test_a_template_that_drops_thinking_is_refused(tmp_path: Path) -> None:
    import trl

    template = Path(str(trl.__file__)).parent / "chat_templates" / "qwen3.jinja"
    place = tiny_models.chat_llama(tmp_path / "model", template=template.read_text(encoding="utf-8"))
    words = [TINY, "--policy.path", str(place), "--out", str(tmp_path / "out"), *SHORT]
    with pytest.raises(ConfigError, match="rewrites earlier turns"):
        main(words)


def test_the_estimate_of_a_seven_billion_model() -> None:
    class Args:
        per_device_train_batch_size = 1
        generation_batch_size = 128
        gradient_checkpointing = True
        use_vllm = True

    shape = Shape(7_000_000_000, 7_000_000_000, 28, 3584, 18944, 512, 152064)
    made = estimate(shape, Args(), 2, RolloutConfig(limit=32768), gpus=8, sharded=True)
    assert made.weights == made.gradients == 7e9 * 2 / 8  # two bytes each, spread over eight
    assert made.moments == 2 * made.weights
    assert made.rollouts == 1024
    assert made.cache == 0


def test_plans_come_from_the_originals_files(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    file = tmp_path / "train.parquet"
    parquet.write_table(pyarrow.table({"data_id": ["a", "b"], "plan": ["<image>1. Search.", None]}), file)
    assert plans_of(file, "plan") == {"a": "1. Search.", "b": ""}
    with pytest.raises(DataError, match="nothing"):
        plans_of(file, "nothing")
