"""How a memory stays small: what is nearly the same is merged, what exceeds a capacity is dropped.

Two capacities: of a bucket, and of a namespace over all its buckets, which are seldom asked for equally often. What is
dropped, for a memory shown u times, s of them in runs that went well, a old (by the newest memory that is looked at):

    coverage   the least (s+2)/(a + A/2) · d/D first
    value      the lowest value (s+1)/(u+2) first: 1/2 if it was never shown, towards 1 or 0 as it proves itself
    age        the oldest first
    value_age  the lowest value · 2^(-a / half life) first

`coverage` drops the memory whose loss costs least. (s+2)/(a + A/2) is how often it helps, successes in time, as if it
had helped twice in a time of A/2 before it was made; A is the age of the oldest memory of its bucket. d is what a
question that it helped with loses by its going: the distance √(1 - similarity) to the nearest memory of the same bucket
and outcome; D is the mean of d there, as some questions are further apart than others. That is the greedy rule
for the k-median problem, each memory being a place where questions come from. Two that nearly coincide share their
questions, so each helps seldom and is near the other: one goes, and the other takes over. Of each bucket and outcome
only the 128 memories that help least often (or four times as many as must go) are compared with all others.

For all policies: failures beyond their share go before anything else. Of equals the oldest goes first. What was added
in the same call goes last, else nothing new could ever enter among proven memories. From 256 on, a little more than
the excess is dropped (1/256 of the capacity, at most 64), so that not every addition has to look.

Absorbed memories: a checkpoint marks the memories that its weights have learned; compacting drops those that were also
shown `absorbed_uses` times or more. What the weights know and what was given its chance needs no room; what was
absorbed but hardly used stays, as nothing yet tells whether the weights do as well without it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Container, Iterator, Sequence

import numpy as np

from local_search.protocol import Vectors
from memory_serve.config import Keep
from memory_serve.ranking import Flags, Floats, Ints
from memory_serve.vectors import OUTCOMES, Bucket

_DAY = 86_400_000_000
"""Microseconds."""
_BLOCK = 512
_SPARE = 256
"""One in so many is dropped beyond the excess."""
_MOST_SPARE = 64
_LOOKED_AT = 128
_HELPED, _BEFORE = 2, 0.5
"""What a memory is taken to have done before it was made: how often it helped, in how much of the oldest one's age."""
_CLOSEST = 1e-4
"""Squares of distances below this are rounding."""


