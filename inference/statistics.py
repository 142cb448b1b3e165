"""Intervals and comparisons of runs: what a difference between two numbers is worth.

Give one value for each question: average repeats of a question first, or its rows are not independent. A value that
is not known (unjudged, failed) is left out before and counted by the caller; it is not a zero.

Everything random takes a seed and gives the same numbers for it. Intervals hold 95% unless told otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mia.errors import DataError
from mia.types import Record

Array = NDArray[np.float64]
LEVEL = 0.95
RESAMPLES = 10_000
_CHUNK = 2**22
"""Draws held in memory at once (32 MB)."""
_ROUNDING = 1e-9
"""Sums that differ by less, relative to the observed one, are equal."""


class Interval(Record):
    """A mean with its interval over n values; all three are None when there are no values."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


class Comparison(Record):
    """Run B against run A over the questions that both have a value for.

    Attributes:
        n: questions compared.
        mean_a: mean of A over them.
        mean_b: mean of B over them.
        difference: mean of B minus mean of A.
        low: lower end of the interval of the difference (paired bootstrap).
        high: upper end.
        p_value: two-sided, of no difference.
        test: `mcnemar` (exact) when every value is 0 or 1, else `permutation` (signs of the paired differences).
        gained: ids of the questions where B is better, in A's order.
        lost: ids where A is better.
        left_out: questions without a value in at least one of the two, by reason: `only_a`, `only_b` (the other run
            does not have them) and `unknown` (no value in one of them).
    """

    n: int
    mean_a: float | None
    mean_b: float | None
    difference: float | None
    low: float | None
    high: float | None
    p_value: float | None
    test: Literal["mcnemar", "permutation"]
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    left_out: dict[str, int]


class Agreement(Record):
    """How a judge's readable verdicts agree with labels.

    Attributes:
        n: rows that have a label.
        unreadable: rows without a verdict; they are in neither of the two numbers.
        accuracy: share of the readable verdicts that equal the label; None if there are none.
        kappa: Cohen's kappa (1960) of the same rows; None where chance alone would agree always.
    """

    n: int
    unreadable: int
    accuracy: float | None
    kappa: float | None


def mean_interval(values: Sequence[float], seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL) -> Interval:
    """The mean with its interval: Wilson's (1927) where every value is 0 or 1, else the percentile bootstrap (1979).

    The bootstrap of equal values has no width; Wilson's interval of a proportion has, also at 0 and 1.

    Raises:
        DataError: a value is not finite.
    """
    array = _finite(values)
    if not len(array):
        return Interval(mean=None, low=None, high=None, n=0)
    if _binary(array):
        return wilson(int(array.sum()), len(array), level)
    low, high = _bootstrap(array, seed, resamples, level)
    return Interval(mean=float(array.mean()), low=low, high=high, n=len(array))


def wilson(successes: int, n: int, level: float = LEVEL) -> Interval:
    """A proportion with Wilson's score interval, without continuity correction."""
    if n == 0:
        return Interval(mean=None, low=None, high=None, n=0)
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = successes / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else middle - half
    high = 1.0 if successes == n else middle + half
    return Interval(mean=share, low=low, high=high, n=n)


def paired_bootstrap(
    a: Sequence[float], b: Sequence[float], seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> Interval:
    """The mean of b − a over the same n questions, with the percentile interval of resampled questions.

    Raises:
        DataError: a value is not finite, or the two are not of one length.
    """
    difference = _differences(a, b)
    if not len(difference):
        return Interval(mean=None, low=None, high=None, n=0)
    low, high = _bootstrap(difference, seed, resamples, level)
    return Interval(mean=float(difference.mean()), low=low, high=high, n=len(difference))


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p-value of McNemar's test (1947): the smaller of both counts is binomial with p = 1/2."""
    n, least = gained + lost, min(gained, lost)
    tail = term = 1
    for k in range(least):
        term = term * (n - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << n))


