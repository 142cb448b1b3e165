"""The runner: asks all questions of a dataset in a fixed order, and can be killed at any moment.

With read-only memory, questions are independent and worked on `concurrency` at once. With online memory they come in
batches: the questions of a batch are answered at once by memory as it stood before; when all their rows are on disk,
memory learns from them one after the other, in order. So no answer depends on timing, on its own label or on later
questions, and a run that is resumed gives what an uninterrupted one gives: learning a run twice is learning it once.

    answer, trajectory written, judge, row written      for each question of the batch; then all is on disk
    learn, entry written                                for each run of the batch that did not fail, in order

A question whose run failed, or had to do without memory or a model that did not answer, is asked again on resume,
unless memory has learned since: the new answer would know too much. A row whose judge did not answer is judged again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from inference.agent import Agent
from inference.evaluation.answering import Answerer, Here, placed
from inference.evaluation.circuit import Circuit, ended
from inference.evaluation.config import EvalConfig
from inference.evaluation.folder import RunFolder
from inference.evaluation.row import Item, Learned, Row, make_row
from inference.runs import Run
from mia.errors import ConfigError, MiaError
from mia.types import Failure, Usage


class Runner:
    """One run.

    Args:
        config: the run's config.
        items: the questions of each repeat, in order.
        folder: where everything is kept.
        open_answerer: opens who answers a repeat, by the config of that repeat.
        watch: called with each row that is done, those of an earlier start included.
    """

    def __init__(
        self,
        config: EvalConfig,
        items: Sequence[Sequence[Item]],
        folder: RunFolder,
        open_answerer: Callable[[EvalConfig], Answerer],
        watch: Callable[[Row], None] = lambda row: None,
    ) -> None:
        self._config = config
        self._items = items
        self._folder = folder
        self._open = open_answerer
        self._watch = watch
        self._circuit = Circuit(config.eval.failures)
        self._writes: list[asyncio.Future[None]] = []

    async def run(self) -> None:
        """Ask what has not been asked yet.

        Raises:
            MiaError: the run could not go on; what was done is kept, and a new start goes on from there.
        """
        for repeat, items in enumerate(self._items):
            if all(map(self._done, items)) and (not self._config.learns or self._memory_file(repeat).is_file()):
                for item in items:
                    self._watch(self._folder.rows[item.run])
                continue
            answerer = self._open(placed(self._config, self._folder.path, repeat))
            try:
                await self._repeat(answerer, items, repeat)
            finally:
                await answerer.aclose()

    def _done(self, item: Item) -> bool:
        """Whether nothing is left to do for a question."""
        row = self._folder.rows.get(item.run)
        if row is None or row.judge_failed or _broken(row):
            return False
        return not self._config.learns or item.run in self._folder.learned

    def _memory_file(self, repeat: int) -> Path:
        suffix = f"-{repeat}" if len(self._items) > 1 else ""
        return self._folder.path / f"memory{suffix}.jsonl"

    async def _repeat(self, answerer: Answerer, items: Sequence[Item], repeat: int) -> None:
        memory = answerer.agent if self._config.learns and isinstance(answerer, Here) else None
        size = self._config.eval.together if memory else max(1, len(items))
        batches = [items[start : start + size] for start in range(0, len(items), size)]
        learned = [n for n, batch in enumerate(batches) if any(item.run in self._folder.learned for item in batch)]
        for number, batch in enumerate(batches):
            again = not learned or number > learned[-1]
            await self._batch(answerer, memory, batch, again)
        await self._written()
        if memory is not None and memory.method is not None:
            entries = await memory.method.dump()
            text = "".join(f"{json.dumps(entry, ensure_ascii=False, sort_keys=True)}\n" for entry in entries)
            self._folder.write(self._memory_file(repeat).name, text)

    async def _batch(self, answerer: Answerer, memory: Agent | None, batch: Sequence[Item], again: bool) -> None:
        runs: dict[str, Run] = {}

        async def work(item: Item) -> None:
            kept = self._folder.rows.get(item.run)
            redo = again and kept is not None and (_broken(kept) or item.run not in self._folder.traces)
            if kept is not None and not kept.judge_failed and not redo:
                self._watch(kept)
                return
            run = await self._one(answerer, item, redo)
            if memory is not None:
                runs[item.run] = run

        await self._each(batch, work)
        if memory is None:
            return
        if again:
            await self._ready(answerer, batch, runs)
        for item in batch:
            if item.run not in self._folder.learned:
                entry = await self._learn(memory, item, runs.get(item.run))
                if entry is not None:
                    self._later(self._folder.add_learned(entry))  # what is lost of these is learned again

    async def _ready(self, answerer: Answerer, batch: Sequence[Item], runs: dict[str, Run]) -> None:
        """Make sure that memory may learn from a batch: once it has, nothing of the batch can be asked again.

        Raises:
            MiaError: the judge does not answer, or something died while the batch was worked on.
        """
        for item in batch:
            if self._folder.rows[item.run].judge_failed:
                runs[item.run] = await self._one(answerer, item, redo=False)
                await self._written()
                row = self._folder.rows[item.run]
                for failure in (row.unjudged, row.no_feedback):
                    if failure is not None and failure.retryable:
                        raise ended(failure, "memory cannot learn without a verdict")
        sound = [item for item in batch if not _broken(self._folder.rows[item.run])]
        if sound and self._circuit.tense:
            # The last ones failed. Either these questions are to blame, or all that come next will fail too; a question
            # that was answered before tells. Its second answer is thrown away.
            failures = _failures(await answerer.answer(sound[0]))
            self._circuit.note([])
            if failures:
                raise ended(failures[0], "a question that was answered before fails now")

    async def _each(self, items: Sequence[Item], work: Callable[[Item], Awaitable[None]]) -> None:
        """Work on items, `concurrency` at once and in order; the first error ends all."""
        rest = iter(items)

        async def worker() -> None:
            for item in rest:
                await work(item)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._config.eval.concurrency, len(items))):
                    group.create_task(worker())
        except* MiaError as errors:
            first = errors.exceptions[0]
            raise first from first.__cause__
        await self._written()

    def _later(self, write: asyncio.Future[None]) -> None:
        """Nobody waits for a write by itself; one that failed ends the run at the next.

        Raises:
            DataError: an earlier one failed.
        """
        done = [earlier for earlier in self._writes if earlier.done()]
        self._writes = [*(earlier for earlier in self._writes if not earlier.done()), write]
        for earlier in done:
            earlier.result()

    async def _written(self) -> None:
        """Wait until all is on disk."""
        writes, self._writes = self._writes, []
        for write in writes:
            await write

    async def _one(self, answerer: Answerer, item: Item, redo: bool) -> Run:
        """One question: answered, unless that is done, and judged; its row is on disk."""
        answered = None if redo or item.run not in self._folder.traces else self._folder.load_run(item)
        if answered is None or answered.failure is not None:
            answered = await answerer.answer(item)
            self._same_models(answered)
            self._later(self._folder.add_run(answered))
        run = answered if answered.failure is not None else await answerer.judge(item, answered)
        row = make_row(item, run, answered, self._config)
        self._later(self._folder.add_row(row))
        self._watch(row)
        self._circuit.note(_failures(answered))
        return run

    def _same_models(self, answered: Run) -> None:
        """Refuse an answer of other models than those that began the run: an endpoint may list another one by now.

        Raises:
            ConfigError: code `other_run`; the answer is not kept.
        """
        for step in answered.steps:
            if step.reply is None or not step.reply.model:
                continue
            begun = self._folder.models.get(step.role)
            if begun is not None and step.reply.model not in begun:
                former = ", ".join(sorted(begun))
                raise ConfigError(
                    f"the {step.role} that began the run was {former}; now {step.reply.model} answers",
                    remedy=f"serve the former model, set models.{step.role}.model, or give another --out",
                    code="other_run",
                )

    async def _learn(self, agent: Agent, item: Item, run: Run | None) -> Learned | None:
        """Let memory learn from a run that did not fail; None for one that did.

        Raises:
            MiaError: memory is out of order; what it missed is learned on resume.
        """
        row = self._folder.rows[item.run]
        if row.failure is not None:
            return None
        if run is None:
            verdicts = {"judgement": row.judgement, "feedback": row.feedback}
            run = self._folder.load_run(item).model_copy(update=verdicts)
        after = await agent.learn(run)
        failure = after.degraded[-1] if len(after.degraded) > len(run.degraded) else None
        if failure is not None and (failure.boundary == "memory" or failure.retryable):
            raise ended(failure, "memory cannot learn")
        usage = agent.meter.take() if agent.meter else Usage()
        return Learned(run=item.run, added=after.memory, failure=failure, usage=usage)


def _broken(row: Row) -> bool:
    """Whether a row is worth another try: it failed, or memory or a model that it could do without did not answer."""
    return row.failure is not None or bool({"memory", "model"} & set(row.degraded))


def _failures(answered: Run) -> list[Failure]:
    """What of a run counts for the circuit."""
    if answered.failure is not None:
        return [answered.failure]
    return [failure for failure in answered.degraded if failure.boundary in ("memory", "model")]


def open_here(config: EvalConfig) -> Here:
    """The agent of a config, in this process. Raises MiaError: see `Agent.open`."""
    return Here(Agent.open(config))
