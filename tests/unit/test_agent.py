"""A whole run with memory on disk: answer, verdict, credit, storing, saving, and what happens when something breaks."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from inference.agent import Agent
from inference.config import JudgeConfig, RunConfig
from inference.events import Event
from inference.methods.config import MethodConfig
from inference.methods.mia import MiaMethod
from inference.runs import Run, RunStore
from inference.search import Search
from inference.tools import SearchTool
from local_search.protocol import Vectors
from memory_serve.config import MemoryConfig
from memory_serve.open import open_memory
from mia.chat.scripted import ScriptedChat
from mia.errors import DataError, ModelError, ToolError
from mia.examples import Reference
from mia.types import Message, Question, Reply, Sampling, ToolSpec
from tests.doubles import FixedSearch, call, scripted, store_of

QUESTION = Question(id="q1", text="Which river flows through the capital of Austria?")
SIMILAR = Question(id="q2", text="Which river flows through the capital of Hungary?")
REFERENCE = Reference(answers=("Danube",))


class HashEncoder:
    """Bags of words hashed to 64 dimensions."""

    name = "hash-64"
    dim = 64

    def encode(self, texts: Sequence[str], kind: Literal["query", "passage"] = "query") -> Vectors:
        vectors = np.full((len(texts), self.dim), 1e-3, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                vectors[row, hashlib.sha256(word.encode()).digest()[0] % self.dim] += 1.0
        made: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return made


Build = Callable[..., Agent]


@pytest.fixture
async def build(tmp_path: Path) -> AsyncIterator[Build]:
    """Makes agents over one memory file and closes them."""
    agents: list[Agent] = []

    def make(
        planner: ScriptedChat, executor: ScriptedChat, search: FixedSearch | None = None, **judging: ScriptedChat
    ) -> Agent:
        config = RunConfig(
            memory=MemoryConfig(path=tmp_path / "memory.db"),
            judge=JudgeConfig(method="model" if judging else "em"),
        )
        models = scripted(planner, executor, **judging)
        memory = open_memory(config.memory, HashEncoder())
        backend = search or FixedSearch()
        tools = Search(backend, (SearchTool(backend, 3),))
        agents.append(Agent(config, models, tools, MiaMethod(memory), RunStore(tmp_path / "runs")))
        return agents[-1]

    yield make
    for agent in agents:
        await agent.aclose()


def plans(*verdicts: str) -> ScriptedChat:
    return ScriptedChat([text for verdict in verdicts for text in ("1. Find it.", verdict)])


async def test_a_judged_run_is_remembered_credited_and_saved(build: Build, tmp_path: Path) -> None:
    planner = plans("no", "no")
    executor = ScriptedChat([call("Vienna"), "<answer>the Danube</answer>", call("Danube"), "<answer>Danube</answer>"])
    agent = build(planner, executor)
    events: list[Event] = []
    first = await agent.ask(QUESTION, REFERENCE, events.append)
    assert first.answer == "the Danube"
    assert first.judgement is not None
    assert first.judgement.correct is True
    assert first.memory is not None
    assert [event.event for event in events][-2:] == ["judged", "remembered"]
    assert agent.runs.load(first.id) == first
    assert Run.model_validate_json((tmp_path / "runs" / f"{first.id}.json").read_bytes()) == first

    second = await agent.ask(SIMILAR, REFERENCE)
    assert second.recalled.ids == (first.memory.id,)
    assert "Search: Vienna" in planner.history[2][0].text
    stored = await store_of(agent).get(first.memory.id)
    assert stored is not None
    assert (stored.outcome, stored.uses, stored.successes) == ("correct", 1, 1)
    assert stored.trajectory_id == first.id


async def test_a_replan_recalls_what_comes_next_and_both_are_credited(build: Build) -> None:
    towns = ("Austria", "Italy", "Hungary", "Serbia")
    planner = plans(*["no"] * 4, "Yes: no evidence.")
    planner.enqueue("1. Look again.")
    executor = ScriptedChat([call("Vienna"), "<answer>Danube</answer>"] * 4)
    executor.enqueue(call("Vienna"), "<answer>Rhine</answer>", call("Danube"), "<answer>Danube</answer>")
    agent = build(planner, executor)
    for n, town in enumerate(towns):
        await agent.ask(Question(id=f"q{n}", text=f"Which river flows through the capital of {town}?"), REFERENCE)
    asked = Question(id="asked", text="Which river flows through the capital of Slovakia?")
    best = (await store_of(agent).recall(asked, k=4)).ids
    before = {memory.id: (memory.uses, memory.successes) for memory in await store_of(agent).list()}
    run = await agent.ask(asked, REFERENCE)
    assert run.answer == "Danube"
    assert (run.recalled.ids, run.recalled_again.ids) == (best[:2], best[2:])
    assert [plan.memory_ids for plan in run.plans] == [best[:2], best[2:]]
    after = {memory.id: (memory.uses, memory.successes) for memory in await store_of(agent).list()}
    assert [after[i] for i in best] == [(before[i][0] + 1, before[i][1] + 1) for i in best]
    assert agent.runs.load(run.id) == run


async def test_runs_from_before_replans_recalled_can_be_read(build: Build, tmp_path: Path) -> None:
    run = await build(plans("no"), ScriptedChat([call("Vienna"), "<answer>Danube</answer>"])).ask(QUESTION)
    path = tmp_path / "runs" / f"{run.id}.json"
    fields = json.loads(path.read_text())
    del fields["recalled_again"]
    path.write_text(json.dumps(fields))
    assert RunStore(tmp_path / "runs").load(run.id) == run


async def test_a_wrong_answer_credits_a_use_without_success(build: Build) -> None:
    executor = ScriptedChat([call("Vienna"), "<answer>Danube</answer>", call("Danube"), "<answer>Rhine</answer>"])
    agent = build(plans("no", "no"), executor)
    first = await agent.ask(QUESTION, REFERENCE)
    second = await agent.ask(SIMILAR, REFERENCE)
    assert second.judgement is not None
    assert second.judgement.correct is False
    assert first.memory is not None
    stored = await store_of(agent).get(first.memory.id)
    assert stored is not None
    assert (stored.uses, stored.successes) == (1, 0)
    assert (await store_of(agent).stats()).by_outcome == {"correct": 1, "incorrect": 1, "unjudged": 0}


async def test_the_question_does_not_recall_itself(build: Build) -> None:
    executor = ScriptedChat([call("Vienna"), "<answer>Danube</answer>"] * 2)
    agent = build(plans("no", "no"), executor)
    await agent.ask(QUESTION, REFERENCE)
    again = await agent.ask(QUESTION, REFERENCE)
    assert again.recalled.ids == ()


async def test_without_reference_the_run_is_unjudged_and_credits_nobody(build: Build) -> None:
    executor = ScriptedChat([call("Vienna"), "<answer>Danube</answer>"] * 2)
    agent = build(plans("no", "no"), executor)
    first = await agent.ask(QUESTION)
    second = await agent.ask(SIMILAR)
    assert first.judgement is None
    assert first.memory is not None
    assert [scored.memory.id for scored in second.recalled.unjudged] == [first.memory.id]
    stored = await store_of(agent).get(first.memory.id)
    assert stored is not None
    assert (stored.outcome, stored.uses) == ("unjudged", 0)


async def test_an_unreadable_judge_leaves_the_run_unjudged_and_degraded(build: Build) -> None:
    executor = ScriptedChat([call("Vienna"), "<answer>Danube</answer>"])
    agent = build(plans("no"), executor, judge=ScriptedChat(always="hm"))
    run = await agent.ask(QUESTION, REFERENCE)
    assert run.judgement is None
    assert [failure.code for failure in run.degraded] == ["unjudged"]
    assert (await store_of(agent).stats()).by_outcome["unjudged"] == 1


def unsupervised(agent: Agent) -> Agent:
    """The same agent, whose memory learns from the panel."""
    config = agent.config.model_copy(
        update={"method": MethodConfig(name="mia_unsupervised"), "judge": JudgeConfig(method="em")}
    )
    return Agent(config, agent.models, agent.search, agent.method, agent.runs)


async def test_memory_learns_from_the_panel_while_the_reference_only_scores(build: Build) -> None:
    executor = ScriptedChat([call("Vienna"), "<answer>Rhine</answer>"])
    review = json.dumps({"quote": "Rhine", "reason": "It is one.", "score": 9})
    panel = ScriptedChat([review, review, review, json.dumps({"reason": "All agree.", "verdict": "accept"})])
    agent = unsupervised(build(plans("no"), executor, judge=panel))
    run = await agent.ask(QUESTION, Reference(answers=("MARKER",)))
    assert run.judgement is not None
    assert run.feedback is not None
    assert (run.judgement.correct, run.judgement.method) == (False, "em")
    assert (run.feedback.correct, run.feedback.method) == (True, "panel")
    assert run.feedback.score == pytest.approx(9)
    stats = await store_of(agent).stats()
    assert (stats.by_outcome["correct"], stats.by_trust["panel"]) == (1, 1)
    assert not any("MARKER" in message.text for told in panel.history for message in told)


async def test_a_panel_that_fails_leaves_memory_without_a_verdict(build: Build) -> None:
    executor = ScriptedChat([call("Vienna"), "<answer>Danube</answer>"])
    agent = unsupervised(build(plans("no"), executor, judge=ScriptedChat([ModelError("down", code="unreachable")])))
    run = await agent.ask(QUESTION, REFERENCE)
    assert run.judgement is not None
    assert (run.judgement.correct, run.feedback) == (True, None)
    assert [(failure.boundary, failure.code) for failure in run.degraded] == [("model", "unreachable")]
    assert (await store_of(agent).stats()).by_outcome == {"correct": 0, "incorrect": 0, "unjudged": 1}


async def test_options_reach_the_judge_of_choices(build: Build) -> None:
    agent = build(plans("no"), ScriptedChat(["<answer>the Danube</answer>"]), judge=ScriptedChat())
    agent.config = agent.config.model_copy(update={"judge": JudgeConfig(method="choice")})
    gold = Reference(answers=("Danube",), choice="B")
    run = await agent.judge(await agent.answer(QUESTION), gold, choices=("Rhine", "Danube"))
    assert run.judgement is not None
    assert (run.judgement.correct, run.judgement.raw) == (True, "B")


@pytest.mark.parametrize(
    ("executor", "search", "boundary"),
    [
        (ScriptedChat([call("Vienna"), ModelError("down", code="unreachable")]), FixedSearch(), "model"),
        (ScriptedChat([call("x")]), FixedSearch(errors={"x": ToolError("gone")}), "tool"),
    ],
)
async def test_a_failed_run_is_saved_but_neither_judged_nor_remembered(
    build: Build, executor: ScriptedChat, search: FixedSearch, boundary: str
) -> None:
    agent = build(ScriptedChat(["1. Find it."]), executor, search)
    run = await agent.ask(QUESTION, REFERENCE)
    assert run.failure is not None
    assert run.failure.boundary == boundary
    assert (run.answer, run.stop_reason, run.judgement, run.memory) == (None, "failed", None, None)
    assert agent.runs.load(run.id) == run
    assert run.plans
    assert (await store_of(agent).stats()).memories == 0


async def test_the_reference_reaches_no_model_of_the_agent(build: Build) -> None:
    marker = "GOLD-MARKER-7391"
    planner, executor = plans("yes", "no"), ScriptedChat(["<answer>a</answer>", "<answer>b</answer>"])
    planner.enqueue("1. More.")
    agent = build(planner, executor)
    run = await agent.ask(QUESTION, Reference(answers=(marker,)))
    seen = "".join(m.text for chat in (planner, executor) for messages in chat.history for m in messages)
    assert marker not in seen
    assert marker not in run.model_dump_json()


class Slow:
    """Plans at once, then never answers."""

    name, context = "slow", 32768

    def __init__(self) -> None:
        self.waiting = asyncio.Event()

    async def generate(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec] = ()) -> Reply:
        self.waiting.set()
        await asyncio.Event().wait()
        raise AssertionError("never reached")

    async def aclose(self) -> None:
        """Nothing to free."""


async def test_an_interrupted_run_keeps_what_was_done(build: Build) -> None:
    slow = Slow()
    agent = build(ScriptedChat(["1. Find it."]), slow)
    task = asyncio.create_task(agent.ask(QUESTION))
    await slow.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (run_id,) = agent.runs.ids()
    run = agent.runs.load(run_id)
    assert run.failure is not None
    assert run.failure.code == "interrupted"
    assert run.plans[0].text == "1. Find it."


async def test_a_watcher_that_breaks_loses_nothing(build: Build) -> None:
    agent = build(plans("no"), ScriptedChat([call("Vienna"), "<answer>Danube</answer>"]))

    def broken(event: Event) -> None:
        if event.event == "observed":
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        await agent.ask(QUESTION, watch=broken)
    (run_id,) = agent.runs.ids()
    assert agent.runs.load(run_id).steps[-1].observations


async def test_a_run_that_cannot_be_written_is_still_a_run(build: Build, tmp_path: Path) -> None:
    agent = build(plans("no"), ScriptedChat([call("Vienna"), "<answer>Danube</answer>"]))
    (tmp_path / "runs").write_text("a file where the folder should be")
    run = await agent.ask(QUESTION, REFERENCE)
    assert run.answer == "Danube"
    assert run.memory is not None
    assert {failure.boundary for failure in run.degraded} == {"data"}


async def test_small_contexts_leave_room_for_turns(build: Build) -> None:
    executor = ScriptedChat([call("Vienna"), "<answer>Danube</answer>"], context=2048)
    run = await build(plans("no"), executor).ask(QUESTION)
    assert (run.answer, run.stop_reason) == ("Danube", "answered")
    assert executor.samplings[0].max_tokens == 512


async def test_many_questions_at_once(build: Build) -> None:
    def answer(messages: Sequence[Message]) -> str:
        return "<answer>Danube</answer>" if len(messages) > 1 else call("Vienna")

    def plan(messages: Sequence[Message]) -> str:
        return "no" if len(messages) > 1 else "1. Find it."

    agent = build(ScriptedChat(always=plan), ScriptedChat(always=answer))
    questions = [Question(id=f"q{i}", text=f"Question {i} about river {i * 7}?") for i in range(30)]
    runs = await asyncio.gather(*(agent.ask(question, REFERENCE) for question in questions))
    assert {run.question.id for run in runs} == {question.id for question in questions}
    assert all(run.answer == "Danube" and run.failure is None for run in runs)
    assert len(agent.runs.ids()) == 30
    assert (await store_of(agent).stats()).memories == 30


def test_run_store_errors(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    assert store.ids() == []
    with pytest.raises(DataError, match="no runs in"):
        store.load("last")
    with pytest.raises(DataError, match="no run 'x'"):
        store.load("x")
    with pytest.raises(DataError, match="not the id of a run"):
        store.load("../secret")
    (tmp_path / "bad.json").write_text('{"id": 5}')
    with pytest.raises(DataError, match=r"bad\.json is not a run"):
        store.load(str(tmp_path / "bad.json"))
