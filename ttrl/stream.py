"""The stream: questions in a fixed order, batch by batch; predict, then learn. It can be killed at any moment.

    recall                  for each question, by memory as it stood before the batch
    play                    n rollouts of each, by the weights as they stood before it
    choose                  the official answer, by a rule fixed before the run
    record                  rollouts, choice and answers are on disk: from here on nothing of the batch is asked again
    judge, record           verdicts and rewards, and one row for each question
    memory, weights         learn, in this order
    checkpoint              both of them, with how far the stream is

So no answer depends on its own label or on later ones. A resumed run goes back to the last checkpoint, takes what was
recorded since, and comes to the same predictions. A question of which all rollouts failed is a row with a failure; when
the same thing fails for many questions in a row, the run ends before it records them, and asks them again on resume.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from executor_train.game import Row as Given
from executor_train.record import TrainingRecord, base_of, dataset_of
from executor_train.training import save
from inference.datasets import Dataset
from inference.evaluation.circuit import Circuit, ended
from inference.evaluation.folder import RunFolder, open_folder, write_file
from inference.evaluation.row import Item, Learned, Row, make_row
from inference.evaluation.stream import stream
from inference.methods.mia import MiaMethod
from inference.runs import Run
from local_search.protocol import Encoder
from memory_serve.open import open_file
from memory_serve.store import SqliteMemory
from mia import __version__
from mia.chat import ChatModel
from mia.chat.metered import Metered
from mia.errors import ConfigError, MiaError
from mia.types import Failure, Role, Usage
from planner_train.game import PlannerGame
from planner_train.rows import recalled_rows
from ttrl.checkpoint import MEMORY, Checkpoints, Cursor, restore_memory
from ttrl.choice import candidates, choose
from ttrl.config import TtrlConfig
from ttrl.consolidate import lessons
from ttrl.feedback import Scorer
from ttrl.learner import Learner, withheld
from ttrl.records import Asked, BatchFiles, Rolled, Scored

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a stream works with; its owner closes it.

    Attributes:
        learner: the Planner.
        game: gives verdicts by the reference.
        models: `judge` (also the panel), `router`, `manager`, where they are needed.
        encoder: of the memory.
        command: how the run was started, for the record of what was trained.
    """

    learner: Learner
    game: PlannerGame
    models: Mapping[Role, ChatModel]
    encoder: Encoder
    command: str = "mia ttrl"


@dataclass(frozen=True, slots=True)
class Batch:
    """Some questions of one epoch."""

    epoch: int
    items: Sequence[Item]


class Plan:
    """What a run asks, and where it is kept; opens nothing heavy.

    Args:
        config: the settled config.
        dataset: what was read.
        out: folder of the run.
    """

    def __init__(self, config: TtrlConfig, dataset: Dataset, out: Path) -> None:
        self.config = config
        self.dataset = dataset
        self.out = out
        self.checkpoints = Checkpoints(out / "checkpoints")
        section = config.eval.model_copy(update={"repeats": config.learn.epochs})
        self.epochs = stream(dataset, section)
        size = config.eval.together
        self.batches = [
            Batch(epoch, items[start : start + size])
            for epoch, items in enumerate(self.epochs)
            for start in range(0, len(items), size)
        ]

    @property
    def steps(self) -> int:
        """Updates of the weights, at most; 0: they are not changed."""
        return len(self.batches) if self.config.learn.weights else 0

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        learn = self.config.learn
        done = self.checkpoints.cursor().done == len(self.batches)
        remembered = learn.memory == "off" or (self.out / "memory.jsonl").is_file()
        return done and remembered and (not learn.weights or (self.out / "final").is_dir())

    def folder(self, epoch: int) -> Path:
        """The folder of an epoch; it is one of `mia eval`."""
        return self.out / f"epoch-{epoch + 1}"

    def open_folders(self, resume: bool) -> list[RunFolder]:
        """Open the folders of all epochs.

        Raises:
            ConfigError: there is a run already, or another one.
            DataError: they cannot be written, or are open in another process.
        """
        if not resume and any((self.out / name).exists() for name in ("batches", "checkpoints")):
            raise ConfigError(f"{self.out} holds a run already", remedy="go on with --resume, or give another --out")
        numbers = range(len(self.epochs))
        return [open_folder(self.folder(epoch), self.config, self.dataset, resume) for epoch in numbers]


