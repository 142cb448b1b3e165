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
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        try:
            self._file: IO[bytes] = path.open("ab", buffering=0)
        except OSError as error:
            raise _unwritten(path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._size = sum(len(line) for _, line in lines(path))
            self._file.truncate(self._size)
            self.end = self._size
            """Where the next line will begin."""
        except OSError as error:
            self._file.close()
            if not isinstance(error, BlockingIOError):
                raise _unwritten(path, error) from error
            remedy = "wait for it, or give another --out"
            raise DataError(f"another process is writing {path}", remedy=remedy, code="in_use") from error

    def append(self, line: str) -> asyncio.Future[None]:
        """Append one line, whether the result is waited for or not.

        Returns:
            Done when the line is on disk, or with a DataError if it could not be written; then the file is as before
            and no line should follow.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((line.encode() + b"\n", written))
        self.end += len(self._waiting[-1][0])
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        return written

    async def _write(self) -> None:
        """Write groups of lines until none wait."""
        while self._waiting:
            group, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._put, b"".join(line for line, _ in group))
            except DataError as error:
                for _, written in group:
                    if not written.done():  # else its caller was cancelled
                        written.set_exception(error)
                        written.exception()  # it need not be asked for
                continue
            for _, written in group:
                if not written.done():
                    written.set_result(None)
        self._writer = None

    def _put(self, data: bytes) -> None:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(self._size)
            raise _unwritten(self.path, error) from error
        self._size += len(data)

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
