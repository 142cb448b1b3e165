"""The arrays in RAM against a plain dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_serve.vectors import OUTCOMES, Entry, Index

KEYS = (("ns", "text-only", "human"), ("ns", "text-image", "human"))


def entry(number: int, key: int, seed: int) -> Entry:
    rng = np.random.default_rng(seed)
    question = rng.standard_normal(4).astype(np.float32)
    caption = rng.standard_normal(4).astype(np.float32) if seed % 3 == 0 else None
    uses = int(rng.integers(0, 9))
    return Entry(
        id=str(number),
        bucket=KEYS[key],
        outcome=OUTCOMES[seed % 3],
        question=question,
        caption=caption,
        uses=uses,
        successes=uses // 2,
        created=seed,
        source_id=f"q{seed % 5}",
    )


def check(index: Index, wanted: dict[str, Entry]) -> None:
    """The index holds exactly the wanted entries."""
    assert len(index) == len(wanted)
    for key in KEYS:
        bucket = index.bucket(key)
        mine = {i: e for i, e in wanted.items() if e.bucket == key}
        if bucket is None:
            assert not mine
            continue
        assert sorted(bucket.ids) == sorted(mine)
        for row, memory_id in enumerate(bucket.ids):
            e = mine[memory_id]
            assert index.place(memory_id) == key
            assert bucket.questions[row].tolist() == e.question.tolist()
            assert bool(bucket.captioned[row]) == (e.caption is not None)
            if bucket.captions is not None:
                assert bucket.captions[row].tolist() == ([0.0] * 4 if e.caption is None else e.caption.tolist())
            numbers = (bucket.uses[row], bucket.successes[row], bucket.created[row])
            assert numbers == (e.uses, e.successes, e.created)
            assert [bool(bucket.having(o)[row]) for o in OUTCOMES] == [o == e.outcome for o in OUTCOMES]
            assert bool(bucket.foreign("q1")[row]) == (e.source_id != "q1")


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 1), st.integers(0, 99), st.booleans()), max_size=120))
def test_any_sequence_of_changes(steps: list[tuple[int, int, int, bool]]) -> None:
    index, wanted = Index(4), dict[str, Entry]()
    for number, key, seed, removes in steps:
        if removes:
            index.remove(str(number))
            wanted.pop(str(number), None)
        else:
            index.put(entry(number, key, seed))
            wanted[str(number)] = entry(number, key, seed)
    check(index, wanted)


def test_growth_keeps_what_was_there() -> None:
    index, wanted = Index(4), {}
    for number in range(100):
        wanted[str(number)] = entry(number, 0, number)
        index.put(wanted[str(number)])
    check(index, wanted)
    index.clear()
    check(index, {})


def test_without_a_source_nothing_is_left_out() -> None:
    index = Index(4)
    index.put(entry(1, 0, 1))
    bucket = index.bucket(KEYS[0])
    assert bucket is not None
    assert bucket.foreign("").tolist() == [True]


def test_arrays_are_right_whenever_they_are_looked_at() -> None:
    """New memories wait outside the arrays: none may be missing, doubled or out of place, however many wait."""
    rng = np.random.default_rng(5)
    index, wanted = Index(4), {}
    for number in range(3000):
        wanted[str(number)] = entry(number, number % 2, number)
        index.put(wanted[str(number)])
        if number % 700 == 0:
            check(index, wanted)
        if number % 3 == 0:
            gone = str(rng.integers(0, number + 1))
            index.remove(gone)
            wanted.pop(gone, None)
    check(index, wanted)