def permutation(a: Sequence[float], b: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> float:
    """Two-sided p-value of no difference between paired values: how often randomly changed signs of b − a give as much.

    Twice the smaller of both sides, as scipy reckons it. Exact where all changes of sign are no more than `resamples`;
    else each side is (hits + 1) / (resamples + 1).

    Raises:
        DataError: a value is not finite, or the two are not of one length.
    """
    difference = _differences(a, b)
    difference = difference[difference != 0]
    n, total = len(difference), float(difference.sum())
    slack = _ROUNDING * abs(total)
    exact = n < 63 and 1 << n <= resamples
    generator = np.random.default_rng(seed)
    above = below = 0 if exact else 1
    for rows in [1 << n] if exact else _chunks(resamples, n):
        if exact:
            changed = np.arange(rows)[:, None] >> np.arange(n) & 1
        else:
            changed = generator.integers(0, 2, size=(rows, n), dtype=np.int8)
        sums = total - 2 * (changed @ difference)
        above += int(np.sum(sums >= total - slack))
        below += int(np.sum(sums <= total + slack))
    return min(1.0, 2 * min(above, below) / (1 << n if exact else resamples + 1))


def compare(
    a: Mapping[str, float | None],
    b: Mapping[str, float | None],
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Comparison:
    """Compare run B with run A, both by id of question; None stands for a question that has no value.

    Raises:
        DataError: a value is not finite.
    """
    shared = [name for name in a if name in b]
    known = [(name, x, y) for name in shared if (x := a[name]) is not None and (y := b[name]) is not None]
    left, right = [x for _, x, _ in known], [y for _, _, y in known]
    interval = paired_bootstrap(left, right, seed, resamples, level)
    gained = tuple(name for name, x, y in known if y > x)
    lost = tuple(name for name, x, y in known if y < x)
    exact = _binary(_finite([*left, *right]))
    p_value = mcnemar(len(gained), len(lost)) if exact else permutation(left, right, seed, resamples)
    return Comparison(
        n=len(known),
        mean_a=sum(left) / len(left) if left else None,
        mean_b=sum(right) / len(right) if right else None,
        difference=interval.mean,
        low=interval.low,
        high=interval.high,
        p_value=p_value if known else None,
        test="mcnemar" if exact else "permutation",
        gained=gained,
        lost=lost,
        left_out={
            "only_a": len(a) - len(shared),
            "only_b": len(b) - len(shared),
            "unknown": len(shared) - len(known),
        },
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for being many (Holm 1979), in the order given; reject where one is at most alpha.

    Raises:
        DataError: one of them is not between 0 and 1.
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise DataError(f"p-values must lie between 0 and 1: {list(p_values)}")
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def agreement(verdicts: Sequence[str | None], labels: Sequence[str]) -> Agreement:
    """How a judge's verdicts agree with labels of the same rows; None is a verdict that could not be read.

    Raises:
        DataError: the two are not of one length.
    """
    if len(verdicts) != len(labels):
        raise DataError(f"{len(verdicts)} verdicts for {len(labels)} labels")
    rows = [(verdict, label) for verdict, label in zip(verdicts, labels, strict=True) if verdict is not None]
    accuracy = kappa = None
    if rows:
        accuracy = sum(verdict == label for verdict, label in rows) / len(rows)
        names = {name for row in rows for name in row}
        given = {name: sum(verdict == name for verdict, _ in rows) for name in names}
        true = {name: sum(label == name for _, label in rows) for name in names}
        chance = sum(given[name] * true[name] for name in names) / len(rows) ** 2
        kappa = (accuracy - chance) / (1 - chance) if chance < 1 else None
    return Agreement(n=len(labels), unreadable=len(labels) - len(rows), accuracy=accuracy, kappa=kappa)


def _bootstrap(values: Array, seed: int, resamples: int, level: float) -> tuple[float, float]:
    """Percentiles of the means of resamples of the values."""
    generator = np.random.default_rng(seed)
    means = [
        values[generator.integers(0, len(values), size=(rows, len(values)))].mean(axis=1)
        for rows in _chunks(resamples, len(values))
    ]
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(np.concatenate(means), [tail, 100 - tail])
    return float(low), float(high)


def _chunks(resamples: int, n: int) -> list[int]:
    """Numbers of resamples to make at a time."""
    rows = max(1, _CHUNK // max(1, n))
    return [min(rows, resamples - done) for done in range(0, resamples, rows)]


def _differences(a: Sequence[float], b: Sequence[float]) -> Array:
    if len(a) != len(b):
        raise DataError(f"{len(a)} values cannot be paired with {len(b)}")
    return _finite(b) - _finite(a)


def _finite(values: Sequence[float]) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        raise DataError("a value is not finite", remedy="leave unknown values out and count them")
    return array


def _binary(values: Array) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())
