"""Intervals, tests of difference and agreement, against scipy on the same data and values reckoned by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from inference.statistics import (
    agreement,
    compare,
    holm,
    mcnemar,
    mean_interval,
    paired_bootstrap,
    permutation,
    wilson,
)
from mia.errors import DataError


def scores(n: int, seed: int = 5) -> tuple[list[float], list[float]]:
    """Two runs over n questions, B a little better than A."""
    chance = np.random.default_rng(seed)
    a = chance.random(n)
    return a.tolist(), np.clip(a + chance.normal(0.04, 0.2, n), 0, 1).tolist()


def difference(a: NDArray[np.float64], b: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    return np.asarray(np.mean(b, axis=axis) - np.mean(a, axis=axis))


@pytest.mark.parametrize(("n", "seed", "level"), [(5, 0, 0.95), (200, 1, 0.95), (1500, 2, 0.9)])
def test_bootstrap_of_a_mean_is_scipys(n: int, seed: int, level: float) -> None:
    values, _ = scores(n)
    wanted = stats.bootstrap(
        (values,), np.mean, n_resamples=4000, method="percentile", confidence_level=level,
        rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    found = mean_interval(values, seed, 4000, level)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)
    assert found.mean == pytest.approx(sum(values) / n)
    assert found.n == n


@pytest.mark.parametrize(("n", "seed"), [(6, 0), (300, 7)])
def test_paired_bootstrap_is_scipys(n: int, seed: int) -> None:
    a, b = scores(n)
    wanted = stats.bootstrap(
        (a, b), difference, paired=True, n_resamples=3000, method="percentile", rng=np.random.default_rng(seed)
    ).confidence_interval
    found = paired_bootstrap(a, b, seed, 3000)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_bootstrap_over_several_chunks_is_one_stream() -> None:
    values, _ = scores(9000)  # more than one chunk of draws
    wanted = stats.bootstrap(
        (values,), np.mean, n_resamples=600, method="percentile", batch=100, rng=np.random.default_rng(0)
    ).confidence_interval
    found = mean_interval(values, resamples=600)
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 40), (3, 20), (40, 40), (617, 1000)])
def test_proportions_have_wilsons_interval(successes: int, n: int) -> None:
    wanted = stats.binomtest(successes, n).proportion_ci(method="wilson")
    expected = (successes / n, wanted.low, wanted.high)
    for found in (wilson(successes, n), mean_interval([1.0] * successes + [0.0] * (n - successes))):
        assert (found.mean, found.low, found.high) == pytest.approx(expected, abs=1e-9)


def test_no_values_are_unknown_and_not_zero() -> None:
    for found in (mean_interval([]), wilson(0, 0), paired_bootstrap([], [])):
        assert found.model_dump() == {"mean": None, "low": None, "high": None, "n": 0}


def test_one_seed_gives_one_interval() -> None:
    values, _ = scores(50)
    assert mean_interval(values, 3) == mean_interval(values, 3)
    assert mean_interval(values, 3) != mean_interval(values, 4)


@given(gained=st.integers(0, 400), lost=st.integers(0, 400))
def test_mcnemar_is_scipys_binomial_test(gained: int, lost: int) -> None:
    wanted = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(wanted, rel=1e-9)


def test_mcnemar_by_hand() -> None:
    assert mcnemar(1, 5) == 2 * (1 + 6) / 64
    assert mcnemar(0, 10) == 2 / 1024
    assert mcnemar(3, 3) == 1.0
    assert mcnemar(5000, 0) == 0.0  # 2 ** -4999 is less than a float holds
    assert mcnemar(20_000, 20_000) == 1.0


def test_exact_permutation_is_scipys() -> None:
    a, b = scores(12)
    wanted = stats.permutation_test((b, a), lambda x, y, axis=-1: np.mean(x - y, axis=axis), permutation_type="samples")
    assert permutation(a, b) == pytest.approx(wanted.pvalue, abs=1e-12)
    assert permutation([0, 0, 0, 0, 0, 0.5], [1, 1, 1, 1, 1, 0.5]) == 2 / 32


def test_random_permutation_is_near_scipys() -> None:
    a, b = scores(60)
    wanted = stats.permutation_test(
        (b, a), lambda x, y, axis=-1: np.mean(x - y, axis=axis), permutation_type="samples", n_resamples=20_000,
        rng=np.random.default_rng(1),
    )  # fmt: skip
    found = permutation(a, b, seed=2, resamples=20_000)
    spread = math.sqrt(wanted.pvalue / 20_000)
    assert found == pytest.approx(wanted.pvalue, abs=8 * spread)


def test_permutation_sees_no_difference_where_there_is_none() -> None:
    assert permutation([], []) == 1.0
    assert permutation([0.3, 0.7], [0.3, 0.7]) == 1.0
    assert permutation([0.0, 1.0] * 40, [1.0, 0.0] * 40) == 1.0


def test_two_runs_with_known_flips() -> None:
    names = [f"q{n}" for n in range(100)]
    a: dict[str, float | None] = {name: float(n < 50) for n, name in enumerate(names)}
    b: dict[str, float | None] = {**a, "q3": 0.0, "q9": 0.0, **dict.fromkeys(names[50:61], 1.0)}
    a["only a"], b["only b"], b["q99"], a["q98"] = 1.0, 0.0, None, None
    found = compare(a, b, seed=11)
    kept = names[:98]
    left, right = [float(a[n] or 0) for n in kept], [float(b[n] or 0) for n in kept]
    wanted = stats.bootstrap(
        (left, right), difference, paired=True, n_resamples=10_000, method="percentile", rng=np.random.default_rng(11)
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-12)
    assert found.p_value == pytest.approx(stats.binomtest(2, 13).pvalue)
    assert (found.test, found.n) == ("mcnemar", 98)
    assert (found.mean_a, found.mean_b) == pytest.approx((50 / 98, 59 / 98))
    assert found.difference == pytest.approx(9 / 98)
    assert found.gained == tuple(names[50:61])
    assert found.lost == ("q3", "q9")
    assert found.left_out == {"only_a": 1, "only_b": 1, "unknown": 2}


def test_scores_between_0_and_1_are_compared_by_permutation() -> None:
    a, b = scores(40)
    found = compare({str(n): x for n, x in enumerate(a)}, {str(n): x for n, x in enumerate(b)}, seed=4)
    assert found.test == "permutation"
    assert found.p_value == permutation(a, b, seed=4)
    assert len(found.gained) + len(found.lost) == sum(x != y for x, y in zip(a, b, strict=True))


def test_runs_without_a_question_in_common() -> None:
    found = compare({"x": 1.0}, {"y": 1.0, "z": None})
    assert (found.n, found.difference, found.p_value) == (0, None, None)
    assert found.left_out == {"only_a": 1, "only_b": 2, "unknown": 0}


def test_holm_by_hand() -> None:
    # Ranked .005 ×4, .01 ×3, .03 ×2, .04 ×1; no later one is smaller than an earlier one.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@pytest.mark.parametrize("p_values", [[1.1], [-0.1], [float("nan")]])
def test_holm_refuses_what_is_no_p_value(p_values: list[float]) -> None:
    with pytest.raises(DataError, match="between 0 and 1"):
        holm(p_values)


def test_values_must_be_finite_and_paired() -> None:
    with pytest.raises(DataError, match="not finite"):
        mean_interval([0.5, float("nan")])
    with pytest.raises(DataError, match="not finite"):
        compare({"q": 1.0}, {"q": float("inf")})
    with pytest.raises(DataError, match="2 values cannot be paired with 1"):
        paired_bootstrap([1, 2], [1])


def test_agreement_by_hand() -> None:
    # 50 rows, the example of many textbooks: 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no.
    rows = [("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15
    verdicts: list[str | None] = [verdict for verdict, _ in rows]
    labels = [label for _, label in rows]
    found = agreement([*verdicts, None, None], [*labels, "yes", "no"])
    assert (found.n, found.unreadable) == (52, 2)
    assert found.accuracy == pytest.approx(0.7)
    assert found.kappa == pytest.approx(0.4)


def test_agreement_at_the_edges() -> None:
    assert agreement(["A", "B"], ["A", "B"]).kappa == 1.0
    assert agreement(["A", "B"], ["B", "A"]).kappa == -1.0
    alike = agreement(["A", "A"], ["A", "A"])
    assert (alike.accuracy, alike.kappa) == (1.0, None)
    unread = agreement([None], ["A"])
    assert (unread.accuracy, unread.kappa, unread.unreadable) == (None, None, 1)
    with pytest.raises(DataError, match="1 verdicts for 2 labels"):
        agreement(["A"], ["A", "B"])
