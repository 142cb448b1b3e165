"""Answers each call once: from the cache, from the same call that is under way, or by making it. Replay only reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from mia.errors import ToolError
from web_tools.cache import Cache, key_of


class Answer(NamedTuple):
    """A JSON value, and whether nothing had to be asked for it."""

    value: Any
    cached: bool


class Memo:
    """A cache that is filled by the calls made through it.

    Args:
        cache: keeps the answers.
        replay: answer from the cache alone.
    """

    def __init__(self, cache: Cache, replay: bool) -> None:
        self._cache = cache
        self._replay = replay
        self._under_way: dict[str, asyncio.Task[Answer]] = {}
        self.hits = 0
        self.misses = 0

    async def answer(
        self, tool: str, make: Callable[[], Awaitable[Any]], *, cached_only: bool = False, **arguments: Any
    ) -> Answer:
        """The answer of a tool to arguments.

        Args:
            tool: name of the call.
            make: makes the call; what it returns must be JSON, and is kept. What it raises is passed on, never kept.
            cached_only: do not make the call, as in a replay.
            arguments: all that the answer depends on, as JSON.

        Raises:
            ToolError: it is not kept and no call may be made (code `not_in_cache`), or the cache failed.
            MiaError: what `make` raised.
        """
        key = key_of(tool, **arguments)
        if cached_only or self._replay:
            return await self._kept(key, tool)
        task = self._under_way.get(key)
        joined = task is not None
        if task is None:
            task = asyncio.create_task(self._fresh(key, make))
            self._under_way[key] = task
            task.add_done_callback(lambda done: self._finished(key, done))
        # Shielded: who gives up waiting must not take the answer from others who ask the same.
        value, cached = await asyncio.shield(task)
        return Answer(value, cached or joined)

    async def _kept(self, key: str, tool: str) -> Answer:
        kept = await self._cache.get(key, any_age=True)
        if kept is None:
            self.misses += 1
            raise ToolError(
                f"this {tool} call is not in the cache, and nobody may be asked",
                remedy="make the same call once with web.mode = live, or correct web.cache",
                code="not_in_cache",
            )
        self.hits += 1
        return Answer(_loaded(kept), True)

    async def _fresh(self, key: str, make: Callable[[], Awaitable[Any]]) -> Answer:
        kept = await self._cache.get(key)
        if kept is not None:
            self.hits += 1
            return Answer(_loaded(kept), True)
        self.misses += 1
        value = await make()
        await self._cache.put(key, json.dumps(value))
        return Answer(value, False)

    def _finished(self, key: str, task: asyncio.Task[Answer]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            task.exception()  # looked at, in case nobody waits any more

    async def aclose(self) -> None:
        """Give up what is under way and close the cache."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._cache.aclose()


def _loaded(kept: str) -> Any:
    try:
        return json.loads(kept)
    except ValueError as error:
        raise ToolError(
            f"the cache holds what is no JSON: {error}", remedy="delete the cache", code="cache_failed"
        ) from error
