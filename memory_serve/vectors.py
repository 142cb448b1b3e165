"""What recall needs of every memory, in RAM: vectors, counters and labels, bucket by bucket in growing arrays.

A mirror of the database without its texts; the store keeps both in step. Nothing is read or written here. What is new
waits until somebody looks at the arrays, so many that come one by one are put in them at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from local_search.protocol import Vectors
from memory_serve.coarse import Matrix, Similar
from memory_serve.config import Weights
from memory_serve.near import Compass, Grid, Place, Spot
from memory_serve.protocol import TRUSTS, Trust
from memory_serve.ranking import Flags, Floats, Ints, Rough, Scoring, raw_similarity
from mia.types import Outcome

Key = tuple[str, str, str]
"""A bucket: namespace, modality and category."""

OUTCOMES: tuple[Outcome, ...] = ("correct", "incorrect", "unjudged")
_CODES = {outcome: code for code, outcome in enumerate(OUTCOMES)}
_TRUST_CODES = {trust: code for code, trust in enumerate(TRUSTS)}
_FIRST = 16
"""Rows of a new bucket; the arrays double when they are full."""
_NO_ROWS: Ints = np.zeros(0, np.int64)
_WAITING = 1024
"""New memories that wait to be put in the arrays, at most."""
_USES, _SUCCESSES, _CREATED, _SOURCE = range(4)
_OUTCOME, _TRUST = range(2)


@dataclass(frozen=True, slots=True)
class Entry:
    """One memory as recall sees it. Vectors have shape (d,) and length 1; `created` is in microseconds since 1970.

    `win_rate` is what the released code calls so, see `memory_serve.ranking`.
    """

    id: str
    bucket: Key
    outcome: Outcome
    question: Vectors
    caption: Vectors | None
    uses: int
    successes: int
    created: int
    source_id: str
    trust: Trust = "unjudged"
    win_rate: float = 1.0


class Bucket:
    """The n memories of one bucket, as arrays whose first axis is n.

    Args:
        dim: length of the vectors.
        reach: distance of questions that count as the same, see `Compass`.
        scoring: what `priors` are for.
    """

    def __init__(self, dim: int, reach: float, scoring: Scoring | None = None) -> None:
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        self._new: list[Entry] = []
        self._questions = Matrix(_FIRST, dim)
        self._captions: Matrix | None = None
        self._captioned: Flags = np.zeros(_FIRST, np.bool_)
        self._numbers: NDArray[np.int64] = np.zeros((4, _FIRST), np.int64)
        self._labels: NDArray[np.int8] = np.zeros((2, _FIRST), np.int8)
        self._win_rates: Floats = np.zeros(_FIRST, np.float64)
        self._priors: Vectors = np.zeros(_FIRST, np.float32)
        self._scoring = scoring or Scoring()
        self._compass = Compass(dim, reach)
        self._grid = Grid()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def questions(self) -> Vectors:
        """Vectors of the questions, (n, d)."""
        self._settle()
        return self._questions.values[: len(self)]

    @property
    def captions(self) -> Vectors | None:
        """Vectors of the captions, (n, d), zeros where there is none; None if no memory ever had one."""
        self._settle()
        return None if self._captions is None else self._captions.values[: len(self)]

    @property
    def captioned(self) -> Flags:
        """Which memories have a caption, (n,)."""
        self._settle()
        return self._captioned[: len(self)]

    @property
    def uses(self) -> Ints:
        """How often each was shown, (n,)."""
        return self._column(_USES)

    @property
    def successes(self) -> Ints:
        """How often that went well, (n,)."""
        return self._column(_SUCCESSES)

    @property
    def created(self) -> Ints:
        """When each was made, in microseconds since 1970, (n,)."""
        return self._column(_CREATED)

    @property
    def win_rates(self) -> Floats:
        """Win rates, (n,)."""
        self._settle()
        return self._win_rates[: len(self)]

    @property
    def priors(self) -> Vectors:
        """What of the scores no question changes, (n,), roughly; see `memory_serve.ranking.Scoring`."""
        self._settle()
        return self._priors[: len(self)]

    def having(self, outcome: Outcome) -> Flags:
        """Which memories have this outcome, (n,)."""
        self._settle()
        flags: Flags = self._labels[_OUTCOME, : len(self)] == _CODES[outcome]
        return flags

    def trusted(self, levels: Sequence[Trust]) -> Flags:
        """Which memories' outcomes rest on one of these, (n,)."""
        if len(set(levels)) == len(TRUSTS):
            return np.ones(len(self), np.bool_)
        self._settle()
        flags: Flags = np.isin(self._labels[_TRUST, : len(self)], [_TRUST_CODES[level] for level in levels])
        return flags

    def foreign(self, source_id: str) -> Flags:
        """Which memories do not stem from this question, (n,); all if the id is empty.

        Ids are compared by 64-bit hashes: of a billion memories one would be left out wrongly once in 18 billion calls.
        """
        if not source_id:
            return np.ones(len(self), np.bool_)
        flags: Flags = self._column(_SOURCE) != hash(source_id)
        return flags

    def similar(self, question: Vectors, caption: Vectors | None, weights: Weights) -> Similar:
        """Similarities of a question, (d,), with its caption, (d,), if it has one, to all memories."""

        self._settle()
        pictures = None if caption is None else self._captions

        def exact(rows: Ints | slice) -> Rough:
            captions = None if pictures is None else pictures.values[rows]
            questions, captioned = self._questions.values[rows], self._captioned[rows]
            return raw_similarity(question, questions, caption, captions, captioned, weights)

        count = len(self)
        rough = self._questions.rough(question, count)
        if rough is None:
            return Similar(exact(slice(count)), 0.0, exact)
        values, error = rough
        if caption is not None and pictures is not None and (more := pictures.rough(caption, count)):
            mixed = np.float32(weights.question) * values + np.float32(weights.caption) * more[0]
            values = np.where(self._captioned[:count], mixed, values)
            error = max(error, weights.question * error + weights.caption * more[1])
        return Similar(values, error, exact)

    def near(self, question: Vectors, spot: Spot | None = None) -> Ints:
        """Rows that may be of the same question as a vector, (d,): all that are, and some more. Rising, (m,).

        Args:
            question: the vector.
            spot: where it stands, if that is known already.
        """
        if not self._compass.useful:
            return np.arange(len(self))
        found = self._grid.near(spot or self._compass.spots(question[None])[0])
        return np.array(found, np.int64) if found else _NO_ROWS

    def put(self, entries: Sequence[Entry], places: Sequence[Place] | None = None) -> None:
        """Add memories, or overwrite what was known of them.

        Args:
            entries: the memories.
            places: where their questions stand, if that is known already.
        """
        if places is None:
            places = self._compass.places(np.array([entry.question for entry in entries]))
        for entry, place in zip(entries, places, strict=True):
            row = self.rows.get(entry.id)
            if row is None:
                self.append(entry, place)
            else:
                self._settle()
                self._write(slice(row, row + 1), [entry])
                self._grid.move(row, place)

    def append(self, entry: Entry, place: Place) -> None:
        """Add a memory that is not known; `place` is where its question stands."""
        self.rows[entry.id] = len(self.ids)
        self.ids.append(entry.id)
        self._new.append(entry)
        self._grid.append(place)
        if len(self._new) >= _WAITING:
            self._settle()

    def count(self, memory_id: str, uses: int, successes: int, win_rate: float) -> None:
        """Overwrite the counters of a memory."""
        self._settle()
        row = self.rows[memory_id]
        self._numbers[_USES, row], self._numbers[_SUCCESSES, row] = uses, successes
        self._win_rates[row] = win_rate
        self._weigh(slice(row, row + 1))

    def remove(self, memory_id: str) -> None:
        """Drop a memory by moving the last one into its place."""
        self._settle()
        row, last = self.rows.pop(memory_id), len(self) - 1
        self._grid.remove(row)
        if row != last:
            self.ids[row] = self.ids[last]
            self.rows[self.ids[row]] = row
            self._questions.move(row, last)
            if self._captions is not None:
                self._captions.move(row, last)
            self._captioned[row] = self._captioned[last]
            self._numbers[:, row], self._labels[:, row] = self._numbers[:, last], self._labels[:, last]
            self._win_rates[row], self._priors[row] = self._win_rates[last], self._priors[last]
        self.ids.pop()

    def _column(self, number: int) -> Ints:
        self._settle()
        return self._numbers[number, : len(self)]

    def _settle(self) -> None:
        """Put what waits in the arrays."""
        if self._new:
            entries, self._new = self._new, []
            self._reserve(len(self))
            self._write(slice(len(self) - len(entries), len(self)), entries)

    def _write(self, rows: slice, entries: Sequence[Entry]) -> None:
        self._questions.write(rows, [e.question for e in entries])
        self._numbers[:, rows] = np.array([_numbers(e) for e in entries], np.int64).T
        self._labels[:, rows] = np.array([(_CODES[e.outcome], _TRUST_CODES[e.trust]) for e in entries], np.int8).T
        self._win_rates[rows] = [e.win_rate for e in entries]
        self._weigh(rows)
        self._captioned[rows] = [e.caption is not None for e in entries]
        if self._captions is None and self._captioned[rows].any():
            self._captions = Matrix(*self._questions.values.shape)
        if self._captions is not None:
            none = np.zeros(self._captions.values.shape[1], np.float32)
            self._captions.write(rows, [none if e.caption is None else e.caption for e in entries])

    def _weigh(self, rows: slice) -> None:
        uses, successes = self._numbers[_USES, rows], self._numbers[_SUCCESSES, rows]
        self._priors[rows] = self._scoring.prior(uses, successes, self._win_rates[rows])

    def _reserve(self, wanted: int) -> None:
        have = len(self._captioned)
        if wanted <= have:
            return
        more = max(wanted, 2 * have) - have
        self._questions.grow(more)
        if self._captions is not None:
            self._captions.grow(more)
        self._captioned = np.concatenate([self._captioned, np.zeros(more, np.bool_)])
        self._numbers = np.concatenate([self._numbers, np.zeros((4, more), np.int64)], axis=1)
        self._labels = np.concatenate([self._labels, np.zeros((2, more), np.int8)], axis=1)
        self._win_rates = np.concatenate([self._win_rates, np.zeros(more)])
        self._priors = np.concatenate([self._priors, np.zeros(more, np.float32)])


