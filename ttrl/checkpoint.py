"""One checkpoint for all that changes: weights, optimiser, schedule, random state, memory, and how far the stream is.

A checkpoint is a folder that is there whole or not at all, named by the number of batches behind it; older ones go when
a newer one is there. What was written to memory after it is undone by going back to it.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from memory_serve.store import SqliteMemory
from mia.errors import DataError
from mia.types import Record
from ttrl.learner import Learner
from ttrl.records import sync_folder, write_durably

_NAME = re.compile(r"\d{6}")
MEMORY = "memory.db"


class Cursor(Record):
    """How far the stream is: batches that are done, and the version of the weights after them."""

    done: int
    version: int


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: where they are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def last(self) -> Path | None:
        """The newest one."""
        found = sorted(path for path in self.folder.glob("*") if _NAME.fullmatch(path.name))
        return found[-1] if found else None

    def cursor(self) -> Cursor:
        """How far the newest one is."""
        last = self.last
        if last is None:
            return Cursor(done=0, version=0)
        return Cursor.model_validate_json((last / "cursor.json").read_bytes())

    async def save(self, cursor: Cursor, learner: Learner | None, memory: SqliteMemory | None) -> None:
        """Write one, then let older ones go.

        Args:
            cursor: what it stands for.
            learner: None where weights do not change.
            memory: None where memory does not change.

        Raises:
            DataError: it cannot be written.
            MemoryStoreError: memory cannot be copied.
        """
        path = self.folder / f"{cursor.done:06d}"
        part = path.with_name(f"{path.name}.part")
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            if learner is not None:
                learner.save(part)
            if memory is not None:
                await memory.backup(part / MEMORY)
            write_durably(part / "cursor.json", cursor.model_dump_json() + "\n")
            for file in part.rglob("*"):
                _sync(file)
            part.replace(path)
            sync_folder(self.folder)
        except OSError as error:
            raise DataError(
                f"cannot write {path}: {error.strerror}",
                remedy="free space; `--resume` goes on from the checkpoint before",
                code="unwritable",
            ) from error
        for old in self.folder.iterdir():
            if old != path:
                shutil.rmtree(old)


def restore_memory(path: Path, source: Path | None) -> None:
    """Put a copy of a memory where the run has its own; None: nothing is there.

    Raises:
        DataError: it cannot be copied.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        for old in (path, part, *(path.with_name(f"{path.name}-{kind}") for kind in ("wal", "shm", "journal"))):
            old.unlink(missing_ok=True)
        if source is None:
            return
        uri = f"{source.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as held, closing(sqlite3.connect(part)) as copy:
            held.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        part.replace(path)
    except (OSError, sqlite3.Error) as error:
        raise DataError(f"cannot copy the memory {source} to {path}: {error}", remedy="check memory.path") from error


def _sync(path: Path) -> None:
    if path.is_file():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
