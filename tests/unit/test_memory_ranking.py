"""The recall score against numbers worked out by hand, and its properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_serve.config import Weights
from memory_serve.ranking import best, normalise, score, similarity

W = Weights()


def unit(*values: float) -> Any:
    vector = np.array(values, np.float32)
    return vector / np.linalg.norm(vector)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def test_similarity_without_captions_is_the_cosine() -> None:
    asked = unit(1, 0)
    stored = np.stack([unit(1, 0), unit(1, 1), unit(0, 1), unit(-1, 0)])
    found = similarity(asked, stored, None, None, np.zeros(4, np.bool_), W)
    assert found.tolist() == pytest.approx([1.0, 2**-0.5, 0.0, -1.0], abs=1e-6)


def test_similarity_with_captions_on_both_sides_is_08_and_02() -> None:
    asked, caption = unit(1, 0), unit(0, 1)
    stored = np.stack([unit(1, 0), unit(1, 0), unit(0, 1)])
    captions = np.stack([unit(0, 1), np.zeros(2, np.float32), unit(1, 1)])
    captioned = np.array([True, False, True])
    found = similarity(asked, stored, caption, captions, captioned, W)
    # 0.8·1 + 0.2·1; the second has no caption: the cosine alone; 0.8·0 + 0.2·cos 45°
    assert found.tolist() == pytest.approx([1.0, 1.0, 0.2 * 2**-0.5], abs=1e-6)
    # Nor does a caption of the memory count when the question has none.
    assert similarity(asked, stored, None, captions, captioned, W).tolist() == pytest.approx([1, 1, 0], abs=1e-6)


def test_normalised_over_the_bucket() -> None:
    assert normalise(np.array([0.2, 0.5, 0.8])).tolist() == pytest.approx([0.0, 0.5, 1.0], abs=1e-6)
    assert normalise(np.array([0.7])).tolist() == [0.0]
    assert normalise(np.array([0.7, 0.7])).tolist() == [0.0, 0.0]


def test_score_by_hand() -> None:
    scores = score(np.array([0.9, 0.5, 0.1]), ints(0, 4, 1), ints(0, 3, 0), W)
    # normalised 1, 1/2, 0; value 0, 3/5, 0; frequency 1, 1/5, 1/2
    assert scores.terms["similarity"].tolist() == pytest.approx([0.7, 0.35, 0.0], abs=1e-6)
    assert scores.terms["value"].tolist() == pytest.approx([0.0, 0.18, 0.0], abs=1e-12)
    assert scores.terms["frequency"].tolist() == pytest.approx([0.3, 0.06, 0.15], abs=1e-12)
    assert scores.total.tolist() == pytest.approx([1.0, 0.59, 0.15], abs=1e-6)
    assert scores.similarity.tolist() == [0.9, 0.5, 0.1]


def test_an_unseen_memory_does_not_outrank_a_proven_one_by_its_value() -> None:
    scores = score(np.array([0.5, 0.5]), ints(0, 9), ints(0, 9), W)
    assert scores.terms["value"].tolist() == pytest.approx([0.0, 0.27])


def test_other_weights() -> None:
    weights = Weights(similarity=1.0, value=0.0, frequency=2.0)
    assert score(np.array([0.4]), ints(1), ints(1), weights).total.tolist() == [1.0]


def test_best_breaks_ties_by_newest_then_id() -> None:
    total = np.array([1.0, 1.0, 1.0, 2.0, 0.5])
    order = best(total, ints(5, 7, 7, 1, 9), ["a", "c", "b", "d", "e"], np.ones(5, np.bool_), 5)
    assert order == [3, 2, 1, 0, 4]


def test_best_looks_only_among_the_allowed() -> None:
    total, allowed = np.array([3.0, 2.0, 1.0]), np.array([False, True, True])
    assert best(total, ints(0, 0, 0), ["a", "b", "c"], allowed, 2) == [1, 2]
    assert best(total, ints(0, 0, 0), ["a", "b", "c"], np.zeros(3, np.bool_), 2) == []


@given(
    st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.3]), st.integers(0, 3), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 5),
)
def test_best_agrees_with_a_full_sort(rows: list[tuple[float, int, bool]], k: int) -> None:
    ids = [f"{number:02}" for number in range(len(rows))]
    wanted = [i for _, _, i in sorted((-t, -c, i) for i, (t, c, allowed) in enumerate(rows) if allowed)][:k]
    totals, created, allowed = (np.array(column) for column in zip(*rows, strict=True))
    assert best(totals, created, ids, allowed, k) == wanted


def test_a_similarity_does_not_depend_on_where_its_row_stands() -> None:
    rng = np.random.default_rng(1)
    stored = rng.standard_normal((997, 384)).astype(np.float32)
    stored /= np.linalg.norm(stored, axis=1, keepdims=True)
    order = rng.permutation(997)
    none = np.zeros(997, np.bool_)
    whole = similarity(stored[3], stored, None, None, none, W)
    moved = similarity(stored[3], np.ascontiguousarray(stored[order]), None, None, none, W)
    alone = similarity(stored[3], np.ascontiguousarray(stored[17:18]), None, None, none[:1], W)
    assert moved.tolist() == whole[order].tolist()
    assert alone[0] == whole[17]