def _numbers(e: Entry) -> tuple[int, ...]:
    return e.uses, e.successes, e.created, hash(e.source_id)


class Index:
    """All buckets, and where each memory stands.

    Args:
        dim: length of the vectors.
        reach: see `Bucket`.
        scoring: see `Bucket`.
    """

    def __init__(self, dim: int, reach: float = 0.0, scoring: Scoring | None = None) -> None:
        self.dim = dim
        self._scoring = scoring
        self._reach = reach
        self._compass = Compass(dim, reach)
        self._buckets: dict[Key, Bucket] = {}
        self._keys: dict[Key, Key] = {}
        """One tuple for each bucket: one for each memory would take much room."""
        self._places: dict[str, Key] = {}

    def __len__(self) -> int:
        return len(self._places)

    def place(self, memory_id: str) -> Key | None:
        """The bucket of a memory, or None if it is not known."""
        return self._places.get(memory_id)

    def bucket(self, key: Key) -> Bucket | None:
        """The bucket, or None if it is empty."""
        bucket = self._buckets.get(key)
        return bucket if bucket else None

    def buckets(self, namespace: str) -> Iterator[Key]:
        """Keys of the buckets of a namespace that are not empty, sorted."""
        yield from sorted(key for key, bucket in self._buckets.items() if key[0] == namespace and bucket)

    def places(self, questions: Sequence[Vectors]) -> list[Place]:
        """Where vectors, each of shape (d,), stand in every bucket."""
        return self._compass.places(np.array(questions)) if questions else []

    def spots(self, questions: Sequence[Vectors]) -> list[Spot]:
        """The same with what is near."""
        return self._compass.spots(np.array(questions)) if questions else []

    def put(self, *entries: Entry, places: Sequence[Place] | None = None) -> None:
        """Add memories, or overwrite what was known of them; no id twice in one call.

        Args:
            entries: the memories.
            places: where their questions stand, if that is known already.
        """
        if places is None:
            places = self.places([entry.question for entry in entries])
        sorted_out: dict[Key, tuple[Key, list[Entry], list[Place]]] = {}
        for entry, place in zip(entries, places, strict=True):
            belonging = sorted_out.get(entry.bucket)
            if belonging is None:
                belonging = sorted_out[entry.bucket] = (self._key(entry.bucket), [], [])
            key, some, where = belonging
            if self._places.get(entry.id, key) != key:
                self.remove(entry.id)
            self._places[entry.id] = key
            some.append(entry)
            where.append(place)
        for key, some, where in sorted_out.values():
            self._buckets[key].put(some, where)

    def append(self, entry: Entry, place: Place) -> None:
        """Add a memory that is not known; `place` is where its question stands."""
        self._places[entry.id] = key = self._key(entry.bucket)
        self._buckets[key].append(entry, place)

    def _key(self, given: Key) -> Key:
        """The one tuple for a bucket, which is made if it is not there."""
        key = self._keys.get(given)
        if key is None:
            key = self._keys[given] = given
            self._buckets[given] = Bucket(self.dim, self._reach, self._scoring)
        return key

    def count(self, memory_id: str, uses: int, successes: int, win_rate: float) -> None:
        """Overwrite the counters of a memory."""
        self._buckets[self._places[memory_id]].count(memory_id, uses, successes, win_rate)

    def remove(self, memory_id: str) -> None:
        """Forget a memory; one that is not there is no fault."""
        key = self._places.pop(memory_id, None)
        if key is not None:
            self._buckets[key].remove(memory_id)

    def clear(self) -> None:
        """Forget all memories."""
        self._buckets.clear()
        self._keys.clear()
        self._places.clear()
