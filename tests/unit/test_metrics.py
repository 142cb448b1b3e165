"""EM and F1 against an independent implementation of the official HotpotQA rules and values written out; their kin."""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby
from pathlib import Path
from string import ascii_letters, digits
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference.metrics import (
    best_exact_match,
    best_f1,
    best_sub_exact_match,
    exact_match,
    f1,
    normalise,
    sub_exact_match,
    title_recall,
)
from mia.types import Hit, Passage

FILE = Path(__file__).parents[1] / "fixtures" / "em_f1_pairs.jsonl"


class Pair(NamedTuple):
    kind: str
    prediction: str
    reference: str
    em: int
    f1: float


PAIRS = [Pair(**json.loads(line)) for line in FILE.read_text(encoding="utf-8").splitlines()]


def official_tokens(text: str) -> list[str]:
    """The official normalisation written anew, character by character: no regular expression, no translation table.

    Lower case; every ASCII character that is neither letter, digit nor white space or control goes; then each whole
    run of word characters that is an article goes; the rest is split at white space.
    """
    lowered = text.lower()
    kept = [c for c in lowered if ord(c) > 126 or ord(c) < 33 or c in ascii_letters or c in digits]
    runs = ["".join(run) for _, run in groupby(kept, key=str.isalnum)]
    return "".join(" " if run in ("a", "an", "the") else run for run in runs).split()


def official_em(prediction: str, reference: str) -> int:
    return int(official_tokens(prediction) == official_tokens(reference))


def official_f1(prediction: str, reference: str) -> float:
    predicted, gold = official_tokens(prediction), official_tokens(reference)
    for closed in (["yes"], ["no"], ["noanswer"]):
        if (predicted == closed) != (gold == closed):
            return 0.0
    left = gold.copy()
    hits = 0
    for token in predicted:
        if token in left:
            left.remove(token)
            hits += 1
    return 2 * hits / (len(predicted) + len(gold)) if hits else 0.0


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.kind}: {pair.prediction[:20]!r}")
def test_pairs(pair: Pair) -> None:
    assert official_em(pair.prediction, pair.reference) == pair.em
    assert official_f1(pair.prediction, pair.reference) == pytest.approx(pair.f1, abs=1e-6)
    assert exact_match(pair.prediction, pair.reference) == pair.em
    assert f1(pair.prediction, pair.reference) == pytest.approx(pair.f1, abs=1e-6)


def test_there_are_pairs_of_every_kind() -> None:
    counts = Counter(pair.kind for pair in PAIRS)
    assert sum(counts.values()) == len({(p.prediction, p.reference) for p in PAIRS}) >= 60
    wanted = ["Unicode", "articles", "empty", "numbers", "overlap", "punctuation", "yes and no"]
    assert sorted(counts) == wanted
    assert min(counts.values()) >= 9


WORDS = st.lists(
    st.sampled_from(
        [
            "a",
            "An",
            "THE",
            "yes",
            "no",
            "noanswer",
            "Vienna",
            "vienna",
            "U.S.",
            "1,000",
            "a\u0301",
            "x_a",
            "’a",
            "-",
            "é",
        ]
    )
    | st.text(max_size=4),
    max_size=6,
).map(" ".join)


@given(WORDS, WORDS)
@example("’the yes", "yes")
@example("a\u0301", "\u0301")
def test_any_two_texts_are_scored_as_the_official_rules_do(prediction: str, reference: str) -> None:
    assert exact_match(prediction, reference) == official_em(prediction, reference)
    assert f1(prediction, reference) == pytest.approx(official_f1(prediction, reference))


def test_normal_form() -> None:
    assert normalise("  The  Lord of the Rings: An Epic! ") == "lord of rings epic"
    assert normalise("T.h.e Who") == "who"  # punctuation goes before articles do


def test_best_of_several_references() -> None:
    assert best_exact_match("Vienna", ["Wien", "Vienna"]) == 1.0
    assert best_f1("Vienna city", ["Wien", "Vienna"]) == pytest.approx(2 / 3)
    assert best_exact_match("x", []) == 0.0
    assert best_sub_exact_match("It is Wien, of course", ["Vienna", "Wien"]) == 1.0
    assert best_sub_exact_match("Graz", ["Vienna", "Wien"]) == 0.0


@pytest.mark.parametrize(
    ("prediction", "reference", "score"),
    [
        ("It is the Danube river.", "Danube River", 1),
        ("Danube", "Danube river", 0),
        ("Yes, both were American", "yes", 1),  # EM and F1 are 0
        ("No one", "no", 1),
        ("yesterday", "yes", 1),  # as in the original: a string, not a word
        ("1000", "10", 1),
        ("United  States of America", "the United States", 1),
        ("Vienna", "A", 0),  # the normal form of A is empty; it is not in everything
        ("the", "A", 1),
        ("", "Vienna", 0),
        ("Vienna", "!", 0),
    ],
)
def test_sub_em(prediction: str, reference: str, score: int) -> None:
    assert sub_exact_match(prediction, reference) == score


def hit(title: str, rank: int = 1) -> Hit:
    return Hit(passage=Passage(id=title, title=title, text="x"), score=1.0, rank=rank)


@pytest.mark.parametrize(
    ("gold", "found", "recall"),
    [
        (["Vienna", "Danube"], ["Danube", "Graz", "Danube"], 0.5),
        (["Vienna", "Danube"], ["danube", "VIENNA"], 1.0),
        (["Vienna", "Vienna"], ["Vienna"], 1.0),
        (["Simon & Garfunkel"], ["Simon &amp; Garfunkel"], 1.0),
        (["Cafe\u0301  Central"], ["Café Central"], 1.0),
        (["Vienna"], ["Vienna Woods"], 0.0),
        (["Vienna"], [], 0.0),
        ([], ["Vienna"], None),
    ],
)
def test_title_recall(gold: list[str], found: list[str], recall: float | None) -> None:
    assert title_recall(gold, map(hit, found)) == recall
