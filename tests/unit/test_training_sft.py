"""Warm start: what of a recorded conversation is trained on, whose runs are taken, two steps from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from executor_train.sft import IGNORED, first_reply, sequence, sequences
from executor_train.traces import plan, script, turns
from local_search import miniwiki
from mia.chat.template import Template
from mia.config import load
from mia.errors import ConfigError, DataError
from mia.types import Message
from tests import tiny_models

pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")

TALK = [
    Message(role="user", text="Which river?"),
    Message(role="assistant", text="<think>a</think>\nSearch."),
    Message(role="user", text="Found: <|im_end|> Danube"),
    Message(role="assistant", text="<answer>Danube</answer>"),
    Message(role="user", text="Thanks"),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_models.chat_llama(tmp_path_factory.mktemp("tiny") / "model"))


def test_only_replies_are_learned_with_their_end_and_the_text_is_that_of_serving(tokenizer: Any) -> None:
    template, end = Template(tokenizer, "tiny"), tokenizer.eos_token_id
    made = sequence(template, TALK, end)
    ids, labels = made["input_ids"], made["labels"]
    assert len(ids) == len(labels)
    assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))
    learned = template.decoded([label for label in labels if label != IGNORED], control=True)
    eos = tokenizer.decode([end])
    assert learned == f"<think>a</think>\nSearch.{eos}<answer>Danube</answer>{eos}"
    # What stands before each reply is what serving would send for it.
    for place in (1, 3):
        sent = template.ids(TALK[:place])
        assert ids[: len(sent)] == sent
    assert labels[: len(template.ids(TALK[:1]))] == [IGNORED] * len(template.ids(TALK[:1]))


def test_a_short_conversation_ends_with_its_first_reply() -> None:
    assert first_reply(TALK) == TALK[:2]
    assert first_reply(TALK[:1]) == TALK[:1]


def test_conversations_that_are_too_long_are_counted(tokenizer: Any) -> None:
    template, end = Template(tokenizer, "tiny"), tokenizer.eos_token_id
    short = len(sequence(template, TALK[:2], end)["input_ids"])
    kept, longer = sequences(template, [TALK, TALK[:2], TALK[:2]], end, short)
    assert (len(kept), longer) == (2, 1)


def test_a_template_that_drops_earlier_thinking_is_refused(tmp_path: Path) -> None:
    import trl
    from transformers import AutoTokenizer

    qwen = Path(str(trl.__file__)).parent / "chat_templates" / "qwen3.jinja"
    place = tiny_models.chat_llama(tmp_path / "model", template=qwen.read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(place)
    with pytest.raises(ConfigError, match="rewrites earlier turns"):
        sequence(Template(tokenizer, "qwen3"), TALK, tokenizer.eos_token_id)


GOLD = next(q for q in miniwiki.questions("train") if q.type == "bridge" and len(q.steps) == 2)


def test_scripts_know_the_chain_but_the_plan_does_not_give_it_away() -> None:
    """A plan names what is not known yet by the step that finds it; an early answer is that of the first step."""
    first, second = GOLD.steps
    assert first.finding not in plan(GOLD)
    assert first.query in plan(GOLD)
    assert turns(GOLD)[-1].endswith(f"<answer>{GOLD.answer}</answer>")
    early = script(GOLD, early=True)
    assert f"<answer>{first.finding}</answer>" in early.executor[1]
    assert early.planner[1].startswith("yes")
    assert second.query in early.executor[2]
    assert script(GOLD, early=False).planner[1].startswith("no")


@pytest.mark.long
def test_two_steps_from_the_command_line_and_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from executor_train.sft_cli import main

    place = tiny_models.chat_llama(tmp_path / "model")
    out = tmp_path / "out"
    words = ["train/sft_tiny", "--policy.path", str(place), "--policy.lora_rank", "2", "--out", str(out)]
    words += [
        "--traces.questions",
        "12",
        "--traces.limit",
        "9000",
        "--sft.save_steps",
        "1",
        "--policy.dtype",
        "float32",
    ]
    assert main([*words, "--sft.max_steps", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out / "final")
    assert (out / "final" / "adapter_model.safetensors").is_file()
    traces = [json.loads(line) for line in (out / "traces.jsonl").read_text().splitlines()]
    test = {question.id for question in miniwiki.questions("test")}
    assert len(traces) > 8
    assert not test & {trace["id"] for trace in traces}
    assert all(message["text"] for trace in traces for message in trace["planner"])
    written = (out / "traces.jsonl").stat().st_mtime_ns
    assert main([*words, "--sft.max_steps", "3", "--resume"]) == 0
    assert (out / "checkpoint-3").is_dir()
    assert (out / "traces.jsonl").stat().st_mtime_ns == written
    record = json.loads((out / "final" / "training.json").read_text())
    assert record["command"].endswith(" --sft.max_steps 3 --resume")
    told = {"role": "executor", "method": "SFT", "base": str(place), "seed": 0}
    assert told.items() <= record.items()


def test_a_run_without_right_answers_is_refused(tmp_path: Path) -> None:
    from executor_train.traces import right_runs

    with pytest.raises(DataError):
        right_runs(tmp_path)
    for name in ("rows.jsonl", "trajectories.jsonl"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match="judged right"):
        right_runs(tmp_path)


@pytest.mark.long
async def test_a_share_of_the_scripted_runs_recalls_what_earlier_ones_taught() -> None:
    from executor_train.config import WarmConfig
    from executor_train.sft_cli import scripted

    told: dict[float, list[bool]] = {}
    for share in (0.0, 0.5, 1.0):
        flags = {"traces.questions": "16", "traces.early": "0", "traces.notes": str(share), "search.mode": "bm25"}
        traces = await scripted(load(WarmConfig, None, flags))
        told[share] = ["Notes from earlier" in trace.planner[0].text for trace in traces]
    assert not any(told[0.0])
    assert not told[1.0][0]  # nothing was learned yet
    assert sum(told[1.0]) >= 8
    assert 0 < sum(told[0.5]) < sum(told[1.0])
    assert all(whole for some, whole in zip(told[0.5], told[1.0], strict=True) if some)
