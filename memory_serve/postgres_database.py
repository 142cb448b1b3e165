"""The PostgreSQL database of a memory: connections, schema versions, locks, and errors with a remedy.

Everything lies in one schema of the database, so that several memories, or other programs, may share it. Connections
are kept in a pool on an event loop of its own in a thread of its own: so a store may be opened without a loop and used
from any. What the rows mean is not known here.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import psycopg
from pgvector.psycopg import register_vector_async
from psycopg import sql
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from memory_serve.config import MemoryConfig
from memory_serve.postgres_schema import MIGRATIONS
from mia.errors import MemoryStoreError

T = TypeVar("T")
Connection = psycopg.AsyncConnection[Any]

_OPTIONS = "-c jit=off -c work_mem=64MB -c timezone=UTC -c idle_in_transaction_session_timeout=60s"
"""Compiling a query costs more than running ours; a replica that hangs does not keep the others from writing."""
_LOST = "check that the database is running and can be reached; nothing that was acknowledged is lost"
_FAULTS: tuple[tuple[str, str, str, bool], ...] = (
    ("08", "unreachable", _LOST, True),
    ("57P", "unreachable", _LOST, True),
    ("53300", "busy", "the database has no connection left; lower memory.postgres.connections, or try again", True),
    ("531", "disk_full", "free some space; nothing that was acknowledged is lost", True),
    ("25006", "read_only", "the database takes no writes now; name the primary in memory.url", True),
    ("40", "busy", "others are writing the same memories; try again", True),
    ("55P03", "busy", "others are writing the same memories; try again, or raise memory.busy_s", True),
    ("28", "refused", "check user and password (PGPASSWORD or ~/.pgpass, never in memory.url)", False),
    ("3D000", "no_database", "create the database, or name another in memory.url", False),
    ("42501", "refused", "let the user create a schema, or set memory.postgres.schema_name to one it owns", False),
)
"""Start of PostgreSQL's error code, our code, remedy, whether the same call may succeed later."""
_REFUSALS = (("does not exist", "3D000"), ("password", "28"), ("authentication", "28"), ("pg_hba.conf", "28"))
"""A refused connection comes without a code: words of its message, and the code it stands for."""


def store_error(where: str, error: psycopg.Error) -> MemoryStoreError:
    """The typed error for a fault of PostgreSQL."""
    text = " ".join(str(error).split()) or type(error).__name__
    state = error.sqlstate or next((code for words, code in _REFUSALS if words in text), "")
    for prefix, code, remedy, retryable in _FAULTS:
        if state.startswith(prefix):
            return MemoryStoreError(f"{where}: {text}", remedy=remedy, code=code, retryable=retryable)
    if isinstance(error, PoolTimeout) or (isinstance(error, psycopg.OperationalError) and not state):
        return MemoryStoreError(f"{where}: {text}", remedy=_LOST, code="unreachable", retryable=True)
    remedy = "check that the schema is a memory of MIA and that pgvector is not older than 0.5"
    return MemoryStoreError(f"{where}: {text}", remedy=remedy, code="database")


def lock_key(*names: str) -> int:
    """The number of an advisory lock."""
    digest = hashlib.blake2b("\0".join(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something, and wait for it without a loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something, and wait for it in another loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        """End the thread; more than once is no fault."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class PostgresDatabase:
    """Connections to the schema of one memory; for one event loop.

    Args:
        config: address, schema, number of connections, waiting time.
    """

    def __init__(self, config: MemoryConfig) -> None:
        self.schema = config.postgres.schema_name
        self._url = config.url
        self._busy_s = config.busy_s
        info = psycopg.conninfo.conninfo_to_dict(config.url)
        self.name = f"postgresql {info.get('host', 'localhost')}/{info.get('dbname', '')} schema {self.schema}"
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            config.url,
            min_size=1,
            max_size=config.postgres.connections,
            open=False,
            timeout=config.busy_s,
            kwargs=self._settings(),
            configure=self._configure,
            check=AsyncConnectionPool.check_connection,
        )

    async def open(self) -> None:
        """Bring the schema to this program's version and open the pool.

        Raises:
            MemoryStoreError: the database cannot be reached or used, or its schema is foreign or newer.
        """
        with self._faults():
            async with await psycopg.AsyncConnection.connect(self._url, **self._settings()) as connection:
                await self._migrate(connection)
            await self._pool.open()

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        """A connection outside any transaction: each statement sees one state."""
        with self._faults():
            async with self._pool.connection() as connection:
                yield connection

    async def writing(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do something in a transaction."""
        with self._faults():
            async with self._pool.connection() as connection, connection.transaction():
                return await work(connection)

    async def lock(self, connection: Connection, *names: str) -> None:
        """Take the advisory lock of a name in this schema until the end of the transaction."""
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_key("mia", self.schema, *names),))

    def _settings(self) -> dict[str, Any]:
        wait = f" -c lock_timeout={int(self._busy_s * 1000)}"
        path = f" -c search_path={self.schema},public"
        return {
            "autocommit": True,
            "options": _OPTIONS + wait + path,
            "connect_timeout": max(2, round(self._busy_s)),
            "application_name": "mia memory",
        }

    async def _configure(self, connection: Connection) -> None:
        await register_vector_async(connection)

    async def _migrate(self, connection: Connection) -> None:
        schema = sql.Identifier(self.schema)
        async with connection.transaction():
            await self.lock(connection, "migrate")
            await self._need_vectors(connection)
            await connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
            version = await self._version(connection)
            for statement in (s for migration in MIGRATIONS[version:] for s in migration):
                await connection.execute(statement)
            if version < len(MIGRATIONS):
                await connection.execute("DELETE FROM mia_schema")
                await connection.execute("INSERT INTO mia_schema VALUES (%s)", (len(MIGRATIONS),))

    async def _need_vectors(self, connection: Connection) -> None:
        found = await connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'")
        if await found.fetchone():
            return
        try:
            await connection.execute("CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public")
        except (psycopg.errors.UndefinedFile, psycopg.errors.InsufficientPrivilege, psycopg.NotSupportedError) as error:
            raise MemoryStoreError(
                f"{self.name}: no pgvector ({error})",
                remedy="install pgvector on the server and, as a superuser, CREATE EXTENSION vector in the database",
                code="no_pgvector",
            ) from error

    async def _version(self, connection: Connection) -> int:
        """How many migrations have been run; the schema must be empty or ours, and not newer than this program."""
        rows = await connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (self.schema,)
        )
        tables = {name for (name,) in await rows.fetchall()}
        if not tables:
            return 0
        if "mia_schema" not in tables:
            raise MemoryStoreError(
                f"{self.name} holds tables of another program",
                remedy="set memory.postgres.schema_name to a new name",
                code="foreign_file",
            )
        row = await (await connection.execute("SELECT version FROM mia_schema")).fetchone()
        version = int(row[0]) if row else 0
        if version > len(MIGRATIONS):
            raise MemoryStoreError(
                f"{self.name} has schema version {version}, this program knows {len(MIGRATIONS)}",
                remedy="update MIA, or set memory.postgres.schema_name to another schema",
                code="newer_file",
            )
        return version

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise store_error(self.name, error) from error
