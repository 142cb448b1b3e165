"""Scripted traces: miniwiki questions played through the agent's own episode by scripts that know the gold chain.

The episode, prompts, search and memory are those of serving; only the models' replies are scripted, so what a model is
trained on is byte for byte what it will be asked. Some runs make a mistake on purpose (they answer before the chain is
complete), so that the Planner sees verdicts of both kinds and the Executor sees a second round. Left out: questions of
the test split, and runs in which search did not find what the script says it found.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference.config import AgentConfig
from inference.driver import Driver
from inference.episode import mia_episode
from inference.evaluation.folder import read_rows, read_runs
from inference.executor import Execution
from inference.runs import Run
from inference.tools import ToolBox
from inference.transcript import Transcript
from local_search.miniwiki import Question as Gold
from memory_serve.protocol import MemoryStore
from memory_serve.workflow import prepare
from mia.chat.scripted import ScriptedChat
from mia.errors import DataError
from mia.types import Judgement, Message, Question, Record, Role


class Trace(Record):
    """The conversations of the roles in one run, as their models saw and wrote them."""

    id: str
    planner: tuple[Message, ...]
    executor: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """What the models say in one run."""

    planner: tuple[str, ...]
    executor: tuple[str, ...]


def think(text: str) -> str:
    """A thought in our grammar."""
    return f"<think>{text}</think>\n"


def call(query: str) -> str:
    """A search call in our grammar."""
    return f'<tool_call>{{"name": "search", "arguments": {{"query": "{query}"}}}}</tool_call>'


def plan(gold: Gold, start: int = 0) -> str:
    """The plan of a chain from one of its steps on, what earlier steps of the plan will find left open."""
    lines = []
    for place, step in enumerate(gold.steps[start:], start + 1):
        query = step.query
        for earlier in range(start, place - 1):
            query = query.replace(gold.steps[earlier].finding, f"the result of step {earlier - start + 1}")
        lines.append(f"Search: {query}")
    compared = gold.type == "comparison"
    lines.append("Compare the results and answer." if compared else "Answer with what the last search found.")
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))


def turns(gold: Gold, start: int = 0, early: bool = False) -> tuple[str, ...]:
    """The Executor's replies along a chain.

    Args:
        gold: the question with its chain.
        start: the step to begin with; those before it are known from an earlier round.
        early: answer with the first finding, before the chain is complete.
    """
    written = []
    for place, step in enumerate(gold.steps[start:], start):
        before = gold.steps[place - 1] if place else None
        found = f"{before.title}: {before.finding}. " if before else ""
        written.append(think(f"{found}Next: {step.query}.") + call(step.query))
        if early:
            return (*written, think(f"{step.title}: {step.finding}.") + f"<answer>{step.finding}</answer>")
    told = gold.steps if gold.type == "comparison" else gold.steps[-1:]
    facts = " ".join(f"{step.title}: {step.finding}." for step in told)
    return (*written, think(facts) + f"<answer>{gold.answer}</answer>")


def script(gold: Gold, early: bool) -> Script:
    """All replies of a run; with `early` the first round stops short and a second one completes the chain."""
    if not early:
        return Script((plan(gold), "no, the results support the answer."), turns(gold))
    missing = (
        gold.steps[1].query if gold.type == "comparison" else gold.steps[-1].query.replace(gold.steps[-2].finding, "it")
    )
    verdict = f"yes, this is still missing: {missing}."
    return Script((plan(gold), verdict, plan(gold, 1)), (*turns(gold, early=True), *turns(gold, 1)))


def traced(run: Run) -> Trace:
    """What is learned from a run."""
    return Trace(id=run.id, planner=tuple(run.conversation("planner")), executor=tuple(run.conversation("executor")))


def right_runs(folder: Path) -> list[Trace]:
    """The runs of `mia eval` whose answers were judged right, without failures and help, in the order they were asked.

    Raises:
        DataError: there is none, or the folder is no run.
    """
    rows = {row.run for row in read_rows(folder) if row.judgement and row.judgement.correct and not row.degraded}
    found = {run.id: traced(run) for run in read_runs(folder) if run.id in rows and run.stop_reason == "answered"}
    if not found:
        raise DataError(f"{folder} has no run that was judged right", remedy="name the folder of a better run")
    if any(message.tool_calls for trace in found.values() for message in trace.executor):
        raise DataError(
            f"{folder}: its Executor called tools natively, which is not trained",
            remedy='run it again with models.executor.tool_format = "grammar"',
        )
    return list(found.values())


async def record(
    golds: Sequence[Gold],
    toolbox: ToolBox,
    agent: AgentConfig,
    memory: MemoryStore,
    early: float,
    seed: int,
    notes: float = 1.0,
    memory_k: int = 2,
) -> AsyncIterator[Trace]:
    """Play questions in order; memory learns from each, so that later plans are made with notes.

    Args:
        golds: questions of the train or dev split.
        toolbox: with the search tool.
        agent: limits; sampling is not looked at.
        memory: the store to recall from and learn into.
        early: share of the runs that answer too early at first.
        seed: of the choice of those runs.
        notes: share of the runs that recall anything: a Planner that always had notes cannot plan without.
        memory_k: memories of each outcome to recall.
    """
    chance, looks = random.Random(seed), random.Random(f"{seed}/notes")
    for gold in golds:
        made = script(gold, early=chance.random() < early)
        models: dict[Role, ScriptedChat] = {
            "planner": ScriptedChat(made.planner),
            "executor": ScriptedChat(made.executor),
        }
        transcript = Transcript()
        question = Question(id=gold.id, text=gold.question)
        recall = looks.random() < notes
        episode = mia_episode(
            transcript, question, toolbox.offered(question), agent, 1 << 15, lambda: 0.0, recall=recall
        )
        execution: Execution = await Driver(models, toolbox, memory, memory_k).run(episode)
        titles = {hit.passage.title for step in transcript.steps for o in step.observations for hit in o.hits}
        if execution.answer != gold.answer or not {step.title for step in gold.steps} <= titles:
            continue
        run = Run(
            id=gold.id,
            question=question,
            recalled=transcript.recalled,
            plans=tuple(transcript.plans),
            steps=tuple(transcript.steps),
            answer=execution.answer,
            stop_reason=execution.stop_reason,
        )
        yield traced(run)
        await memory.add([await prepare(run, Judgement(correct=True, method="em"))])
