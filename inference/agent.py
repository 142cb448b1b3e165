"""The agent: models, search and memory put together by a config; asks one question and sees the run through.

Order of a run: episode, judgement (if there is a reference), credit for the memories that were shown, storing of the
workflow, saving of the run. A failed run is saved but never judged, credited or remembered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from inference.config import AgentConfig, RunConfig
from inference.driver import Driver, Watch
from inference.episode import mia_episode
from inference.events import Degraded, Judged, Remembered
from inference.executor import Execution
from inference.judge import judge
from inference.runs import Run, RunStore, new_id
from inference.search import Search, open_tools
from inference.tools import ToolBox
from inference.transcript import Transcript
from local_search.encoder import MiniLM
from memory_serve.caption import caption
from memory_serve.open import open_memory
from memory_serve.protocol import Added, MemoryStore
from memory_serve.workflow import prepare
from mia import __version__
from mia.chat import ChatModel, open_chat
from mia.errors import DataError, MemoryStoreError, MiaError
from mia.paths import home
from mia.types import Failure, Judgement, Question, Reference, Role

INTERRUPTED = Failure(boundary="tool", code="interrupted", message="the run was interrupted", retryable=True)
UNJUDGED = Judgement(correct=None, method="none")


@dataclass
class Agent:
    """Answers questions. Safe to ask from many tasks at once.

    Build one with `Agent.open(config)`; tests and programs may pass their own models, search and memory.
    """

    config: RunConfig
    models: Mapping[Role, ChatModel]
    search: Search
    memory: MemoryStore | None
    runs: RunStore

    def __post_init__(self) -> None:
        toolbox = ToolBox(self.search.tools)
        self._driver = Driver(self.models, toolbox, self.memory, self.config.memory.k)
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
        memory = None
        try:
            if config.memory.enabled:
                memory = open_memory(config.memory, encoder, models["manager"]).scoped(actor="agent")
        except MemoryStoreError as error:
            error.remedy = f"{error.remedy}; or go on without memory: --memory.enabled false"
            raise
        return cls(config, models, search, memory, runs)

    async def ask(self, question: Question, reference: Reference | None = None, watch: Watch | None = None) -> Run:
        """Answer a question, remember the run, save it.

        Args:
            question: what is asked.
            reference: gold answers to judge by; the agent itself never sees them.
            watch: called with each event as it happens.

        Returns:
            The saved run; when something failed, with `failure` set and `answer` None.
        """
        transcript = Transcript()
        run_id, started = new_id(), time.monotonic()
        watch = watch or _ignore
        question = await self._captioned(question, transcript, watch)
        tools = self._driver.toolbox.specs
        episode = mia_episode(
            transcript, question, tools, self._agent, self._context, time.monotonic, recall=self.memory is not None
        )

        def record(outcome: Execution | Failure) -> Run:
            return _record(run_id, question, transcript, outcome, time.monotonic() - started)

        try:
            run = record(await self._driver.run(episode, watch))
        except MiaError as error:
            run = record(error.failure())
        except BaseException:  # Ctrl-C, a watcher whose terminal is gone: what was done is kept
            self.runs.save(record(INTERRUPTED))
            raise
        run = await self._save(run, watch)
        if run.failure is None:
            run = await self._save(await self._follow_up(run, reference, watch), watch)
        return run

    async def _save(self, run: Run, watch: Watch) -> Run:
        """Write the run's file; a run that cannot be written is still a run, and says so."""
        try:
            await asyncio.to_thread(self.runs.save, run)
        except DataError as error:
            watch(Degraded(failure=error.failure()))
            return run.model_copy(update={"degraded": (*run.degraded, error.failure())})
        return run

    async def _captioned(self, question: Question, transcript: Transcript, watch: Watch) -> Question:
        """The question with a description of its picture, if memory is to have one and it came without."""
        wanted = self.memory is not None and self.config.memory.caption
        if not wanted or not question.images or question.caption.strip():
            return question
        try:
            return question.model_copy(update={"caption": await caption(self.models["executor"], question)})
        except MiaError as error:
            transcript.degraded.append(error.failure())
            watch(Degraded(failure=error.failure()))
            return question

    async def _follow_up(self, run: Run, reference: Reference | None, watch: Watch) -> Run:
        degraded = list(run.degraded)
        judgement: Judgement | None = None
        added = None
        try:
            judgement = await self._judge(run, reference)
            if judgement is not None:
                watch(Judged(judgement=judgement))
        except MiaError as error:
            degraded.append(error.failure())
            watch(Degraded(failure=error.failure()))
        try:
            if self.memory is not None:
                added = await self._remember(self.memory, run, judgement or UNJUDGED)
                watch(Remembered(memory_id=added.id, action=added.action))
        except MiaError as error:
            degraded.append(error.failure())
            watch(Degraded(failure=error.failure()))
        return run.model_copy(update={"degraded": tuple(degraded), "judgement": judgement, "memory": added})

    async def _judge(self, run: Run, reference: Reference | None) -> Judgement | None:
        if reference is not None:
            return await judge(self.config.judge, run.question, run.answer, reference, self.models["judge"])
        if run.answer is None:
            return Judgement(correct=False, method="none")
        return None

    async def _remember(self, memory: MemoryStore, run: Run, judgement: Judgement) -> Added:
        """Credit the memories that were shown, if there is a verdict, and store the run."""
        if judgement.correct is not None and run.recalled_ids:
            await memory.credit(run.recalled_ids, judgement.correct, key=run.id)
        drafted = await prepare(run, judgement, self.config.memory.summary, self.models["manager"])
        (added,) = await memory.add([drafted])
        return added

    async def aclose(self) -> None:
        """Close models, search and memory."""
        distinct = {id(model): model for model in self.models.values()}
        await asyncio.gather(self.search.backend.aclose(), *(model.aclose() for model in distinct.values()))
        if self.memory is not None:
            await self.memory.aclose()


def _fitted(config: RunConfig, context: int) -> AgentConfig:
    """The agent's settings for a context window: a reply takes a quarter of it at most, so that turns are possible."""
    agent = config.agent
    limit = max(1, context // 4)
    shorter = {
        name: sampling.model_copy(update={"max_tokens": min(sampling.max_tokens, limit)})
        for name, sampling in (("executor", agent.executor), ("answer", agent.answer))
    }
    return agent.model_copy(update={**shorter, "tool_format": config.models.of("executor").tool_format})


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
