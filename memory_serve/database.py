"""The SQLite file of a memory: opening, schema versions, transactions, and errors with a remedy.

Write-ahead log; `synchronous=FULL` unless told otherwise, because in this mode NORMAL may lose the last commits in a
power cut (never in a crash of the process). One connection, used by the thread that opened it. What the rows mean is
not known here.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from mia.errors import DataError, MemoryStoreError

APPLICATION_ID = 0x4D49416D
"""Marks the file as ours ("MIAm")."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE memories (
            id TEXT NOT NULL PRIMARY KEY,
            version INTEGER NOT NULL,
            outcome TEXT NOT NULL CHECK (outcome IN ('correct', 'incorrect', 'unjudged')),
            modality TEXT NOT NULL,
            category TEXT NOT NULL,
            uses INTEGER NOT NULL DEFAULT 0,
            successes INTEGER NOT NULL DEFAULT 0,
            created TEXT NOT NULL,
            source_id TEXT NOT NULL,
            trajectory_id TEXT NOT NULL,
            encoder TEXT NOT NULL,
            vector BLOB NOT NULL,
            caption_vector BLOB,
            question TEXT NOT NULL,
            caption TEXT NOT NULL,
            workflow TEXT NOT NULL,
            plan TEXT NOT NULL,
            provenance TEXT NOT NULL,
            CHECK (0 <= successes AND successes <= uses)
        ) STRICT""",
        "CREATE INDEX memories_version ON memories (version)",
        "CREATE INDEX memories_created ON memories (created)",
        "CREATE TABLE deleted (id TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL) STRICT",
        "CREATE INDEX deleted_version ON deleted (version)",
        """CREATE TABLE trajectories (
            trajectory_id TEXT NOT NULL PRIMARY KEY,
            memory_id TEXT NOT NULL REFERENCES memories (id) ON DELETE CASCADE,
            outcome TEXT NOT NULL
        ) STRICT""",
        "CREATE INDEX trajectories_memory ON trajectories (memory_id)",
        "CREATE TABLE credits (key TEXT NOT NULL PRIMARY KEY) STRICT",
        "CREATE TABLE counters (name TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) STRICT",
        "INSERT INTO counters VALUES ('version', 0)",
    ),
    (
        "ALTER TABLE memories ADD COLUMN namespace TEXT NOT NULL DEFAULT 'default'",
        "ALTER TABLE memories ADD COLUMN revision INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE memories ADD COLUMN trust TEXT NOT NULL DEFAULT 'unjudged' "
        "CHECK (trust IN ('reference', 'panel', 'model', 'user', 'unjudged'))",
        "ALTER TABLE memories ADD COLUMN absorbed TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE memories ADD COLUMN merged_from TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE memories ADD COLUMN win_rate REAL",
        "ALTER TABLE memories ADD COLUMN original TEXT NOT NULL DEFAULT '{}'",
        """UPDATE memories SET trust = CASE json_extract(provenance, '$.judged_by')
            WHEN 'em' THEN 'reference' WHEN 'f1' THEN 'reference' WHEN 'model' THEN 'model' WHEN 'panel' THEN 'panel'
            ELSE 'unjudged' END WHERE json_valid(provenance)""",
        "DROP INDEX memories_created",
        "CREATE INDEX memories_page ON memories (namespace, created)",
        "CREATE INDEX memories_asked ON memories (namespace, coalesce(nullif(source_id, ''), question)) "
        "WHERE outcome = 'incorrect' AND plan != ''",
        """CREATE TABLE runs (
            namespace TEXT NOT NULL,
            trajectory_id TEXT NOT NULL,
            memory_id TEXT NOT NULL REFERENCES memories (id) ON DELETE CASCADE,
            outcome TEXT NOT NULL,
            PRIMARY KEY (namespace, trajectory_id)
        ) STRICT, WITHOUT ROWID""",
        "INSERT INTO runs SELECT 'default', trajectory_id, memory_id, outcome FROM trajectories",
        "DROP TABLE trajectories",
        "CREATE INDEX runs_memory ON runs (memory_id)",
        """CREATE TABLE credited (
            namespace TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (namespace, key)
        ) STRICT, WITHOUT ROWID""",
        "INSERT INTO credited SELECT 'default', key FROM credits",
        "DROP TABLE credits",
        """CREATE TABLE changes (
            number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
            at TEXT NOT NULL,
            actor TEXT NOT NULL,
            namespace TEXT NOT NULL,
            action TEXT NOT NULL,
            undone INTEGER
        ) STRICT""",
        "CREATE INDEX changes_namespace ON changes (namespace, number)",
        """CREATE TABLE images (
            number INTEGER NOT NULL REFERENCES changes (number) ON DELETE CASCADE,
            memory_id TEXT NOT NULL,
            before TEXT,
            after TEXT,
            vector BLOB,
            caption_vector BLOB,
            PRIMARY KEY (number, memory_id)
        ) STRICT, WITHOUT ROWID""",
    ),
)
"""Statements that lead from each schema version to the next; `PRAGMA user_version` says how many have been run."""

_CACHE_KIB = 64 * 1024
"""Page cache: ids are random, so the pages of their index are all over the file."""
_LOG_PAGES = 8000
"""Pages of the log (32 MB) after which it is folded into the file: the fewer times, the less is written twice."""

_FAULTS: tuple[tuple[str, str, str, bool], ...] = (
    ("SQLITE_NOTADB", "damaged", "restore a backup, or move the file away to start with an empty memory", False),
    ("SQLITE_CORRUPT", "damaged", "restore a backup, or move the file away to start with an empty memory", False),
    ("SQLITE_BUSY", "busy", "another process is writing; try again, or raise memory.busy_s", True),
    ("SQLITE_FULL", "disk_full", "free some space; nothing that was acknowledged is lost", True),
    ("SQLITE_READONLY", "read_only", "make the file and its folder writable, or set memory.path", False),
    ("SQLITE_CANTOPEN", "cannot_open", "make the file and its folder readable and writable, or set memory.path", False),
    ("SQLITE_IOERR", "io_error", "check the disk and its quota; nothing that was acknowledged is lost", True),
)
"""Name of SQLite's error, our code, remedy, whether the same call may succeed later."""


