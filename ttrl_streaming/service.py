"""The core of the service that learns; knows no HTTP. Everything it was told is on disk before it says so.

Answers go through a gate of so many at once; each keeps the version of the weights it began with. Feedback is only
written down here: `ttrl_streaming.learning` works on it in the background.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.driver import Watch
from mia.errors import DataError, MiaError, ModelError, as_error, to_body
from mia.pictures import check_pictures
from mia.types import Question
from ttrl_streaming.answering import Answerer
from ttrl_streaming.learning import Learning, folder_of
from ttrl_streaming.records import Ask
from ttrl_streaming.reporting import curve_of, status_of
from ttrl_streaming.schema import (
    Answer,
    AskRequest,
    Curve,
    EpisodeItem,
    FeedbackItem,
    FlushAnswer,
    Status,
    Taken,
    VersionAnswer,
)
from ttrl_streaming.store import Store, Taking

_REFUSED: dict[str, tuple[str, str, int]] = {
    "unknown": ("nobody asked this", "send the id that the answer came with", 404),
    "unanswered": ("this is not answered yet", "send it again when the answer is there", 409),
    "contradicted": (
        "something else was said before, and was learned from or refused; memory holds nothing of it to correct",
        "nothing can be done for this answer; roll back if many were wrong", 409,
    ),
    "malformed": ("this cannot be read", "see /docs for the fields", 422),
}  # fmt: skip
_CODES = {"unknown": "not_found", "unanswered": "not_answered", "malformed": "bad_request"}
_REASONS = {
    "queued": "it is kept, and will be learned from",
    "known": "the same was sent before",
    "replaced": "it takes the place of what was said before",
    "remembered": "the weights have learned from what was said before; only memory is changed",
}


@dataclass
class Service:
    """See the module, and `ttrl_streaming.protocol.Streaming`.

    Attributes:
        out: folder of the run.
        store: the queue.
        answerer: answers.
        learning: works on feedback; `start` starts it.
        concurrency, waiting: questions that are worked on at once, and that may wait for it.
        limit: questions that are answered in all; 0: no limit.
        closing: what else is closed in the end, in order.
    """

    out: Path
    store: Store
    answerer: Answerer
    learning: Learning
    concurrency: int
    waiting: int
    limit: int = 0
    closing: Sequence[Any] = ()
    _working: dict[str, asyncio.Task[Ask]] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._room = asyncio.Semaphore(self.concurrency)

    async def start(self) -> None:
        """Wait until there are weights to answer with, then work on feedback in the background.

        Raises:
            MiaError: the process that trains cannot work.
        """
        if not folder_of(self.out, "", 0).is_dir():
            await self.learning.trainer.start()
        self._task = asyncio.create_task(self.learning.run())
        self._task.add_done_callback(_ended)

    @property
    def healthy(self) -> bool:
        """Whether questions are answered and feedback is worked on."""
        return self._task is not None and not self._task.done()

    # ------------------------------------------------------------------------------------------ answers

    async def ask(self, request: AskRequest, watch: Watch | None = None) -> Answer:
        """See `Streaming.ask`. An answer is worked on to its end, and kept, also when nobody waits for it any more.

        Args:
            request: the question.
            watch: called with each event, unless the same question is worked on already.
        """
        name = request.id or secrets.token_hex(12)
        if name not in self._working and len(self._working) >= self.concurrency + self.waiting:
            raise ModelError(
                f"{len(self._working)} questions wait already", remedy="ask again later", code="busy", retryable=True,
                status=429,
            )  # fmt: skip
        seed = (
            int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") if request.seed is None else request.seed
        )
        question = Question(id=name, text=request.question, images=request.images, caption=request.caption)
        await asyncio.to_thread(check_pictures, question)
        ask = Ask(id=name, namespace=request.namespace, question=question, seed=seed)
        if self.limit and await asyncio.to_thread(self.store.asked, name) >= self.limit:
            raise DataError(
                f"{self.limit} questions were answered, and no more are", remedy="raise streaming.limit", code="limit",
                status=403,
            )  # fmt: skip
        known = await asyncio.to_thread(self.store.begin, ask)
        if known is not None:
            self._same(known, ask)
            if known.state == "answered":
                return _shown(known)
        if name not in self._working:
            task = asyncio.create_task(self._work(ask, watch or _ignore))
            self._working[name] = task
            task.add_done_callback(lambda _: self._working.pop(name, None))
        return _shown(await asyncio.shield(self._working[name]))

    def _same(self, known: Ask, ask: Ask) -> None:
        if (known.namespace, known.question) != (ask.namespace, ask.question) or known.state == "elsewhere":
            raise DataError(
                f"the id {ask.id!r} was used for another question", remedy="leave id out, or give a new one",
                code="id_taken", status=409,
            )  # fmt: skip

    async def _work(self, ask: Ask, watch: Watch) -> Ask:
        started = time.monotonic()
        async with self._room:
            version = await asyncio.to_thread(self.store.version, ask.namespace)
            folder = folder_of(self.out, ask.namespace, version)
            try:
                async with self.answerer.weights.seat(ask.namespace, version, folder, ask.seed) as (seat, _):
                    rolled = await self.answerer.answer(ask.question, ask.namespace, seat, version, watch)
                failure = rolled.failure if rolled.run is None else None
            except MiaError as error:
                rolled, failure = None, error.failure()
        changes = {
            "state": "failed" if failure is not None else "answered", "version": version, "failure": failure,
            "rolled": None if failure is not None else rolled, "seconds": time.monotonic() - started,
        }  # fmt: skip
        done = ask.model_copy(update=changes)
        await asyncio.to_thread(self.store.answered, done)
        return done

    # ------------------------------------------------------------------------------------------ feedback

    async def feedback(self, items: Sequence[FeedbackItem | None]) -> list[Taken]:
        """See `Streaming.feedback`; None stands for an item that could not be read, and is counted."""
        taken = await asyncio.to_thread(self.store.take, items)
        self.learning.tell()
        return [_taken(item, what) for item, what in zip(items, taken, strict=True)]

    async def episodes(self, items: Sequence[EpisodeItem], namespace: str = "default") -> list[Taken]:
        """See `Streaming.episodes`."""
        await asyncio.to_thread(self._begin_elsewhere, items, namespace)
        return await self.feedback([FeedbackItem(id=item.id, correction=item.said) for item in items])

    def _begin_elsewhere(self, items: Sequence[EpisodeItem], namespace: str) -> None:
        for item in items:
            ask = Ask(
                id=item.id, namespace=namespace, question=Question(id=item.id, text=item.question), seed=0,
                state="elsewhere", elsewhere=item.answer,
            )  # fmt: skip
            known = self.store.begin(ask)
            if known is not None and (known.elsewhere, known.question) != (item.answer, ask.question):
                raise DataError(
                    f"the id {item.id!r} was used for something else", remedy="give a new one", code="id_taken",
                    status=409,
                )  # fmt: skip

    # ------------------------------------------------------------------------------------------ upkeep

    async def status(self, namespace: str = "default") -> Status:
        """See `Streaming.status`."""
        working = sum(1 for _ in self._working)
        return await asyncio.to_thread(status_of, self.store, self.learning, namespace, working)

    async def curve(self, namespace: str = "default") -> Curve:
        """See `Streaming.curve`."""
        return await asyncio.to_thread(curve_of, self.store, namespace)

    async def flush(self, namespace: str = "default") -> FlushAnswer:
        """See `Streaming.flush`."""
        settled = await self.learning.flush(namespace)
        found = await self.status(namespace)
        return FlushAnswer(settled=settled, queued=found.feedback["queued"], version=found.version)

    async def checkpoint(self, namespace: str = "default") -> VersionAnswer:
        """See `Streaming.checkpoint`."""
        async with self.learning.lock:
            version = await asyncio.to_thread(self.store.version, namespace)
            name = f"checkpoints/{namespace}-{version:06d}"
            place, part = self.out / name, self.out / f"{name}.part"
            if not place.is_dir():
                await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
                await asyncio.to_thread(shutil.copytree, folder_of(self.out, namespace, version), part)
                if self.learning.remembering is not None:
                    await self.learning.remembering.backup(part / "memory.db")
                await asyncio.to_thread(part.replace, place)
        return VersionAnswer(namespace=namespace, version=version, name=name)

    async def rollback(self, namespace: str = "default", version: int | None = None) -> VersionAnswer:
        """See `Streaming.rollback`."""
        async with self.learning.lock:
            current = await asyncio.to_thread(self.store.version, namespace)
            back = await asyncio.to_thread(self.store.parent, namespace, current) if version is None else version
            known = back is not None and (back == 0 or self.store.parent(namespace, back) is not None)
            if back is None or not known or not folder_of(self.out, namespace, back).is_dir():
                raise DataError(
                    f"there is no version {'before ' if version is None else ''}{current if version is None else back}",
                    remedy="`GET /v1/curve` lists the versions; streaming.keep of them are kept",
                    code="no_version", status=409,
                )  # fmt: skip
            await self.answerer.weights.take(namespace, back, folder_of(self.out, namespace, back))
            await asyncio.to_thread(self.store.serve, namespace, back)
        return VersionAnswer(namespace=namespace, version=back)

    async def aclose(self) -> None:
        """Let answers that are worked on end, then close everything; feedback waits on disk."""
        if self._working:
            await asyncio.wait(list(self._working.values()))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.learning.trainer.aclose()
        await self.answerer.weights.aclose()
        for each in self.closing:
            await each.aclose()
        self.store.close()


def _ended(task: asyncio.Task[None]) -> None:
    """Put in the log why the work on feedback ended, if not by the end of the service; it is ours to mend."""
    if not task.cancelled() and task.exception() is not None:
        about = {"message": "the work on feedback ended", "exception": task.exception(), "task": task}
        task.get_loop().call_exception_handler(about)


def _ignore(_: object) -> None:
    """Watch nothing."""


def _shown(ask: Ask) -> Answer:
    """An answer as it is given.

    Raises:
        MiaError: there is none.
    """
    if ask.failure is not None:
        raise as_error(ask.failure)
    assert ask.rolled is not None
    assert ask.rolled.run is not None
    run = ask.rolled.run
    return Answer(
        id=ask.id, namespace=ask.namespace, answer=run.answer, plan=run.plans[-1].text if run.plans else "",
        version=ask.version, stop_reason=run.stop_reason, recalled=run.recalled_ids, degraded=run.degraded,
        seconds=ask.seconds,
    )  # fmt: skip


def _taken(item: FeedbackItem | None, what: Taking) -> Taken:
    name = item.id if item is not None else ""
    if what in _REFUSED:
        message, remedy, status = _REFUSED[what]
        error = DataError(f"{name}: {message}", remedy=remedy, code=_CODES.get(what, what), status=status)
        return Taken(id=name, error=to_body(error), reason=what)
    return Taken.model_validate({"id": name, "outcome": what, "reason": _REASONS[what]})
