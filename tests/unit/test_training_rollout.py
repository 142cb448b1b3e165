"""Token records of conversations, and the table where rollouts meet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from executor_train.game import ExecutorGame, Row, recited
from executor_train.rollout import Conversation
from executor_train.waves import Table, Turn
from inference.config import AgentConfig
from inference.planner import plan_turn
from inference.tools import SearchTool, ToolBox
from inference.transcript import Transcript
from mia.chat.scripted import ScriptedChat
from mia.chat.template import Template
from mia.embedded import TEMPLATE
from mia.errors import MiaError, ModelError, ToolError
from mia.examples import Example, Reference
from mia.types import Message, Question, Reply, TokenRecord
from tests import tiny_models
from tests.doubles import FixedSearch, call

transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")

QWEN = Path(str(trl.__file__)).parent / "chat_templates"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return transformers.AutoTokenizer.from_pretrained(tiny_models.chat_llama(tmp_path_factory.mktemp("model")))


def template_of(tokenizer: Any, text: str = TEMPLATE) -> Template:
    tokenizer.chat_template = text
    return Template(tokenizer, "tiny")


def sampled(template: Template, text: str, tail: str = "<|im_end|>", told: str | None = None) -> Reply:
    """A reply as a model would have sampled it, one token per character, so never as the tokenizer would write it."""
    ids = [token for letter in text for token in template.plain(letter)]
    ids += template.tokenizer(tail, add_special_tokens=False).input_ids
    mask = (True,) * len(ids)
    tokens = TokenRecord(prompt_ids=(), completion_ids=ids, sampled_mask=mask, logprobs=[-0.5] * len(ids))
    return Reply(text=text if told is None else told, tokens=tokens)


def said(text: str) -> Message:
    return Message(role="assistant", text=text)


def asked(text: str) -> Message:
    return Message(role="user", text=text)


def conversation(template: Template) -> Conversation:
    return Conversation(template, frozenset(template.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])))


@pytest.mark.parametrize(
    ("sampled_text", "tail", "told"),
    [
        ("the search", "<|im_end|>", None),
        ("<think>the</think>\n\n the river ", "<|im_end|>", None),
        ("cut at the limit", "", None),
        ("stopped <tool_response> here", "", "stopped "),
        ("ended otherwise", "<|endoftext|>", None),
        ("two ends<|im_start|>", "<|im_end|>", "two ends"),
        ("Zürich, 東京", "<|im_end|>", None),
        ("", "<|im_end|>", None),
    ],
    ids=["plain", "spaces", "limit", "stop text", "other end", "control token", "bytes", "nothing"],
)
def test_the_next_prompt_is_what_serving_sends(tokenizer: Any, sampled_text: str, tail: str, told: str | None) -> None:
    template = template_of(tokenizer)
    record = conversation(template)
    opening = [asked("Where is the <|im_end|> river?")]
    assert record.extend(opening) == template.ids(opening)
    if sampled_text.endswith("<|im_start|>"):
        reply = sampled(template, sampled_text.removesuffix("<|im_start|>"), "<|im_start|><|im_end|>", told)
    else:
        reply = sampled(template, sampled_text, tail, told)
    record.add(reply)
    whole = [*opening, said(reply.text), asked("<tool_response>\nfound <|im_start|>\n</tool_response>")]
    ids = record.extend(whole)
    assert template.decoded(ids, control=True) == template.text(whole)


def test_sampled_tokens_stay_as_they_were_sampled(tokenizer: Any) -> None:
    template = template_of(tokenizer)
    record = conversation(template)
    first = record.extend([asked("q")])
    replies = [sampled(template, "<think>the search</think>"), sampled(template, "<answer>the river</answer>")]
    record.add(replies[0])
    record.extend([asked("q"), said(replies[0].text), asked("r")])
    record.add(replies[1])
    made = record.finished(limit=1000)
    assert list(made.prompt_ids) == first
    own = [token for token, flag in zip(made.completion_ids, made.sampled, strict=True) if flag]
    assert own == [token for reply in replies for token in (reply.tokens.completion_ids if reply.tokens else ())]
    assert {lp for lp, flag in zip(made.logprobs, made.sampled, strict=True) if flag} == {-0.5}
    assert {lp for lp, flag in zip(made.logprobs, made.sampled, strict=True) if not flag} == {0.0}
    between = [token for token, flag in zip(made.completion_ids, made.sampled, strict=True) if not flag]
    assert template.decoded(between, control=True) == "\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n"
    assert template.plain("the search") != [t for letter in "the search" for t in template.plain(letter)]


def test_a_long_record_is_cut_at_its_end(tokenizer: Any) -> None:
    template = template_of(tokenizer)

    def played(limit: int) -> Any:
        record = conversation(template)
        record.extend([asked("q")])
        record.add(sampled(template, "abcdefgh"))
        record.extend([asked("q"), said("abcdefgh"), asked("a long result of a tool")])
        record.add(sampled(template, "xyz"))
        return record.finished(limit)

    whole = played(1000)
    size = len(whole.prompt_ids) + len(whole.completion_ids)
    assert not whole.cut
    assert not played(size).cut
    shorter = played(size - 2)
    assert shorter.cut
    assert shorter.completion_ids == whole.completion_ids[:-2]
    inside = played(size - 6)  # the cut falls into what others wrote: that is left out as a whole
    assert inside.cut
    assert sum(inside.sampled) == 9
    assert inside.sampled[-1]
    assert not any(played(len(whole.prompt_ids)).sampled)


@pytest.mark.parametrize("name", ["qwen2_5", "qwen2_5_vl"])
def test_a_template_that_keeps_turns_is_told_from_one_that_does_not(tokenizer: Any, name: str) -> None:
    from executor_train.grpo import keeps_turns

    assert keeps_turns(template_of(tokenizer))
    assert keeps_turns(template_of(tokenizer, (QWEN / f"{name}.jinja").read_text(encoding="utf-8")))
    assert not keeps_turns(template_of(tokenizer, (QWEN / "qwen3.jinja").read_text(encoding="utf-8")))


def test_a_template_that_drops_thinking_is_refused_where_it_does(tokenizer: Any) -> None:
    template = template_of(tokenizer, (QWEN / "qwen3.jinja").read_text(encoding="utf-8"))
    record = conversation(template)
    record.extend([asked("q")])
    record.add(sampled(template, "<think>\na\n</think>\n\nplan"))
    with pytest.raises(ModelError, match="rewrites"):
        record.extend([asked("q"), said("<think>\na\n</think>\n\nplan"), asked("another question")])


class Scripted:
    """Samples what was written before, in the order of the turns; counts the turns of each wave."""

    name = "scripted"
    context = 4096

    def __init__(self, template: Template, texts: Sequence[str | MiaError]) -> None:
        self.template = template
        self.ends = frozenset({template.tokenizer.eos_token_id})
        self.waves: list[int] = []
        self._texts = iter(texts)

    def sample(self, turns: Sequence[Turn]) -> list[Reply | MiaError]:
        self.waves.append(len(turns))
        made: list[Reply | MiaError] = []
        for turn in turns:
            text = next(self._texts)
            assert self.template.decoded(turn.ids, control=True) == self.template.text(turn.messages)
            made.append(text if isinstance(text, MiaError) else sampled(self.template, text))
        return made

    def anyone(self, here: bool) -> bool:
        return here


def row(number: int = 0, plan: str | None = None) -> Row:
    question = Question(id=str(number), text="Which river flows through Vienna?")
    return Row(example=Example(question=question, reference=Reference(answers=("Danube",))), plan=plan)


def play(
    template: Template, texts: Sequence[str | MiaError], count: int, search: FixedSearch, **settings: Any
) -> tuple[list[Any], Scripted]:
    toolbox = ToolBox([SearchTool(search, 3)])
    agent = settings.pop("agent", AgentConfig(plan=False, reflect=False))
    plan, training = settings.pop("plan", None), settings.pop("training", True)
    game = ExecutorGame(toolbox, agent, **settings)
    sampler = Scripted(template, texts)
    table = Table(sampler)

    async def run() -> list[Any]:
        return await table.play([game.play(row(n, plan), table.seat(n), training) for n in range(count)])

    return asyncio.run(run()), sampler


def test_rollouts_take_their_turns_together(tokenizer: Any) -> None:
    template = template_of(tokenizer)
    texts = [call("Vienna"), call("Danube"), "<answer>Danube</answer>", "<answer>Danube</answer>", call("Vienna")]
    texts += ["<answer>Rhine</answer>"]
    ended, sampler = play(template, texts, 3, FixedSearch())
    assert sampler.waves == [3, 2, 1]
    assert [outcome.scores for outcome in ended] == [
        {"correct": 1.0, "tool": 1.0, "format": 1.0},
        {"correct": 0.0, "tool": 1.0, "format": 1.0},
        {"correct": 1.0, "tool": 0.0, "format": 1.0},
    ]


def test_a_rollout_that_fails_leaves_alone(tokenizer: Any) -> None:
    template = template_of(tokenizer)
    texts: list[str | MiaError] = [
        call("Vienna"),
        call("broken"),
        ModelError("out of memory"),
        "<answer>Danube</answer>",
    ]
    search = FixedSearch(errors={"broken": ToolError("search is down")})
    ended, sampler = play(template, texts, 3, search)
    assert sampler.waves == [3, 1]
    assert ended[0].scores["correct"] == 1.0
    assert [type(error) for error in ended[1:]] == [ToolError, ModelError]


def test_an_error_of_the_program_is_not_hidden(tokenizer: Any) -> None:
    async def broken() -> None:
        raise KeyError("x")

    async def run() -> None:
        await Table(Scripted(template_of(tokenizer), [])).play([broken()])

    with pytest.raises(KeyError):
        asyncio.run(run())


def test_the_oracle_plans_again_in_training_only(tokenizer: Any) -> None:
    template = template_of(tokenizer)
    texts = ["<answer>Rhine</answer>", call("Vienna"), "<answer>Danube</answer>"]
    planner = ScriptedChat(["1. Search: Vienna."])
    settings: dict[str, Any] = {"partners": {"planner": planner}, "oracle": True, "plan": "1. Guess."}
    ended, _ = play(template, texts, 1, FixedSearch(), **settings)
    run = ended[0].run
    assert [plan.text for plan in run.plans] == ["1. Guess.", "1. Search: Vienna."]
    assert "1. Guess." in run.conversation("executor")[0].text
    assert ended[0].scores == {"correct": 1.0, "tool": 0.5, "format": 1.0}
    ended, _ = play(template, texts, 1, FixedSearch(), training=False, **settings)
    assert ended[0].run.answer == "Rhine"
    assert len(ended[0].run.plans) == 1


def test_a_plan_is_recited_as_the_planner_would_have_written_it() -> None:
    transcript = Transcript()
    question = Question(id="1", text="Which river?")
    plan = recited(plan_turn(transcript, question, (), AgentConfig()), "<think>so</think>1. Search.")
    assert plan.text == "1. Search."
    assert [message.role for message in transcript.conversations["planner"]] == ["user", "assistant"]
