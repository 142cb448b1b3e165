"""Where a build works: a folder beside the index, found again by the next build of the same thing, locked while in use.

Its name holds a digest of all that decides the bytes of the index. A build that was killed leaves it; one that ends, or
fails for the corpus's sake, removes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mia.errors import DataError

_IN_VAIN = ("broken_row", "duplicate_id", "empty_corpus", "row_mismatch", "unreadable_corpus")
"""Errors after which the same build need not be tried again."""


def staging_of(out: Path, content: Any) -> Path:
    """The folder to build the index `out` in, whose bytes are decided by `content`, a JSON value."""
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    return out.parent / f".{out.name}.building-{key}"


@contextmanager
def staged(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the staging folder, with what an earlier build left in it.

    Args:
        folder: from `staging_of`.
        waiting: called once if another build holds the folder; this one then waits for its end.

    Raises:
        DataError: something cannot be written (code `unwritable_index`); what is done so far stays.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(_lock_of(folder), waiting):
            try:
                folder.mkdir(exist_ok=True)
                yield
            except DataError as error:
                if error.code in _IN_VAIN:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"cannot write {error.filename or folder}: {error.strerror or error}",
            remedy="check the path, its permissions and the space left; the same command then continues",
            code="unwritable_index",
        ) from error


def leftovers(out: Path, folder: Path) -> list[Path]:
    """Staging folders of the same index, of builds of other corpora or settings that did not end."""
    return sorted(path for path in _siblings(out) if path != folder)


def clear(out: Path) -> None:
    """Remove all staging folders of an index that no build holds, where something can be removed."""
    if not os.access(out.parent, os.W_OK):
        return
    for folder in _siblings(out):
        with _lock_of(folder).open("a") as lock:
            if _try(lock.fileno()):
                shutil.rmtree(folder, ignore_errors=True)
                _lock_of(folder).unlink(missing_ok=True)


def _siblings(out: Path) -> list[Path]:
    start = f".{out.name}.building-"
    return [path for path in out.parent.iterdir() if path.name.startswith(start) and path.is_dir()]


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + ".lock")


@contextmanager
def _locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock file, which is removed afterwards; it holds the process's number, for whoever looks."""
    while True:
        with path.open("a+") as lock:
            if not _try(lock.fileno()):
                waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not _same(path, lock.fileno()):
                continue  # the holder removed the file before it let go: another process may hold a new one
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _same(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
