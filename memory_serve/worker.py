"""A thread that takes all jobs that wait and does them together: what makes many small calls as cheap as one big one.

While one group is being done the next one gathers, so nobody waits for a timer: alone, a job starts at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, TypeVar

J = TypeVar("J")
R = TypeVar("R")
T = TypeVar("T")
_MOST = 1024
"""Jobs in one group, at most."""
_Waiting = tuple[Any, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Worker(Generic[J, R]):
    """One thread over one function.

    Args:
        name: of the thread.
        work: does a group of jobs, in order; gives a result or an exception for each. What it raises, all get.
    """

    def __init__(self, name: str, work: Callable[[Sequence[J]], Sequence[R | BaseException]]) -> None:
        self._work = work
        self._waiting: list[_Waiting] = []
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, name)

    def call(self, function: Callable[..., T], *args: object) -> T:
        """Run a function on the thread and wait for it."""
        return self._pool.submit(function, *args).result()

    async def call_async(self, function: Callable[..., T], *args: object) -> T:
        """Run a function on the thread, after the jobs that wait."""
        return await asyncio.wrap_future(self._pool.submit(function, *args))

    async def do(self, job: J) -> R:
        """The result of one job. A caller who is cancelled does not stop it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        with self._lock:
            self._waiting.append((job, loop, future))
            if len(self._waiting) == 1:
                self._pool.submit(self._drain)
        return await future

    def stop(self) -> None:
        """End the thread after the jobs that wait; more than once is no fault."""
        self._pool.shutdown(wait=False)

    def _drain(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), _MOST):
            self._answer(waiting[start : start + _MOST])

    def _answer(self, group: Sequence[_Waiting]) -> None:
        results: Sequence[R | BaseException]
        try:
            results = self._work([job for job, _, _ in group])
        except BaseException as error:  # noqa: BLE001  # whoever waits must learn of it, whatever it is
            results = [error] * len(group)
        answers: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], R | BaseException]]] = {}
        for (_, loop, future), result in zip(group, results, strict=True):
            answers.setdefault(loop, []).append((future, result))
        for loop, pairs in answers.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(resolve, pairs)


def resolve(pairs: Iterable[tuple[asyncio.Future[Any], Any]]) -> None:
    """Give each of those who wait its result or its error; who has gone gets none."""
    for future, result in pairs:
        if future.done():
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)
