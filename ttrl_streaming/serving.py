"""The weights that answer: several versions of one Planner, of which each answer keeps the one it began with.

One worker thread owns the model. Requests of one version that wait together are decoded as one batch, by the engine of
serving (`mia.chat.engine`); between two batches a new version may come and an old one, when nobody uses it any more,
may go. Each version has an engine of its own, so that what one has read (its prefix cache) is never shown to another.
LoRA adapters share their base model; where all weights are trained, each version is a model of its own. Left out: how
weights are trained, and which version is the right one.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor_train.waves import Seat, Turn
from mia.chat.engine import Engine, Job, input_major
from mia.chat.template import Template
from mia.errors import MiaError, ModelError
from mia.types import Reply

if TYPE_CHECKING:
    from executor_train.rollout import Rollout

Key = tuple[str, int]
"""A namespace and a version of it."""


@dataclass
class _Work:
    """Something for the worker to do between batches."""

    do: Any
    future: Future[Any]


class Served:
    """One version, as a seat knows its model (see `executor_train.waves.Turns`)."""

    def __init__(self, weights: Weights, key: Key, engine: Engine) -> None:
        self.sampler = self
        self.name = engine.name
        self.context = engine.context
        self.template: Template = engine.template
        self.ends = frozenset(engine.ends)
        self.version = key[1]
        self._weights = weights
        self._key = key

    async def turn(self, seat: int, turn: Turn) -> Reply:
        """See `Turns.turn`."""
        return await self._weights.sample(self._key, Job(turn.messages, turn.sampling, given=turn.ids))


class Weights:
    """See the module.

    Args:
        base: the model that adapters are put on, as a checkpoint; unused where versions are whole models.
        adapters: whether versions are adapters.
        dtype: of the weights.
        context: window in tokens.
        batch: requests that are decoded at once, at most.
    """

    def __init__(self, base: str, adapters: bool, dtype: str, context: int, batch: int) -> None:
        self._base = base
        self._adapters = adapters
        self._dtype = dtype
        self._context = context
        self._batch = batch
        self._queue: queue.Queue[tuple[Key, Job] | _Work | None] = queue.Queue()
        self._engines: dict[Key, Engine] = {}
        self._users: dict[Key, int] = {}
        self._current: dict[str, int] = {}
        self._peft: Any = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="mia-planner", daemon=True)
        self._thread.start()

    @asynccontextmanager
    async def seat(self, namespace: str, version: int, folder: Path, seed: int) -> AsyncIterator[tuple[Seat, Served]]:
        """A seat at a version, for one answer; the version stays until the seat is given back.

        Args:
            namespace, version: which.
            folder: where it is, if it is not loaded yet.
            seed: of all that is sampled.
        """
        key = namespace, version
        self._users[key] = self._users.get(key, 0) + 1
        self._current.setdefault(namespace, version)
        try:
            engine = await self._ask(lambda: self._open(key, folder))
            served = Served(self, key, engine)
            yield Seat(served, 0, seed), served
        finally:
            self._users[key] -= 1
            if not self._closed:
                self._queue.put(_Work(self._tidy, Future()))

    async def take(self, namespace: str, version: int, folder: Path) -> None:
        """Load a version ahead of the first question that is answered by it.

        Raises:
            ModelError: it cannot be read.
        """
        await self._ask(lambda: self._open((namespace, version), folder))
        self._current[namespace] = version
        await self._ask(self._tidy)

    def finished(self, seat: Seat, limit: int) -> Rollout:
        """The tokens of a seat's conversation, the end beyond the limit cut off."""
        return seat.conversation.finished(limit)

    async def sample(self, key: Key, job: Job) -> Reply:
        """Have a job done by a version that somebody sits at."""
        self._put((key, job))
        return await asyncio.wrap_future(job.future)

    @property
    def loaded(self) -> list[Key]:
        """The versions in memory."""
        return sorted(self._engines)

    async def aclose(self) -> None:
        """Stop the worker and free the model."""
        self._closed = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _put(self, work: tuple[Key, Job] | _Work) -> None:
        if self._closed or not self._thread.is_alive():
            raise ModelError("the Planner was closed", remedy="start the service again", code="closed")
        self._queue.put(work)

    async def _ask(self, do: Any) -> Any:
        work = _Work(do, Future())
        self._put(work)
        return await asyncio.wrap_future(work.future)

    # ------------------------------------------------------------------------------------------ the worker

    def _work(self) -> None:
        waiting: dict[Key, list[Job]] = {}
        try:
            while True:
                ended = self._receive(waiting)
                for key in [key for key, jobs in waiting.items() if jobs]:
                    jobs, waiting[key] = waiting[key][: self._batch], waiting[key][self._batch :]
                    self._run(key, jobs)
                if ended:
                    return
        finally:  # whatever ended the worker, nobody waits for ever
            left = [job for jobs in waiting.values() for job in jobs]
            while not self._queue.empty():
                work = self._queue.get()
                if isinstance(work, _Work):
                    _fail(work.future, ModelError("the Planner was closed", code="closed"))
                elif work is not None:
                    left.append(work[1])
            for job in left:
                job.settle(ModelError("the Planner was closed", remedy="start the service again", code="closed"))

    def _receive(self, waiting: dict[Key, list[Job]]) -> bool:
        """Take what has come; waits only when there is nothing to do. Gives whether the end has come."""
        first = not any(waiting.values())
        while True:
            try:
                work = self._queue.get(timeout=None if first else 0.005)
            except queue.Empty:
                return False
            first = False
            if work is None:
                return True
            if isinstance(work, _Work):
                self._do(work)
                first = not any(waiting.values())
            else:
                waiting.setdefault(work[0], []).append(work[1])
                if sum(map(len, waiting.values())) >= self._batch:
                    return False

    def _do(self, work: _Work) -> None:
        try:
            result = work.do()
        except (MiaError, RuntimeError, ValueError, TypeError, KeyError, OSError, ImportError) as error:
            _fail(work.future, error if isinstance(error, MiaError) else _explained(error))
        else:
            with contextlib.suppress(Exception) if work.future.cancelled() else contextlib.nullcontext():
                work.future.set_result(result)

    def _run(self, key: Key, jobs: list[Job]) -> None:
        try:
            if self._peft is not None:
                self._peft.set_adapter(_name(key))
            self._engines[key].run(jobs)
        except (MiaError, RuntimeError, ValueError, TypeError, KeyError) as error:
            failed = error if isinstance(error, MiaError) else _explained(error)
            for job in jobs:
                job.settle(failed)

    def _open(self, key: Key, folder: Path) -> Engine:
        if key in self._engines:
            return self._engines[key]
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = self._adapted(key, folder) if self._adapters else self._model(str(folder))
        engine = Engine(model, tokenizer, "policy", self._context, None, self._context * 4)
        self._engines[key] = engine
        return engine

    def _model(self, place: str) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = AutoModelForCausalLM.from_pretrained(place, dtype=self._dtype).to(device).eval()
        if device == "cpu":
            input_major(model)
        return model

    def _adapted(self, key: Key, folder: Path) -> Any:
        from peft import PeftModel

        if self._peft is None:
            self._peft = PeftModel.from_pretrained(self._model(self._base), folder, adapter_name=_name(key)).eval()
        else:
            self._peft.load_adapter(folder, adapter_name=_name(key))
            self._peft.eval()
        return self._peft.get_base_model()

    def _tidy(self) -> None:
        """Let versions go that nobody uses and that do not serve; one adapter stays, to hold the base model."""
        for key in list(self._engines):
            if not self._users.get(key) and self._current.get(key[0]) != key[1] and len(self._engines) > 1:
                del self._engines[key]
                self._users.pop(key, None)
                if self._peft is not None:
                    self._peft.set_adapter(_name(next(iter(self._engines))))  # the active one cannot be taken away
                    self._peft.delete_adapter(_name(key))


def _name(key: Key) -> str:
    """What PEFT calls a version: no dots, which it takes for a path."""
    return f"{key[0].encode().hex()}_{key[1]}"


def _explained(error: Exception) -> ModelError:
    return ModelError(
        f"the Planner: {type(error).__name__}: {error}",
        remedy="if memory ran out, lower rollout.batch or streaming.concurrency; else restore the version's folder",
    )


def _fail(future: Future[Any], error: MiaError) -> None:
    if not future.done():
        future.set_exception(error)