class Stream:
    """One run; see the module.

    Args:
        plan: what is asked.
        folders: of its epochs.
        parts: what is worked with.
        watch: called with each row that is done, those of an earlier start included.
    """

    def __init__(
        self,
        plan: Plan,
        folders: Sequence[RunFolder],
        parts: Parts,
        watch: Callable[[Row], None] = lambda row: None,
    ) -> None:
        self._plan = plan
        self._config = plan.config
        self._folders = folders
        self._learner = parts.learner
        self._parts = parts
        self._watch = watch
        self._scorer = Scorer(plan.config, parts.game, parts.models.get("judge", _nobody))
        self._circuit = Circuit(plan.config.eval.failures)
        self._meter = Metered(parts.models.get("manager", _nobody))
        self._store: SqliteMemory | None = None

    def run(self) -> None:
        """Ask and learn what has not been yet.

        Raises:
            MiaError: the run could not go on; what was done is kept, and a new start goes on from there.
        """
        done = self._begin()
        try:
            for batch in self._plan.batches[:done]:
                for item in batch.items:
                    self._watch(self._folders[batch.epoch].rows[item.run])
            for number in range(done, len(self._plan.batches)):
                self._batch(number)
            self._end()
        finally:
            if self._store is not None:
                self._wait(self._store.aclose())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        result: T = self._learner.run(work)
        return result

    def _begin(self) -> int:
        """Go back to the last checkpoint; gives the batches that are done."""
        last = self._plan.checkpoints.last
        if self._config.learn.weights and last is not None:
            self._learner.load(last)
        if self._config.memory.enabled:
            path, begun = self._plan.out / MEMORY, self._start_memory()
            restore_memory(path, last / MEMORY if last is not None and (last / MEMORY).is_file() else begun)
            settings = self._config.memory.model_copy(update={"path": path})
            self._store = open_file(settings, self._parts.encoder, self._meter).scoped(actor="ttrl")
        return self._plan.checkpoints.cursor().done

    def _start_memory(self) -> Path | None:
        """A copy of the memory that the config names, made once, so that a resumed run begins with the same."""
        if "path" not in self._config.memory.model_fields_set:
            return None
        copy = self._plan.out / "start.db"
        if not copy.is_file():
            if not self._config.memory.path.is_file():
                raise ConfigError(
                    f"memory.path: there is no {self._config.memory.path}", remedy="leave it out, or mend it"
                )
            restore_memory(copy, self._config.memory.path)
        return copy

    def _batch(self, number: int) -> None:
        """One batch, from recalling to the checkpoint."""
        batch, files = self._plan.batches[number], BatchFiles(self._plan.out / "batches", number)
        folder, learn = self._folders[batch.epoch], self._config.learn
        asked = files.played() or self._play(batch, files)
        self._wait(self._answer(folder, batch, asked))
        scored = files.scored() or self._wait(self._score(batch, asked, files))
        self._wait(self._record(folder, batch, asked, scored))
        if learn.memory == "online":
            self._wait(self._remember(folder, batch, asked, scored))
        if learn.weights:
            rewards = [[verdict.reward for verdict in each.verdicts] for each in scored]
            files.keep_step(self._learner.update([each.rolled for each in asked], rewards))
        changed = self._store if learn.memory == "online" else None
        cursor = Cursor(done=number + 1, version=self._learner.version)
        self._wait(self._plan.checkpoints.save(cursor, self._learner if learn.weights else None, changed))

    def _end(self) -> None:
        """Write what was learned: the memory without what differs between runs alike, and the weights."""
        if self._store is not None:
            entries = self._wait(MiaMethod(self._store).dump())
            text = "".join(f"{json.dumps(entry, ensure_ascii=False, sort_keys=True)}\n" for entry in entries)
            write_file(self._plan.out / "memory.jsonl", text)
        if self._config.learn.weights:
            policy, dataset = self._config.policy, self._config.dataset
            record = TrainingRecord(
                command=self._parts.command, role="planner", method="GRPO", base=base_of(policy),
                dataset=dataset_of(dataset), seed=self._learner.trainer.args.seed,
            )  # fmt: skip
            save(self._learner.trainer, self._plan.out, record)

    # ------------------------------------------------------------------------------------------ predict

    def _play(self, batch: Batch, files: BatchFiles) -> list[Asked]:
        n = self._config.learn.n
        rows = self._wait(self._rows(batch))
        seeds = [self._seed(batch.epoch, item, place) for item in batch.items for place in range(n)]
        rolled = self._learner.play([row for row in rows for _ in range(n)], seeds)
        groups = [rolled[start : start + n] for start in range(0, len(rolled), n)]
        asked = self._wait(self._choose(batch, [_named(*pair) for pair in zip(batch.items, groups, strict=True)]))
        for question in asked:
            why = question.official.failure if question.chosen is None else question.unchosen
            self._circuit.note([] if why is None else [why])
        files.keep_played(asked)
        return asked

    async def _rows(self, batch: Batch) -> list[Given]:
        """What is asked, with what memory has to say to it, and without any reference."""
        rows = [withheld(item.example.question) for item in batch.items]
        return rows if self._store is None else await recalled_rows(rows, self._store, self._config.memory.k)

    def _seed(self, epoch: int, item: Item, place: int) -> int:
        """The same for all arms of an ablation, so that they differ by what they learned only."""
        seeds = f"{self._learner.trainer.args.seed}/{self._config.eval.seed}"
        name = f"{seeds}/{epoch}/{item.example.question.id}/{place}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")

    async def _choose(self, batch: Batch, groups: Sequence[tuple[Rolled, ...]]) -> list[Asked]:
        learn, made = self._config.learn, []
        for item, rolled in zip(batch.items, groups, strict=True):
            question = item.example.question
            shown = self._store is not None and learn.policy == "router" and learn.pairs > 0
            pairs = await self._store.pairs(question, learn.pairs) if shown and self._store is not None else []
            router = self._parts.models.get("router")
            chosen, why = await choose(learn.policy, question, candidates(rolled), pairs, router)
            made.append(Asked(id=question.id, rolled=rolled, chosen=chosen, unchosen=why))
        return made

    async def _answer(self, folder: RunFolder, batch: Batch, asked: Sequence[Asked]) -> None:
        """Record the official answers."""
        for item, question in zip(batch.items, asked, strict=True):
            if item.run not in folder.traces:
                await folder.add_run(_official(item, question))

    # ------------------------------------------------------------------------------------------ learn

    async def _score(self, batch: Batch, asked: Sequence[Asked], files: BatchFiles) -> list[Scored]:
        scored = await self._scorer.score(asked, [item.example for item in batch.items])
        for question, each in zip(asked, scored, strict=True):
            failures = each.verdicts[question.chosen or 0].failures
            self._circuit.note(failure for failure in failures if failure.boundary != "judge")
        files.keep_scored(scored)
        return scored

    async def _record(self, folder: RunFolder, batch: Batch, asked: Sequence[Asked], scored: Sequence[Scored]) -> None:
        """One row for each question."""
        for item, question, each in zip(batch.items, asked, scored, strict=True):
            if item.run not in folder.rows:
                answered, verdict = _official(item, question), each.verdicts[question.chosen or 0]
                changes = {"judgement": verdict.judgement, "feedback": verdict.feedback}
                degraded = (*answered.degraded, *verdict.failures)
                judged = answered.model_copy(update={**changes, "degraded": degraded})
                await folder.add_row(make_row(item, judged, answered, self._config))
            self._watch(folder.rows[item.run])

    async def _remember(
        self, folder: RunFolder, batch: Batch, asked: Sequence[Asked], scored: Sequence[Scored]
    ) -> None:
        """Commit the batch to memory, in order.

        Raises:
            MiaError: memory is out of order; it is gone back to the checkpoint on resume.
        """
        assert self._store is not None
        method = MiaMethod(self._store, self._config.memory.summary, self._meter)
        for item, question, each in zip(batch.items, asked, scored, strict=True):
            entry = Learned(run=item.run)
            for run, judgement in lessons(question, each.verdicts, self._config.learn.feedback):
                try:
                    added = await method.learn(run, judgement)
                except MiaError as error:
                    failure = error.failure()
                    if failure.boundary == "memory" or failure.retryable:
                        raise ended(failure, "memory cannot learn") from error
                    entry = entry.model_copy(update={"failure": failure})
                else:
                    entry = entry.model_copy(update={"added": entry.added or added})
            usage: Usage = self._meter.take()
            await folder.add_learned(entry.model_copy(update={"usage": usage}))


class _Nobody:
    """Stands for a model that the settings do not need."""

    name, context = "none", 1

    async def generate(self, *_: Any, **__: Any) -> Any:
        raise ConfigError("a model was asked that these settings do not open")

    async def aclose(self) -> None:
        """Nothing to free."""


_nobody = _Nobody()


def _named(item: Item, group: Sequence[Rolled]) -> tuple[Rolled, ...]:
    """The rollouts of a question with ids of their own."""
    return tuple(
        rolled
        if rolled.run is None
        else rolled.model_copy(update={"run": rolled.run.model_copy(update={"id": f"{item.run}.{place}"})})
        for place, rolled in enumerate(group)
    )


def _official(item: Item, asked: Asked) -> Run:
    """The run of a question's official answer, before it is judged; or the record that there is none."""
    run, failure = asked.official.run, asked.official.failure
    if run is None:
        missing = Failure(boundary="model", code="not_played", message="nothing was played")
        return Run(id=item.run, version=__version__, question=item.example.question, stop_reason="failed",
                   failure=failure or missing)  # fmt: skip
    degraded = run.degraded if asked.unchosen is None else (*run.degraded, asked.unchosen)
    return run.model_copy(update={"id": item.run, "version": __version__, "degraded": degraded})
