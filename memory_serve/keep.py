"""How a memory stays small: what is nearly the same is merged, what exceeds a bucket's capacity is dropped.

Value of a memory is (s+1)/(u+2) for s successes in u uses: 1/2 while it was never shown, towards 1 or 0 as it proves
itself. Policies of eviction:

    value      the lowest value goes first, of equals the oldest
    age        the oldest goes first
    value_age  the lowest value · 2^(-age / half life) goes first

What was added in the same call goes last, else nothing new could ever enter a bucket full of proven memories.

Absorbed memories: a checkpoint marks the memories that its weights have learned; compacting drops those that were also
shown `absorbed_uses` times or more. What the weights know and what was given its chance needs no room; what was
absorbed but hardly used stays, as nothing yet tells whether the weights do as well without it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from local_search.protocol import Vectors
from memory_serve.config import Keep
from memory_serve.ranking import Flags, Floats, Ints
from memory_serve.vectors import OUTCOMES, Bucket

_DAY = 86_400_000_000
"""Microseconds."""
_BLOCK = 512


def surplus(bucket: Bucket, keep: Keep, fresh: Flags) -> list[str]:
    """Ids of the memories that a bucket must give up, the first to go first.

    Args:
        bucket: n memories.
        keep: capacity and policy.
        fresh: which of them go last, (n,).
    """
    excess = len(bucket) - keep.capacity
    if not keep.capacity or excess <= 0:
        return []
    order = np.lexsort((np.array(bucket.ids), bucket.created, worth(bucket, keep), fresh))
    return [bucket.ids[row] for row in order[:excess]]


def worth(bucket: Bucket, keep: Keep) -> Floats:
    """What the policy goes by, (n,); the lowest goes first. Only the order means anything."""
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
