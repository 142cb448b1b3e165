"""Questions spread over a Ray cluster: `mia eval --engine ray`, with read-only memory.

Each actor is a process with an agent of its own; the runner, and everything that is written, stays here. So the files
are those of one process, and a run that was killed goes on in the same way, on the cluster or without it. What the
config names (index, memory, checkpoints) must be at the same path, or the same address, on all machines, and this
package must be installed on each. Left out: online memory, which learns in one place, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from inference.agent import Agent
from inference.evaluation.answering import Here
from inference.evaluation.config import EvalConfig
from inference.evaluation.row import Item
from inference.runs import Run
from local_search.cluster import connected
from mia.errors import DataError, MiaError
from mia.extras import need

_Outcome = tuple[Any, MiaError | None]
"""A result, or the error to raise for it, which Ray would wrap."""


class OnRay:
    """An `Answerer` that asks actors, in turn.

    Args:
        config: what each actor opens its agent by.
        address: of the cluster's head; empty: RAY_ADDRESS, else one on this machine, else one that is started here.

    Raises:
        ConfigError: Ray is missing (code `missing_extra`), or the cluster cannot be reached (`no_cluster`).
        MiaError: an agent cannot be opened.
    """

    def __init__(self, config: EvalConfig, address: str = "") -> None:
        ray = need("ray", "cluster")
        self._open = ExitStack()
        self._lost = ray.exceptions.RayError
        self._turn = 0
        try:
            self._open.enter_context(connected(ray, address))
            count = config.eval.actors or max(1, int(ray.cluster_resources().get("CPU", 1)))
            kind = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_Worker)
            self._actors = [kind.remote(config) for _ in range(count)]
            for actor in self._actors:
                self._open.callback(ray.kill, actor)
            for outcome in ray.get([actor.open.remote() for actor in self._actors]):
                _value(outcome)
        except self._lost as error:
            self._open.close()
            raise _died(error) from error
        except BaseException:
            self._open.close()
            raise

    async def answer(self, item: Item) -> Run:
        """See `Answerer`."""
        run: Run = await self._ask(lambda actor: actor.answer.remote(item))
        return run

    async def judge(self, item: Item, run: Run) -> Run:
        """See `Answerer`."""
        judged: Run = await self._ask(lambda actor: actor.judge.remote(item, run))
        return judged

    async def aclose(self) -> None:
        """See `Answerer`."""
        await asyncio.to_thread(self._open.close)

    async def _ask(self, call: Callable[[Any], Awaitable[_Outcome]]) -> Any:
        self._turn = (self._turn + 1) % len(self._actors)
        try:
            return _value(await call(self._actors[self._turn]))
        except self._lost as error:
            raise _died(error) from error


class _Worker:
    """What an actor is: an agent of its own, asked for many questions at once."""

    def __init__(self, config: EvalConfig) -> None:
        self._config = config

    async def open(self) -> _Outcome:
        try:
            self._here = Here(Agent.open(self._config))
        except MiaError as error:
            return None, _plain(error)
        return None, None

    async def answer(self, item: Item) -> _Outcome:
        return await _outcome(self._here.answer(item))

    async def judge(self, item: Item, run: Run) -> _Outcome:
        return await _outcome(self._here.judge(item, run))


async def _outcome(work: Awaitable[Run]) -> _Outcome:
    try:
        return await work, None
    except MiaError as error:
        return None, _plain(error)


def _plain(error: MiaError) -> MiaError:
    """The error without its cause, which other processes may not know."""
    error.__cause__ = None
    return error.with_traceback(None)


def _value(outcome: _Outcome) -> Any:
    value, error = outcome
    if error is not None:
        raise error
    return value


def _died(error: Exception) -> DataError:
    return DataError(
        f"Ray lost an agent: {str(error).strip().splitlines()[-1]}",
        remedy="look at the machines' logs, then go on with --resume",
        code="worker_died",
    )
