"""Passages of an index on disk: a JSONL file read by byte offset through memory maps, never held in memory."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from local_search.corpus import Row
from mia.types import Passage

ROWS = "passages.jsonl"
OFFSETS = "offsets.npy"


def write_rows(rows: Iterable[Row], folder: Path) -> int:
    """Write the rows and the byte offset of each, and of the end (int64, count + 1); returns the count."""
    offsets = [0]
    with (folder / ROWS).open("wb") as file:
        for row in rows:
            line = json.dumps(row._asdict(), ensure_ascii=False).encode("utf-8") + b"\n"
            offsets.append(offsets[-1] + file.write(line))
    np.save(folder / OFFSETS, np.array(offsets, dtype=np.int64))
    return len(offsets) - 1


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
        return Row(**json.loads(self._bytes[self._offsets[number] : self._offsets[number + 1]]))

    def texts(self) -> Iterator[str]:
        """What is searched of each passage, in corpus order."""
        return (searched_text(self.row(number).passage()) for number in range(len(self)))


def searched_text(passage: Passage) -> str:
    """Title and text: titles name what a passage is about, often in words that its text leaves out."""
    return f"{passage.title}\n{passage.text}"