def store_error(path: Path, error: Exception) -> MemoryStoreError:
    """The typed error for a fault of SQLite."""
    name = getattr(error, "sqlite_errorname", "")
    for prefix, code, remedy, retryable in _FAULTS:
        if name.startswith(prefix):
            return MemoryStoreError(f"{path}: {error}", remedy=remedy, code=code, retryable=retryable)
    return MemoryStoreError(f"{path}: {error}", remedy="check that the file is a memory of MIA", code="database")


def damaged(path: Path, what: str) -> MemoryStoreError:
    """The error for content that cannot be what we wrote."""
    return MemoryStoreError(f"{path} is damaged: {what}", remedy=_FAULTS[0][2], code="damaged")


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """A transaction; on disk when this ends, undone when something is raised."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite itself has rolled back after some faults (a full disk); then there is nothing left to undo.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def switch_to_log(connection: sqlite3.Connection, busy_s: float) -> str:
    """Turn the write-ahead log on; returns the journal mode that the file has now.

    Of several programs that open a new file at once, SQLite tells all but one that it is locked, at once and without
    the wait that every other statement gets; so the wait is here.
    """
    deadline = time.monotonic() + busy_s
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return str(mode)
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class Database:
    """One connection to a memory file; made by the thread that will use it.

    Args:
        path: the file; it and its folder are made if missing.
        synchronous: what a commit waits for, see the module.
        busy_s: how long to wait for another process that is writing, in seconds.

    Raises:
        MemoryStoreError: the file cannot be opened, is damaged, of another program or of a newer version.
    """

    def __init__(self, path: Path, synchronous: Literal["full", "normal"] = "full", busy_s: float = 10.0) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MemoryStoreError(
                f"the folder of {path} cannot be made: {error}", remedy="set memory.path", code="cannot_open"
            ) from error
        with self._faults():
            self._connection = sqlite3.connect(path, timeout=busy_s, isolation_level=None)
            try:
                self._prepare(synchronous, busy_s)
            except BaseException:
                self._connection.close()
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one state of the file throughout."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the write lock; on disk when this returns, undone when it raises."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def backup(self, path: Path) -> None:
        """Copy the file to a new one by SQLite's online backup.

        Raises:
            DataError: there is a file already.
            MemoryStoreError: it cannot be written.
        """
        if path.exists():
            raise DataError(f"{path} is there already", remedy="give the name of a new file", code="exists")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            copy = sqlite3.connect(path)
        except (OSError, sqlite3.Error) as error:
            raise store_error(path, error) from error
        try:
            self._connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, nothing beside it
        except sqlite3.Error as error:
            path.unlink(missing_ok=True)
            raise store_error(path, error) from error
        finally:
            copy.close()

    def close(self) -> None:
        """Close the connection; the last one of a file also folds the log into it."""
        with self._faults():
            self._connection.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._faults(), transaction(self._connection, begin):
            yield self._connection

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise store_error(self.path, error) from error

    def _prepare(self, synchronous: str, busy_s: float) -> None:
        self._refuse_foreign()
        mode = switch_to_log(self._connection, busy_s)
        if mode != "wal":
            raise MemoryStoreError(
                f"{self.path}: the file system does not support a write-ahead log (journal mode stays {mode})",
                remedy="set memory.path to a local disk",
                code="cannot_open",
            )
        self._connection.execute(f"PRAGMA synchronous = {synchronous}")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        found = [row[0] for row in self._connection.execute("PRAGMA quick_check(3)")]
        if found != ["ok"]:
            raise damaged(self.path, "; ".join(found))
        self._migrate()

    def _refuse_foreign(self) -> None:
        """Before anything is changed: the file must be empty or ours, and not newer than this program."""
        with self._transaction("BEGIN") as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application != APPLICATION_ID and (application or version or tables):
            raise MemoryStoreError(
                f"{self.path} is a database of another program", remedy="set memory.path", code="foreign_file"
            )
        if version > len(MIGRATIONS):
            raise MemoryStoreError(
                f"{self.path} has schema version {version}, this program knows {len(MIGRATIONS)}",
                remedy="update MIA, or set memory.path to another file",
                code="newer_file",
            )

    def _migrate(self) -> None:
        with self._transaction("BEGIN IMMEDIATE") as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            for statement in (s for migration in MIGRATIONS[version:] for s in migration):
                connection.execute(statement)
            if version < len(MIGRATIONS):
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
