"""An append-only file of JSON lines: what was acknowledged is on disk, and a line that was cut is cut off at the start.

Appends that wait at the same time share one write and one fsync. Lines end with a newline only: the other line breaks
of Unicode may stand inside them.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mia.errors import DataError


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Whole lines of a file with the offset of each; nothing if there is no file. A last line without end is no line.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            offset = 0
            for line in file:
                if line.endswith(b"\n"):
                    yield offset, line
                offset += len(line)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


class Journal:
    """One file, open for appending by this process alone.

    Args:
        path: made if missing; an unfinished last line is cut off.

    Raises:
        DataError: the file cannot be written, or another process is writing it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[bytes] = []
        self._written: asyncio.Future[int] | None = None
        self._writer: asyncio.Task[None] | None = None
        try:
            self._file: IO[bytes] = path.open("ab", buffering=0)
        except OSError as error:
            raise _unwritten(path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._size = sum(len(line) for _, line in lines(path))
            self._file.truncate(self._size)
        except OSError as error:
            self._file.close()
            if not isinstance(error, BlockingIOError):
                raise _unwritten(path, error) from error
            remedy = "wait for it, or give another --out"
            raise DataError(f"another process is writing {path}", remedy=remedy, code="in_use") from error

    async def append(self, line: str) -> int:
        """Append one line; returns its offset when it is on disk. It is written even if the caller is cancelled.

        Raises:
            DataError: it could not be written; the file is as before.
        """
        data = line.encode() + b"\n"
        before = sum(map(len, self._waiting))
        self._waiting.append(data)
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        return await asyncio.shield(self._written) + before

    async def _write(self) -> None:
        """Write groups of lines until none wait."""
        while self._waiting:
            data, written = b"".join(self._waiting), self._written
            self._waiting, self._written = [], None
            assert written is not None
            try:
                start = await asyncio.to_thread(self._put, data)
            except DataError as error:
                written.set_exception(error)
                written.exception()  # it is the callers' to raise, if any is left
            else:
                written.set_result(start)
        self._writer = None

    def _put(self, data: bytes) -> int:
        start = self._size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(start)
            raise _unwritten(self.path, error) from error
        self._size += len(data)
        return start

    async def aclose(self) -> None:
        """Wait for what is being written, then close the file."""
        if self._writer is not None:
            await self._writer
        self._file.close()


def _unwritten(path: Path, error: OSError) -> DataError:
    return DataError(
        f"cannot write {path}: {error.strerror}",
        remedy="free space or choose another --out; `--resume` goes on from what is there",
        code="unwritable",
    )
