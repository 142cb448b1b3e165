"""Hybrid ranking: reciprocal rank fusion of several rankers (Cormack, Clarke and Buettcher, SIGIR 2009)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from local_search.ranking import Ranker, Ranking, best

RRF_K = 60
"""The paper's constant: how little the very first ranks outweigh the next ones."""


def fuse(rankings: Sequence[Ranking], k: int) -> Ranking:
    """The `k` best rows by sum over rankings of 1 / (RRF_K + rank), rank from 1; a row not ranked adds nothing."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (row, _) in enumerate(ranking, 1):
            scores[row] = scores.get(row, 0.0) + 1.0 / (RRF_K + rank)
    return best(np.array(list(scores), dtype=np.int64), np.array(list(scores.values()), dtype=np.float64), k)


class Hybrid:
    """Fuses rankers over the same rows."""

    def __init__(self, rankers: Sequence[Ranker]) -> None:
        self._rankers = rankers

    def top(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """See `Ranker`. Each ranker is asked for more than `k`: a row may be middling in all and best in the sum."""
        pool = max(100, 10 * k)
        pools = [ranker.top(queries, pool) for ranker in self._rankers]
        return [fuse(rankings, k) for rankings in zip(*pools, strict=True)]
