"""What recall needs of every memory, in RAM: vectors, counters and labels, bucket by bucket in growing arrays.

A mirror of the database without its texts; the store keeps both in step. Nothing is read or written here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from local_search.protocol import Vectors
from memory_serve.ranking import Flags, Ints
from mia.types import Outcome

Key = tuple[str, str]
"""A bucket: modality and category."""

OUTCOMES: tuple[Outcome, ...] = ("correct", "incorrect", "unjudged")
_CODES = {outcome: code for code, outcome in enumerate(OUTCOMES)}
_FIRST = 16
"""Rows of a new bucket; the arrays double when they are full."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One memory as recall sees it. Vectors have shape (d,) and length 1; `created` is in microseconds since 1970."""

    id: str
    bucket: Key
    outcome: Outcome
    question: Vectors
    caption: Vectors | None
    uses: int
    successes: int
    created: int
    source_id: str


class Bucket:
    """The n memories of one bucket, as arrays whose first axis is n."""

    def __init__(self, dim: int) -> None:
        self.ids: list[str] = []
        self.sources: list[str] = []
        self._questions: Vectors = np.zeros((_FIRST, dim), np.float32)
        self._captions: Vectors | None = None
        self._captioned: Flags = np.zeros(_FIRST, np.bool_)
        self._numbers: NDArray[np.int64] = np.zeros((4, _FIRST), np.int64)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def questions(self) -> Vectors:
        """Vectors of the questions, (n, d)."""
        return self._questions[: len(self)]

    @property
    def captions(self) -> Vectors | None:
        """Vectors of the captions, (n, d), zeros where there is none; None if no memory ever had one."""
        return None if self._captions is None else self._captions[: len(self)]

    @property
    def captioned(self) -> Flags:
        """Which memories have a caption, (n,)."""
        return self._captioned[: len(self)]

    @property
    def uses(self) -> Ints:
        """How often each was shown, (n,)."""
        return self._numbers[0, : len(self)]

    @property
    def successes(self) -> Ints:
        """How often that went well, (n,)."""
        return self._numbers[1, : len(self)]

    @property
    def created(self) -> Ints:
        """When each was made, in microseconds since 1970, (n,)."""
        return self._numbers[2, : len(self)]

    def having(self, outcome: Outcome) -> Flags:
        """Which memories have this outcome, (n,)."""
        flags: Flags = self._numbers[3, : len(self)] == _CODES[outcome]
        return flags

    def foreign(self, source_id: str) -> Flags:
        """Which memories do not stem from this question, (n,); all if the id is empty."""
        return np.fromiter((not source_id or s != source_id for s in self.sources), np.bool_, len(self))

    def append(self, entry: Entry) -> int:
        """Add a row; returns its number."""
        row = len(self)
        if row == len(self._questions):
            self._double()
        self.ids.append(entry.id)
        self.sources.append(entry.source_id)
        self.write(row, entry)
        return row

    def write(self, row: int, entry: Entry) -> None:
        """Overwrite a row."""
        self.ids[row], self.sources[row] = entry.id, entry.source_id
        self._questions[row] = entry.question
        if entry.caption is not None and self._captions is None:
            self._captions = np.zeros_like(self._questions)
        if self._captions is not None:
            self._captions[row] = 0.0 if entry.caption is None else entry.caption
        self._captioned[row] = entry.caption is not None
        self._numbers[:, row] = entry.uses, entry.successes, entry.created, _CODES[entry.outcome]

    def remove(self, row: int) -> str | None:
        """Drop a row by moving the last one into its place; returns the id that moved, if one did."""
        last = len(self) - 1
        moved = None
        if row != last:
            moved = self.ids[last]
            self.ids[row], self.sources[row] = moved, self.sources[last]
            self._questions[row] = self._questions[last]
            if self._captions is not None:
                self._captions[row] = self._captions[last]
            self._captioned[row] = self._captioned[last]
            self._numbers[:, row] = self._numbers[:, last]
        self.ids.pop()
        self.sources.pop()
        return moved

    def _double(self) -> None:
        self._questions = np.concatenate([self._questions, np.zeros_like(self._questions)])
        if self._captions is not None:
            self._captions = np.concatenate([self._captions, np.zeros_like(self._captions)])
        self._captioned = np.concatenate([self._captioned, np.zeros_like(self._captioned)])
        self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)], axis=1)


class Index:
    """All buckets, and where each memory stands."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._buckets: dict[Key, Bucket] = {}
        self._places: dict[str, tuple[Key, int]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, memory_id: object) -> bool:
        return memory_id in self._places

    def bucket(self, key: Key) -> Bucket | None:
        """The bucket, or None if it is empty."""
        bucket = self._buckets.get(key)
        return bucket if bucket else None

    def put(self, entry: Entry) -> None:
        """Add a memory, or overwrite what was known of it."""
        place = self._places.get(entry.id)
        if place is not None and place[0] == entry.bucket:
            self._buckets[entry.bucket].write(place[1], entry)
            return
        self.remove(entry.id)
        bucket = self._buckets.setdefault(entry.bucket, Bucket(self.dim))
        self._places[entry.id] = (entry.bucket, bucket.append(entry))

    def remove(self, memory_id: str) -> None:
        """Forget a memory; one that is not there is no fault."""
        place = self._places.pop(memory_id, None)
        if place is None:
            return
        key, row = place
        moved = self._buckets[key].remove(row)
        if moved is not None:
            self._places[moved] = (key, row)

    def clear(self) -> None:
        """Forget all memories."""
        self._buckets.clear()
        self._places.clear()
