"""What a memory is for: that the useful workflow is recalled nine times in ten, also at a tenth of the size."""

from __future__ import annotations

from collections import Counter

import pytest

from local_search.miniwiki import questions
from memory_serve.config import Keep
from scripts.bench.memories.quality import FIRST, Point, chain, run, share

QUESTIONS = len(questions("train"))
TENTH = QUESTIONS // 10
pytestmark = pytest.mark.long


def test_the_share_is_counted_by_hand() -> None:
    points = [Point(None, False, 1), Point(True, True, 2), Point(False, True, 3), Point(True, True, 4)]
    assert share(points) == pytest.approx(2 / 3)
    assert share([Point(None, True, 1)]) == 0


def test_only_comparisons_of_the_same_values_share_a_chain() -> None:
    forms = {q.form for q in questions("train")}
    chains = Counter(chain(form) for form in forms)
    assert {form for form in forms if chains[chain(form)] > 1} == {"film-year-earlier", "film-year-later"}


async def test_with_everything_kept_the_useful_memory_comes_nine_times_in_ten() -> None:
    points = await run(Keep(), 1500)
    assert share(points[FIRST:]) >= 0.9
    assert points[-1].size > 0.9 * 1500
    # It pays: luck alone would be three in ten.
    assert sum(point.right for point in points[FIRST:]) > 0.85 * (1500 - FIRST)


@pytest.mark.parametrize("seed", [0, 1])
async def test_a_tenth_of_the_size_does_as_well(seed: int) -> None:
    points = await run(Keep(total=TENTH), QUESTIONS, seed)
    assert max(point.size for point in points) <= TENTH
    assert share(points[FIRST:]) >= 0.9
    assert sum(point.right for point in points[FIRST:]) > 0.9 * (QUESTIONS - FIRST)


async def test_the_oldest_first_or_any_at_random_do_not() -> None:
    for keep, most in ((Keep(total=TENTH, policy="age", failures=1), 0), (Keep(), TENTH)):
        points = await run(keep, QUESTIONS, most=most)
        assert max(point.size for point in points) <= TENTH
        assert share(points[FIRST:]) < 0.88
