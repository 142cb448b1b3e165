"""Keeps answers: in a file on disk, in Redis where replicas share them, or nowhere. Only answers, never failures.

A key is the SHA-256 of the tool's name and its arguments as canonical JSON; a value is JSON. On disk nothing is thrown
away, so that a run can be repeated exactly; an answer older than the time to live is asked for anew and replaced. The
disk cache is one SQLite table: several processes may use it at once, and reading it runs nothing, as unpickling would.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, Protocol

from mia.errors import ConfigError, DataError, ToolError
from mia.extras import need
from web_tools.config import CacheConfig

_SCHEMA = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, value TEXT NOT NULL, stored REAL NOT NULL)"
_PREFIX = "mia:web:"


def key_of(tool: str, **arguments: Any) -> str:
    """The key of a call: equal for equal arguments in any order."""
    text = json.dumps([tool, arguments], sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Cache(Protocol):
    """Keeps texts by key."""

    async def get(self, key: str, any_age: bool = False) -> str | None:
        """What is kept, or None. `any_age`: also if it is older than the time to live.

        Raises:
            ToolError: the cache cannot be read (code `cache_failed`).
        """
        ...

    async def put(self, key: str, value: str) -> None:
        """Keep a text.

        Raises:
            ToolError: the cache cannot be written (code `cache_failed`).
        """
        ...

    async def aclose(self) -> None:
        """Free what is held."""
        ...


class NoCache:
    """Keeps nothing."""

    async def get(self, key: str, any_age: bool = False) -> str | None:
        """None, always."""
        return None

    async def put(self, key: str, value: str) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing to free."""


class DiskCache:
    """Keeps answers in `answers.db` in a folder.

    Args:
        folder: made if it is missing.
        ttl_s: time to live in seconds; None: for ever.

    Raises:
        DataError: the folder cannot be written, or the file there is no such cache.
    """

    def __init__(self, folder: Path, ttl_s: float | None = None) -> None:
        self._file = folder / "answers.db"
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # what somebody searched for is their own affair
            self._base = sqlite3.connect(self._file, timeout=30, check_same_thread=False, isolation_level=None)
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=NORMAL")
            self._base.execute(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise DataError(
                f"no cache can be kept at {self._file}: {error}",
                remedy="delete the file, set another web.cache.path, or set web.cache.kind = off",
                code="bad_cache",
            ) from error

    async def get(self, key: str, any_age: bool = False) -> str | None:
        """See `Cache.get`."""
        rows = await asyncio.to_thread(self._run, "SELECT value, stored FROM answers WHERE key = ?", (key,))
        if not rows:
            return None
        value, stored = rows[0]
        fresh = self._ttl_s is None or time.time() - stored < self._ttl_s
        return str(value) if fresh or any_age else None

    async def put(self, key: str, value: str) -> None:
        """See `Cache.put`."""
        row = (key, value, time.time())
        await asyncio.to_thread(self._run, "INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", row)

    def _run(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        try:
            with self._lock:
                return self._base.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _failed(str(self._file), error) from error

    async def aclose(self) -> None:
        """Close the file."""
        with self._lock:
            self._base.close()


class RedisCache:
    """Keeps answers in Redis, which several replicas may share. Make one with `open`."""

    def __init__(self, client: Any, where: str, ttl_s: float | None = None) -> None:
        self._client = client
        self._where = where
        self._ttl_ms = None if ttl_s is None else max(1, round(ttl_s * 1000))

    @classmethod
    def open(cls, url: str, ttl_s: float | None = None) -> RedisCache:
        """The cache at a URL; nothing is connected before the first use.

        Raises:
            ConfigError: the URL is none of Redis, or the package is missing.
        """
        redis = need("redis.asyncio", "web")
        where = url.rpartition("@")[2]  # without a password
        try:
            client = redis.Redis.from_url(url, decode_responses=True, socket_timeout=10, socket_connect_timeout=10)
        except ValueError as error:
            raise ConfigError(f"web.cache.url: {error}", remedy="write redis://HOST:PORT/NUMBER") from error
        return cls(client, where, ttl_s)

    async def get(self, key: str, any_age: bool = False) -> str | None:
        """See `Cache.get`. Redis itself drops what is older than the time to live."""
        from redis.exceptions import RedisError

        try:
            value: str | None = await self._client.get(_PREFIX + key)
        except (RedisError, OSError) as error:
            raise _failed(self._where, error) from error
        return value

    async def put(self, key: str, value: str) -> None:
        """See `Cache.put`."""
        from redis.exceptions import RedisError

        try:
            await self._client.set(_PREFIX + key, value, px=self._ttl_ms)
        except (RedisError, OSError) as error:
            raise _failed(self._where, error) from error

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _failed(where: str, error: Exception) -> ToolError:
    return ToolError(
        f"the cache at {where} failed: {error or type(error).__name__}",
        remedy="mend it (space, rights, a running server), or set web.cache.kind = off",
        code="cache_failed",
        retryable=True,
    )


def open_cache(config: CacheConfig) -> Cache:
    """The cache of a config.

    Raises:
        DataError: the disk cache cannot be opened.
        ConfigError: the Redis URL is none, or the package is missing.
    """
    if config.kind == "off":
        return NoCache()
    if config.kind == "redis":
        return RedisCache.open(config.url, config.ttl_s)
    return DiskCache(config.path, config.ttl_s)
