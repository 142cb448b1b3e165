"""The agent: models, search and memory put together by a config; asks one question and sees the run through.

Order of a run: episode, judgement (if there is a reference), credit for the memories that were shown, storing of the
workflow, saving of the run. A failed run is saved but never judged, credited or remembered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from inference.config import AgentConfig, RunConfig
from inference.driver import Driver, Watch
from inference.episode import mia_episode
from inference.events import Degraded, Judged, Remembered
from inference.executor import Execution
from inference.judge import judge
from inference.methods.mia import MiaMethod
from inference.methods.open import open_method
from inference.methods.protocol import Method
from inference.panel import judge_by_panel
from inference.runs import Run, RunStore, new_id
from inference.search import Search, open_tools
from inference.tools import ToolBox
from inference.transcript import Transcript
from local_search.encoder import MiniLM
from memory_serve.caption import caption
from mia import __version__
from mia.chat import ChatModel, open_chat
from mia.chat.metered import Metered
from mia.errors import DataError, MiaError
from mia.examples import Reference
from mia.paths import home
from mia.pictures import check_pictures
from mia.types import Failure, Judgement, Question, Role

INTERRUPTED = Failure(boundary="tool", code="interrupted", message="the run was interrupted", retryable=True)
UNJUDGED = Judgement(correct=None, method="none")


@dataclass
class Agent:
    """Answers questions. Safe to ask from many tasks at once.

    Build one with `Agent.open(config)`; tests and programs may pass their own models, search and method. `ask` is the
    whole of a run; evaluation takes its parts `answer`, `judge` and `learn`, to keep an order of its own.
    """

    config: RunConfig
    models: Mapping[Role, ChatModel]
    search: Search
    method: Method | None
    runs: RunStore
    meter: Metered | None = None
    """Counts what memory asks the Manager's model."""

    def __post_init__(self) -> None:
        traits = self.config.method.traits
        toolbox = ToolBox(self.search.tools if traits.tools else ())
        k = self.config.memory.k if isinstance(self.method, MiaMethod) else self.config.method.k
        self._driver = Driver(self.models, toolbox, self.method, k)
        self._context = self.models["executor"].context
        self._agent = _fitted(self.config, self._context)

    @classmethod
    def open(cls, config: RunConfig) -> Agent:
        """Open everything the config names.

        Raises:
            MiaError: something named there is missing or broken.
        """
        chats: dict[str, ChatModel] = {}
        models: dict[Role, ChatModel] = {}
        for role in get_args(Role):
            endpoint = config.models.of(role)
            key = endpoint.model_dump_json()
            chats.setdefault(key, open_chat(endpoint))
            models[role] = chats[key]
        encoder = MiniLM()  # loaded when first used; search and memory share it
        search = open_tools(config, encoder, models["executor"])
        runs = RunStore(config.runs or home() / "runs")
        runs.check()
        meter = Metered(models["manager"])
        method = open_method(config, encoder, {**models, "manager": meter})
        return cls(config, models, search, method, runs, meter)

    async def ask(self, question: Question, reference: Reference | None = None, watch: Watch | None = None) -> Run:
        """Answer a question, remember the run, save it.

        Args:
            question: what is asked.
            reference: gold answers to judge by; the agent itself never sees them.
            watch: called with each event as it happens.

        Returns:
            The saved run; when something failed, with `failure` set and `answer` None.
        """
        watch = watch or _ignore
        run = await self._save(await self.answer(question, watch, broken_off=self.runs.save), watch)
        if run.failure is None:
            run = await self.judge(run, reference, watch)
            run = await self._save(await self.learn(run, watch), watch)
        return run

    async def answer(
        self,
        question: Question,
        watch: Watch | None = None,
        run_id: str | None = None,
        broken_off: Callable[[Run], object] | None = None,
    ) -> Run:
        """Work on a question; nothing is judged, remembered or saved.

        Args:
            question: what is asked.
            watch: called with each event as it happens.
            run_id: id of the run; None for a new one.
            broken_off: given the run so far when it is interrupted.
        """
        watch = watch or _ignore
        transcript = Transcript()
        run_id, started = run_id or new_id(), time.monotonic()
        recall = self.method is not None

        def record(outcome: Execution | Failure) -> Run:
            return _record(run_id, question, transcript, outcome, time.monotonic() - started)

        try:
            if question.images:
                await asyncio.to_thread(check_pictures, question)
            question = await self._captioned(question, transcript, watch)
            tools = self._driver.toolbox.offered(question)
            episode = mia_episode(
                transcript, question, tools, self._agent, self._context, time.monotonic, recall=recall
            )
            return record(await self._driver.run(episode, watch))
        except MiaError as error:
            return record(error.failure())
        except BaseException:  # Ctrl-C, a watcher whose terminal is gone: what was done is kept
            if broken_off is not None:
                broken_off(record(INTERRUPTED))
            raise

    async def judge(
        self, run: Run, reference: Reference | None, watch: Watch | None = None, choices: Sequence[str] = ()
    ) -> Run:
        """Judge a run that did not fail, by the reference if there is one, and for memory as the method wants it.

        A judge that fails or cannot be read leaves the run unjudged, and the run says so.

        Args:
            run: the run.
            reference: gold answers, if there are any.
            watch: called with each event as it happens.
            choices: texts of the options of a multiple choice question.
        """
        watch = watch or _ignore
        degraded = list(run.degraded)
        found: dict[str, Judgement | None] = {"judgement": None, "feedback": None}
        verdicts = {"judgement": self._judge(run, reference, choices), "feedback": self._feedback(run)}
        for name, verdict in verdicts.items():
            try:
                found[name] = await verdict
            except MiaError as error:
                degraded.append(error.failure())
                watch(Degraded(failure=error.failure()))
        judgement = found["judgement"]
        if judgement is not None:
            watch(Judged(judgement=judgement))
        return run.model_copy(update={**found, "degraded": tuple(degraded)})

    async def learn(self, run: Run, watch: Watch | None = None) -> Run:
        """Let memory learn from a judged run that did not fail; when that fails the run says so."""
        if self.method is None:
            return run
        watch = watch or _ignore
        learned = {"reference": run.judgement, "panel": run.feedback, "none": None}[self.config.method.judged_by]
        try:
            added = await self.method.learn(run, learned or UNJUDGED)
        except MiaError as error:
            watch(Degraded(failure=error.failure()))
            return run.model_copy(update={"degraded": (*run.degraded, error.failure())})
        if added is not None:
            watch(Remembered(memory_id=added.id, action=added.action))
        return run.model_copy(update={"memory": added})

    async def _save(self, run: Run, watch: Watch) -> Run:
        """Write the run's file; a run that cannot be written is still a run, and says so."""
        try:
            await asyncio.to_thread(self.runs.save, run)
        except DataError as error:
            watch(Degraded(failure=error.failure()))
            return run.model_copy(update={"degraded": (*run.degraded, error.failure())})
        return run

    async def _captioned(self, question: Question, transcript: Transcript, watch: Watch) -> Question:
        """The question with a description of its picture, if memory or Planner want one and it came without."""
        wanted = self.config.memory.caption and (self.method is not None or self._agent.plan)
        if not wanted or not question.images or question.caption.strip():
            return question
        try:
            return question.model_copy(update={"caption": await caption(self.models["executor"], question)})
        except MiaError as error:
            transcript.degraded.append(error.failure())
            watch(Degraded(failure=error.failure()))
            return question

    async def _judge(self, run: Run, reference: Reference | None, choices: Sequence[str]) -> Judgement | None:
        if reference is not None:
            model = self.models["judge"]
            return await judge(self.config.judge, run.question, run.answer, reference, model, choices)
        if run.answer is None:
            return Judgement(correct=False, method="none")
        return None

    async def _feedback(self, run: Run) -> Judgement | None:
        """What memory learns the outcome from, where that is not the reference; it never sees one."""
        if self.method is None or self.config.method.judged_by != "panel":
            return None
        return await judge_by_panel(self.config.panel, run, self.models["judge"])

    async def aclose(self) -> None:
        """Close models, search and memory."""
        distinct = {id(model): model for model in self.models.values()}
        await asyncio.gather(self.search.aclose(), *(model.aclose() for model in distinct.values()))
        if self.method is not None:
            await self.method.aclose()


