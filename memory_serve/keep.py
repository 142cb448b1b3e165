"""How a memory stays small: what is nearly the same is merged, what exceeds a capacity is dropped.

Two capacities: of a bucket, and of a namespace over all its buckets, which are seldom asked for equally often. What is
dropped, for a memory shown u times, s of them in runs that went well, a old (by the newest memory that is looked at):

    coverage   the least (s+1)/(a + A/4) · d/D first
    value      the lowest value (s+1)/(u+2) first: 1/2 if it was never shown, towards 1 or 0 as it proves itself
    age        the oldest first
    value_age  the lowest value · 2^(-a / half life) first

`coverage` drops the memory whose loss costs least. (s+1)/(a + A/4) is how often it helps, successes in time, as if it
had helped once in a time of A/4 before it was made; A is the age of the oldest memory of its bucket. d is what a
question that it helped with loses by its going: the distance √(1 - similarity) to the nearest memory of the same bucket
and outcome; D is the mean of d there, as some questions are further apart than others. That is the greedy rule for the
k-median problem, each memory being a place where questions come from. Two that nearly coincide share their questions,
so each helps seldom and is near the other: one goes, and the other takes over. For each bucket and outcome only the 128
memories that help least often are compared with all others.

For all policies: failures beyond their share go before anything else. Of equals the oldest goes first. What was added
in the same call goes last, else nothing new could ever enter among proven memories. From 256 on, a little more than
the excess is dropped (1/256 of the capacity, at most 64), so that not every addition has to look.

Absorbed memories: a checkpoint marks the memories that its weights have learned; compacting drops those that were also
shown `absorbed_uses` times or more. What the weights know and what was given its chance needs no room; what was
absorbed but hardly used stays, as nothing yet tells whether the weights do as well without it.
"""

from __future__ import annotations

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
_AT_ONCE = 64
_LOOKED_AT = 128
_PRIOR = 0.25
"""In how much of the oldest memory's age a new one is taken to help once."""
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
    excess = size - capacity + min(_AT_ONCE, capacity // _SPARE)
    most_failures = math.ceil(keep.failures * capacity)
    gone: list[int] = []
    while excess > len(gone):
        # All at once where there is little to do; else in rounds, between which distances are measured anew.
        count = min(excess - len(gone), max(_AT_ONCE, int(crowd.stays.sum()) // 16))
        among = crowd.failed & crowd.stays
        if (beyond := int(among.sum()) - most_failures) > 0:
            count = min(count, beyond)
        else:
            among = crowd.stays
        chosen = crowd.least(among, count)
        crowd.stays[chosen] = False
        gone += chosen
    return [crowd.ids[row] for row in gone]


class _Crowd:
    """The n memories of some buckets; see `surplus`. `stays` says which are still there, (n,)."""

    def __init__(
        self, buckets: Sequence[Bucket], keep: Keep, weights: tuple[float, float], fresh: Container[str]
    ) -> None:
        self.ids = [name for bucket in buckets for name in bucket.ids]
        self.stays: Flags = np.ones(len(self.ids), np.bool_)
        self.failed: Flags = np.concatenate([bucket.having("incorrect") for bucket in buckets])
        self._buckets = [bucket for bucket in buckets if len(bucket)]
        self._keep = keep
        self._weights = weights
        self._fresh = np.fromiter((name in fresh for name in self.ids), np.bool_, len(self.ids))
        self._created: Ints = np.concatenate([bucket.created for bucket in buckets])
        self._place: Ints = np.empty(len(self.ids), np.int64)
        self._place[np.lexsort((np.array(self.ids), self._created))] = np.arange(len(self.ids))

    def least(self, among: Flags, count: int) -> list[int]:
        """The rows of so many that are worth least, of two that are nearest to each other only one; at least one."""
        if self._keep.policy == "coverage":
            worth, nearest = self._coverage(count)
        else:
            worth = np.concatenate([_worth(bucket, self._keep) for bucket in self._buckets])
            nearest = np.full(len(worth), -1)
        rows = np.flatnonzero(among)
        chosen: dict[int, None] = {}
        for row in rows[np.lexsort((self._place[rows], worth[rows], self._fresh[rows]))].tolist():
            if len(chosen) == count:
                break
            if int(nearest[row]) not in chosen:  # else its loss costs more by now
                chosen[row] = None
        return list(chosen)

    def _coverage(self, count: int) -> tuple[Floats, Ints]:
        """What the loss of each memory costs, infinity if that was not looked at, and which is nearest, or -1; (n,)."""
        cost, nearest = np.full(len(self.ids), np.inf), np.full(len(self.ids), -1)
        newest = self._created[self.stays].max()
        first = 0
        for bucket in self._buckets:
            here = slice(first, first + len(bucket))
            first += len(bucket)
            if not self.stays[here].any():
                continue
            age = (newest - bucket.created).astype(np.float64)
            rate = (bucket.successes + 1) / (age + _PRIOR * age[self.stays[here]].max() + 1)
            for outcome in OUTCOMES:
                rows = np.flatnonzero(bucket.having(outcome) & self.stays[here])
                seldom = np.lexsort((self._place[here][rows], rate[rows]))[: max(_LOOKED_AT, 4 * count)]
                some = rows[seldom]
                if len(some):
                    similar, which = _nearest(bucket, some, rows, self._weights)
                    distance = np.sqrt(np.maximum(1 - similar, _CLOSEST))
                    cost[here][some] = rate[some] * distance / distance.mean()
                    nearest[here][some] = np.where(which < 0, -1, which + here.start)
        return cost, nearest


def _nearest(bucket: Bucket, some: Ints, others: Ints, weights: tuple[float, float]) -> tuple[Floats, Ints]:
    """Similarity and row of the nearest of `others`, (m,) each; -1 where there is none besides itself."""
    similar, nearest = np.full(len(some), -1.0), np.full(len(some), -1)
    if len(others) < 2:
        return similar, nearest
    for start in range(0, len(some), _BLOCK):
        block = some[start : start + _BLOCK]
        found = _block(bucket, block, others, weights)
        found[block[:, None] == others[None, :]] = -np.inf
        best = found.argmax(axis=1)
        # Rounded, as the last digits of a product depend on where a memory stands.
        similar[start : start + _BLOCK] = found[np.arange(len(block)), best].round(5)
        nearest[start : start + _BLOCK] = others[best]
    return similar, nearest


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
