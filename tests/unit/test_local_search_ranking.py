"""Tie breaking and rank fusion, against values worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_search.hybrid import Hybrid, fuse
from local_search.ranking import Ranking, best


def test_best_sorts_by_score_then_by_corpus_order() -> None:
    rows = np.array([9, 4, 7, 2])
    scores = np.array([1.0, 3.0, 1.0, 3.0])
    assert best(rows, scores, 4) == [(2, 3.0), (4, 3.0), (7, 1.0), (9, 1.0)]
    assert best(rows, scores, 3) == [(2, 3.0), (4, 3.0), (7, 1.0)]
    assert best(rows, scores, 1) == [(2, 3.0)]
    assert best(rows[:0], scores[:0], 5) == []


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 40))
def test_best_is_the_head_of_a_full_sort(values: list[int], k: int) -> None:
    expected = sorted(enumerate(map(float, values)), key=lambda pair: (-pair[1], pair[0]))[:k]
    assert best(np.arange(len(values)), np.array(values, dtype=np.float32), k) == expected


def test_fusion_sums_reciprocal_ranks() -> None:
    fused = fuse([[(5, 9.0), (3, 8.0), (1, 7.0)], [(3, 0.9), (8, 0.8)]], k=10)
    assert [row for row, _ in fused] == [3, 5, 8, 1]
    assert [score for _, score in fused] == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63])


def test_fusion_breaks_ties_by_corpus_order_and_cuts_at_k() -> None:
    assert [row for row, _ in fuse([[(9, 1.0)], [(2, 1.0)], [(5, 1.0)]], k=2)] == [2, 5]
    assert fuse([[], []], k=3) == []


class _Fixed:
    def __init__(self, ranking: Ranking) -> None:
        self.ranking = ranking
        self.asked: list[int] = []

    def top(self, queries: Sequence[str], k: int) -> list[Ranking]:
        self.asked.append(k)
        return [self.ranking[:k] for _ in queries]


def test_hybrid_fuses_deeper_than_it_answers() -> None:
    """A row that is second for both rankers beats rows that only one of them puts first."""
    left, right = _Fixed([(1, 9.0), (7, 8.0)]), _Fixed([(2, 0.9), (7, 0.8)])
    hybrid = Hybrid([left, right])
    assert [[row for row, _ in ranking] for ranking in hybrid.top(["a", "b"], 1)] == [[7], [7]]
    assert left.asked == right.asked == [100]
    hybrid.top(["a"], 50)
    assert left.asked[-1] == 500