def surplus(
    buckets: Sequence[Bucket], capacity: int, keep: Keep, weights: tuple[float, float], fresh: Container[str]
) -> list[str]:
    """Ids of the memories that some buckets must give up together, the first to go first.

    Args:
        buckets: all that share a capacity.
        capacity: what they may hold; 0: anything.
        keep: policy, share of failures.
        weights: shares of question and caption in the similarity, where both have one.
        fresh: ids of the memories that go last.
    """
    size = sum(len(bucket) for bucket in buckets)
    if not capacity or size <= capacity:
        return []
    crowd = _Crowd(buckets, keep, weights, fresh)
    excess = size - capacity + min(_MOST_SPARE, capacity // _SPARE)
    beyond = int(crowd.failed.sum()) - math.ceil(keep.failures * capacity)
    gone = crowd.least(crowd.failed, min(excess, beyond)) if beyond > 0 else []
    gone += crowd.least(crowd.stays, excess - len(gone))
    return [crowd.ids[row] for row in gone]


class _Crowd:
    """The n memories of some buckets; see `surplus`. `stays` says which are still there, (n,)."""

    def __init__(
        self, buckets: Sequence[Bucket], keep: Keep, weights: tuple[float, float], fresh: Container[str]
    ) -> None:
        self.ids = [name for bucket in buckets for name in bucket.ids]
        self.stays: Flags = np.ones(len(self.ids), np.bool_)
        self.failed: Flags = np.concatenate([bucket.having("incorrect") for bucket in buckets])
        self._buckets = buckets
        self._first = np.cumsum([0, *map(len, buckets)])
        self._keep = keep
        self._weights = weights
        self._fresh = np.fromiter((name in fresh for name in self.ids), np.bool_, len(self.ids))
        self._created: Ints = np.concatenate([bucket.created for bucket in buckets])
        self._place: Ints = np.empty(len(self.ids), np.int64)
        self._place[np.lexsort((np.array(self.ids), self._created))] = np.arange(len(self.ids))

    def least(self, among: Flags, count: int) -> list[int]:
        """Take away so many of some memories, those that are worth least first; their rows."""
        rows = np.flatnonzero(among & self.stays)
        if self._keep.policy == "coverage":
            return self._least_covering(rows, count)
        worth = np.concatenate([_worth(bucket, self._keep) for bucket in self._buckets])
        chosen: list[int] = rows[np.lexsort((self._place[rows], worth[rows], self._fresh[rows]))][:count].tolist()
        self.stays[chosen] = False
        return chosen

    def _least_covering(self, rows: Ints, count: int) -> list[int]:
        """The greedy choice. A loss only costs more after another, so just what comes first is looked at anew."""
        weight, distance, nearest = self._measured(max(_LOOKED_AT, 4 * count))
        heap = [(bool(self._fresh[row]), weight[row] * distance[row], int(self._place[row]), int(row)) for row in rows]
        heapq.heapify(heap)
        chosen: list[int] = []
        while len(chosen) < min(count, len(rows)):
            fresh, _, place, row = heapq.heappop(heap)
            if nearest[row] >= 0 and not self.stays[nearest[row]]:
                (distance[row],), (nearest[row],) = self._nearest(np.array([row]))
                heapq.heappush(heap, (fresh, weight[row] * distance[row], place, row))
                continue
            self.stays[row] = False
            chosen.append(row)
        return chosen

    def _measured(self, most: int) -> tuple[Floats, Floats, Ints]:
        """How often each memory helps over D, infinity if that was not looked at, d, and which is nearest; (n,) each.

        Args:
            most: how many are looked at of each bucket and outcome.
        """
        weight, distance, nearest = (np.full(len(self.ids), value) for value in (np.inf, 1.0, -1))
        newest = self._created[self.stays].max()
        for bucket, first in zip(self._buckets, self._first, strict=False):
            here = slice(first, first + len(bucket))
            if not self.stays[here].any():
                continue
            age = (newest - bucket.created).astype(np.float64)
            helps = (bucket.successes + _HELPED) / (age + _BEFORE * age[self.stays[here]].max() + 1)
            for outcome in OUTCOMES:
                rows = np.flatnonzero(bucket.having(outcome) & self.stays[here])
                some = rows[np.lexsort((self._place[here][rows], helps[rows]))[:most]]
                if len(some):
                    distance[first + some], nearest[first + some] = self._nearest(first + some)
                    weight[first + some] = helps[some] / distance[first + some].mean()
        return weight, distance, nearest.astype(np.int64)

    def _nearest(self, rows: Ints) -> tuple[Floats, Ints]:
        """Distance and row of the nearest that stays, for memories of one bucket and outcome; -1 if there is none."""
        number = int(np.searchsorted(self._first, rows[0], "right")) - 1
        bucket, first = self._buckets[number], self._first[number]
        outcome = next(outcome for outcome in OUTCOMES if bucket.having(outcome)[rows[0] - first])
        others = np.flatnonzero(bucket.having(outcome) & self.stays[first : first + len(bucket)])
        similar, nearest = np.full(len(rows), -1.0), np.full(len(rows), -1)
        for start in range(0, len(rows) if len(others) > 1 else 0, _BLOCK):
            block = rows[start : start + _BLOCK] - first
            found = _block(bucket, block, others, self._weights)
            found[block[:, None] == others[None, :]] = -np.inf
            best = found.argmax(axis=1)
            # Rounded, as the last digits of a product depend on where a memory stands.
            similar[start : start + _BLOCK] = found[np.arange(len(block)), best].round(5)
            nearest[start : start + _BLOCK] = others[best] + first
        return np.sqrt(np.maximum(1 - similar, _CLOSEST)), nearest


def _worth(bucket: Bucket, keep: Keep) -> Floats:
    """What the other policies go by, (n,); the lowest goes first. Only the order means anything."""
    value = (bucket.successes + 1) / (bucket.uses + 2)
    if keep.policy == "value":
        return np.asarray(value, np.float64)
    if keep.policy == "age":
        return bucket.created.astype(np.float64)
    # log2 of value · 2^(-age / half life), less what is the same for all: no clock is needed.
    return np.asarray(np.log2(value) + bucket.created / (keep.half_life_days * _DAY), np.float64)


def alike(
    bucket: Bucket, threshold: float, weights: tuple[float, float], mergeable: Flags
) -> Iterator[tuple[str, str]]:
    """Pairs of memories of one outcome whose similarity reaches a threshold, each pair once.

    Args:
        bucket: n memories; the cost is n² products.
        threshold: similarity from which they are merged.
        weights: shares of question and caption, where both have one.
        mergeable: which memories may be merged at all, (n,).
    """
    for outcome in OUTCOMES:
        rows = np.flatnonzero(bucket.having(outcome) & mergeable)
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            found = _block(bucket, block, rows[start:], weights) >= threshold
            for i, j in zip(*np.nonzero(found), strict=True):
                if i < j:
                    yield bucket.ids[block[i]], bucket.ids[rows[start + j]]


def _block(bucket: Bucket, some: Ints, others: Ints, weights: tuple[float, float]) -> Floats:
    """Similarities, (a, b); -1 where one has a caption and the other has none."""
    plain: Vectors = bucket.questions[some] @ bucket.questions[others].T
    if bucket.captions is None:
        return plain.astype(np.float64)
    pictures = bucket.captions[some] @ bucket.captions[others].T
    here, there = bucket.captioned[some][:, None], bucket.captioned[others][None, :]
    both = weights[0] * plain + weights[1] * pictures
    similar: Floats = np.where(here & there, both, np.where(here | there, -1.0, plain))
    return similar
