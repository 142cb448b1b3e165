"""What a ranker answers, and how ties are broken: by corpus order, so that a search is the same on every run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Ranking = list[tuple[int, float]]
"""Row numbers with their scores, best first; rows of equal score in corpus order."""


class Ranker(Protocol):
    """Ranks the rows of one index. Safe to call from many threads."""

    def top(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """At most `k` rows for each query; the ranking of a query does not depend on the others beside it."""
        ...


def best(rows: NDArray[np.integer[Any]], scores: NDArray[np.floating[Any]], k: int) -> Ranking:
    """The `k` best of `rows` (n,) by `scores` (n,).

    The cut at `k` keeps all rows that share the k-th score until they are sorted: a plain partial sort would choose
    among them by chance.
    """
    if len(rows) > k:
        kept = scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
        rows, scores = rows[kept], scores[kept]
    order = np.lexsort((rows, -scores))[:k]
    return [(int(rows[i]), float(scores[i])) for i in order]
