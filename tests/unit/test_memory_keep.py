"""What goes first when there are too many, over small buckets whose costs are computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from memory_serve.config import Keep
from memory_serve.keep import surplus
from memory_serve.vectors import Bucket, Entry

HOUR = 3_600_000_000
WEIGHTS = (0.8, 0.2)


def entry(name: str, degrees: float, hour: float, successes: int = 0, **fields: Any) -> Entry:
    """A memory whose question stands at an angle."""
    angle = math.radians(degrees)
    given = {"outcome": "correct", "caption": None, "uses": successes, "source_id": "", **fields}
    vector = np.array([math.cos(angle), math.sin(angle)], np.float32)
    return Entry(id=name, bucket=("d", "text-only", "human"), question=vector, successes=successes,
                 created=round(hour * HOUR), **given)  # fmt: skip


def bucket(entries: Sequence[Entry]) -> Bucket:
    made = Bucket(2, 0.0)
    made.put(entries)
    return made


def order(buckets: Sequence[Bucket], capacity: int, fresh: Sequence[str] = (), **keep: Any) -> list[str]:
    return surplus(buckets, capacity, Keep(**keep), WEIGHTS, fresh)


# The distance √(1 - cos) is √2 sin(angle/2): .4135 for 34°, .2940 for 24°, .7702 for 66°, 1 for 90°.
# Their mean is (.4135 + .2940 + .2940 + .7702)/4 = .4429. The oldest is 4 hours old: (s+2)/(age + 2).
FOUR = [
    entry("a", 0, 0, successes=10),  # 12/6 · .4135 = .827, over the mean 1.867
    entry("b", 34, 4),  # 2/2 · .2940 = .294: .664
    entry("c", 58, 2, successes=1),  # 3/4 · .2940 = .221: .498
    entry("d", 124, 1),  # 2/5 · .7702 = .308: .696
]


def test_what_helps_seldom_and_has_a_near_neighbour_goes_first() -> None:
    assert order([bucket(FOUR)], 4) == order([bucket(FOUR)], 0) == []
    assert order([bucket(FOUR)], 3) == ["c"]
    # When c has gone, b is 34° from a, which makes .934, and d is 90° from b, which makes .903.
    assert order([bucket(FOUR)], 2) == ["c", "d"]
    assert order([bucket(FOUR)], 1) == ["c", "d", "b"]
    # In whatever order they stand.
    assert order([bucket(FOUR[::-1])], 3) == ["c"]


def test_of_two_that_nearly_coincide_one_goes_and_the_other_takes_over() -> None:
    twins = [entry("old", 0, 0), entry("twin1", 90, 8), entry("twin2", 90.1, 8, successes=1), entry("new", 180, 10)]
    # Both twins cost nearly nothing; with one gone the other is far from all, and the oldest, which never helped, goes.
    assert order([bucket(twins)], 3) == ["twin1"]
    assert order([bucket(twins)], 2) == ["twin1", "old"]


def test_buckets_share_a_capacity() -> None:
    far = [entry("e", 0, 2), entry("f", 90, 2, successes=9)]
    # Each bucket by its own oldest and its own distances: e costs 2/(2 + 1) · 1 = .667, more than c and less than d.
    assert order([bucket(FOUR), bucket(far)], 5) == ["c"]
    assert order([bucket(FOUR), bucket(far)], 4) == ["c", "e"]
    # Alone of its outcome in its bucket, a memory costs as often as it helps: 2/(1 + .5) = 1.33.
    lone = [entry("g", 0, 3)]
    assert order([bucket(FOUR[:2]), bucket(lone)], 2) == ["b"]


def test_what_is_new_goes_last_and_failures_beyond_their_share_first() -> None:
    assert order([bucket(FOUR)], 3, fresh=["c"]) == ["b"]
    failed = [entry(f"x{n}", 30 * n, n, successes=9, outcome="incorrect") for n in range(3)]
    # A tenth of six is one failure at least; the oldest goes: equally far, and 11/(age + 1) is least.
    assert order([bucket([*FOUR, *failed])], 6) == ["x0"]
    assert order([bucket([*FOUR, *failed])], 5) == ["x0", "x1"]
    assert order([bucket([*FOUR, *failed])], 4) == ["x0", "x1", "c"]
    assert order([bucket([*FOUR, *failed])], 6, failures=1) == ["c"]


@pytest.mark.parametrize("policy", ["coverage", "value", "age", "value_age"])
def test_a_little_more_than_the_excess_goes_from_256_on(policy: str) -> None:
    many = [entry(f"m{n:03}", n / 3, n) for n in range(513)]
    gone = order([bucket(many)], 512, policy=policy)
    assert len(gone) == len(set(gone)) == 3
    assert len(order([bucket(many)], 255, policy=policy)) == 258
    if policy != "coverage":
        assert gone == ["m000", "m001", "m002"]


def test_captions_count_as_in_recall() -> None:
    up, side = np.array([0, 1], np.float32), np.array([1, 0], np.float32)
    # One question of three pictures, two of them the same; without a caption nothing is near one that has one.
    asked = [entry("p", 0, 0, caption=up), entry("q", 0, 1, caption=side), entry("r", 0, 2, caption=up),
             entry("s", 0, 3)]  # fmt: skip
    assert order([bucket(asked)], 3) == ["p"]
    assert order([bucket(asked)], 2) == ["p", "q"]
