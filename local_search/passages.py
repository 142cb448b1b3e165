"""Passages of an index on disk: a JSONL file read by byte offset through memory maps, never held in memory."""

from __future__ import annotations

import json
import mmap
import shutil
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from local_search.corpus_rows import Row
from mia.types import Passage, clean_text

ROWS = "passages.jsonl"
OFFSETS = "offsets.npy"


def writing(rows: Iterable[Row], folder: Path) -> Iterator[Row]:
    """Pass rows on while writing them, and at the end the byte offset of each, and of the end (int64, count + 1)."""
    encode = json.JSONEncoder(ensure_ascii=False).encode
    offsets = array("q", [0])
    with (folder / ROWS).open("wb") as file:
        for row in rows:
            line = encode({"id": row.id, "contents": row.contents}).encode("utf-8") + b"\n"
            offsets.append(offsets[-1] + file.write(line))
            yield row
    np.save(folder / OFFSETS, np.frombuffer(offsets, dtype=np.int64))


def join_rows(parts: Sequence[Path], folder: Path) -> None:
    """Write what `writing` would have written for the rows of all `parts`, in one. The offsets appear last."""
    count = sum(len(np.load(part / OFFSETS, mmap_mode="r")) - 1 for part in parts)
    unfinished = folder / f"{OFFSETS}.part"
    with (folder / ROWS).open("wb") as rows, unfinished.open("wb") as offsets:
        npy_header(offsets, np.dtype(np.int64), count + 1)
        np.zeros(1, dtype=np.int64).tofile(offsets)
        for part in parts:
            (np.load(part / OFFSETS)[1:] + rows.tell()).tofile(offsets)
            with (part / ROWS).open("rb") as source:
                shutil.copyfileobj(source, rows, 1 << 20)
    unfinished.rename(folder / OFFSETS)


def read_all(folder: Path, start: int = 0) -> Iterator[Row]:
    """The rows from number `start` on, in corpus order; read as a stream, not mapped."""
    offset = int(np.load(folder / OFFSETS, mmap_mode="r")[start])
    with (folder / ROWS).open("rb") as file:
        file.seek(offset)
        for line in file:
            yield Row(**json.loads(line))


def read_rows_at(folder: Path, numbers: Iterable[int]) -> Iterator[Row]:
    """The rows of these numbers."""
    offsets = np.load(folder / OFFSETS, mmap_mode="r")
    with (folder / ROWS).open("rb") as file:
        for number in numbers:
            file.seek(int(offsets[number]))
            yield Row(**json.loads(file.readline()))


def npy_header(file: BinaryIO, dtype: np.dtype[Any], count: int) -> None:
    """What `np.save` writes before the `count` values of a flat array, which may then follow piece by piece."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, header)


class Passages:
    """Rows by number, in corpus order. Safe to read from many threads."""

    def __init__(self, folder: Path) -> None:
        self._offsets = np.load(folder / OFFSETS, mmap_mode="r")
        with (folder / ROWS).open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def row(self, number: int) -> Row:
        """The row as the corpus had it."""
        value = json.loads(self._bytes[self._offsets[number] : self._offsets[number + 1]])
        return Row(str(value["id"]), clean_text(value["contents"]))  # an adopted corpus has more fields, odd texts


def searched_text(passage: Passage) -> str:
    """Title and text: titles name what a passage is about, often in words that its text leaves out."""
    return f"{passage.title}\n{passage.text}"