def _fitted(config: RunConfig, context: int) -> AgentConfig:
    """The agent's settings for a context window: a reply takes a quarter of it at most, so that turns are possible."""
    agent = config.agent
    limit = max(1, context // 4)
    shorter = {
        name: sampling.model_copy(update={"max_tokens": min(sampling.max_tokens, limit)})
        for name, sampling in (("executor", agent.executor), ("answer", agent.answer))
    }
    traits = config.method.traits
    plan = agent.plan and traits.plan
    fixed = {
        "plan": plan,
        "reader": traits.reader if plan else "executor",
        "tool_format": config.models.of("executor").tool_format,
    }
    return agent.model_copy(update={**shorter, **fixed})


def _ignore(_: Any) -> None:
    """Watch nothing."""


def _record(
    run_id: str, question: Question, transcript: Transcript, outcome: Execution | Failure, seconds: float
) -> Run:
    """The record of a run, whole or broken off."""
    return Run(
        id=run_id,
        version=__version__,
        question=question,
        recalled=transcript.recalled,
        recalled_again=transcript.recalled_again,
        plans=tuple(transcript.plans),
        reflections=tuple(transcript.reflections),
        steps=tuple(transcript.steps),
        answer=None if isinstance(outcome, Failure) else outcome.answer,
        stop_reason="failed" if isinstance(outcome, Failure) else outcome.stop_reason,
        failure=outcome if isinstance(outcome, Failure) else None,
        degraded=tuple(transcript.degraded),
        seconds=seconds,
    )
