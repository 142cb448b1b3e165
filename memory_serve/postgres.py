"""The memory store over PostgreSQL with pgvector, for many replicas at once.

It keeps to the rules of the SQLite store by using its code: the same checks, encoding, scores, duplicates, merging and
eviction. Each replica holds the vectors in RAM and sees at once what another has committed (`memory_serve.
postgres_mirror`); all may write, in turns that many calls share (`memory_serve.postgres_writing`). What was
acknowledged is as durable as the database is set up to be. Backups are the database's own affair.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from local_search.protocol import Encoder
from memory_serve.category import Classifier, by_rules
from memory_serve.config import MemoryConfig
from memory_serve.postgres_database import LoopThread
from memory_serve.postgres_upkeep import PostgresCore
from memory_serve.store import SqliteMemory, encode
from memory_serve.writing import Call
from mia.chat import ChatModel
from mia.errors import DataError, MemoryStoreError


class PostgresMemory(SqliteMemory):
    """See `MemoryStore`. Connects at once.

    Args:
        config: `url` of the database and the rules.
        encoder: makes the vectors; called from one thread at a time.
        classify: names the category of a question.
        manager: asked for the category instead, if the config says so.

    Raises:
        MemoryStoreError: the database cannot be reached or used, or its vectors were made by another encoder.
        DataError: the config's namespace cannot be one.
        ConfigError: the Manager model is to name the categories, and there is none.
    """

    def __init__(
        self,
        config: MemoryConfig,
        encoder: Encoder,
        classify: Classifier = by_rules,
        manager: ChatModel | None = None,
    ) -> None:
        self._set_up(config, encoder, classify, manager)
        self._loop = LoopThread("memory-postgres")
        try:
            self._postgres = self._loop.run(_open(config, encoder))
        except BaseException:
            self._stop_threads()
            raise
        self._core = cast("Any", self._postgres)  # the same methods, to be awaited

    async def backup(self, path: Path) -> None:
        """Not offered.

        Raises:
            DataError: always.
        """
        raise DataError("a memory in PostgreSQL cannot be copied to a file", remedy="use pg_dump, or export it")

    async def aclose(self) -> None:
        """See `MemoryStore.aclose`. Closing twice is no fault."""
        if self._state.closed:
            return
        self._state.closed = True
        try:
            await self._loop.do(self._postgres.close())
        finally:
            self._stop_threads()

    def _stop_threads(self) -> None:
        self._loop.stop()
        self._texts.stop()

    async def _on_file(self, call: Call) -> Any:
        self._check_open()
        try:
            result = await self._loop.do(self._postgres.perform(call))
        except MemoryStoreError as error:
            self._state.fault = None if error.retryable else error
            raise
        self._state.fault = None
        return result


async def _open(config: MemoryConfig, encoder: Encoder) -> PostgresCore:
    core = PostgresCore(config, encoder.name, encoder.dim)
    try:
        await core.open(lambda texts: encode(encoder, texts))
    except BaseException:
        await core.close()
        raise
    return core
