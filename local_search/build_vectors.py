"""Encodes the passages of an index that is being built, here or by a mapper, into one file that survives a kill.

Passages are encoded in chunks that are the same in every build: the last bits of a vector depend on what is encoded
beside it. So the file has the same bytes, however the chunks were shared out (on processors of one make).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from local_search.encoder import encoder_of
from local_search.passages import read_all, searched_text
from local_search.protocol import Encoder, Mapper

_CHUNK = 256
PART = 32 * _CHUNK
"""Passages of one task: minutes of work on a core, 13 MB of vectors at 384 numbers."""


class Task(NamedTuple):
    """Passages to encode: numbers `start` up to `stop` of an index folder, by the encoder of a name, into a file."""

    folder: Path
    start: int
    stop: int
    encoder: str
    file: Path


def write_vectors(
    index: Path,
    file: Path,
    total: int,
    encoder: Encoder,
    mapper: Mapper | None,
    step: Callable[[int], None],
    part: int = PART,
) -> NDArray[np.float32]:
    """The vectors of all passages (total, dim), mapped from `file`, which is written as far as it is not there yet.

    Args:
        index: folder with the passages.
        file: where the vectors go.
        total: number of passages.
        encoder: encodes them; with a mapper, the one that its name stands for does.
        mapper: shares the work out; without one it is done here, since one encoder keeps all cores busy.
        step: told how many passages are done.
        part: passages of one task, a multiple of 256.
    """
    with file.open("ab") as vectors:
        done = vectors.tell() // (4 * encoder.dim) // _CHUNK * _CHUNK
        vectors.truncate(done * 4 * encoder.dim)
        if mapper is None:
            for chunk in _encoded(index, done, total, encoder):
                vectors.write(chunk.tobytes())
                vectors.flush()
                done += len(chunk)
                step(done)
        else:
            tasks = [
                Task(index, start, min(start + part, total), encoder.name, file.with_name(f"{file.name}.{start:012}"))
                for start in range(done, total, part)
            ]
            for task in mapper(tasks, encode_part):
                with task.file.open("rb") as encoded:
                    shutil.copyfileobj(encoded, vectors, 1 << 20)
                vectors.flush()
                task.file.unlink()
                step(task.stop)
    return np.memmap(file, dtype=np.float32, mode="r", shape=(total, encoder.dim))


def encode_part(task: Task) -> Task:
    """Write the file of a task, unless it is there; returns the task.

    Raises:
        DataError: there is no encoder of this name.
    """
    if not task.file.exists():
        part = task.file.with_name(f"{task.file.name}.part")
        with part.open("wb") as vectors:
            for chunk in _encoded(task.folder, task.start, task.stop, _loaded(task.encoder)):
                vectors.write(chunk.tobytes())
        part.rename(task.file)
    return task


@cache
def _loaded(name: str) -> Encoder:
    """One encoder for all tasks that a process does."""
    return encoder_of(name)


def _encoded(index: Path, start: int, stop: int, encoder: Encoder) -> Iterator[NDArray[np.float32]]:
    """The vectors of the passages from `start` up to `stop`, a chunk (n, dim) at a time."""
    texts = (searched_text(row.passage()) for row in islice(read_all(index, start), stop - start))
    while chunk := list(islice(texts, _CHUNK)):
        yield encoder.encode(chunk, "passage").astype(np.float32, copy=False)
