"""EM and F1 against values reckoned by hand from the official HotpotQA rules."""

from __future__ import annotations

import pytest

from inference.metrics import best_exact_match, best_f1, exact_match, f1, normalise

PAIRS = [
    ("Spice Girls", "The Spice Girls", 1, 1.0),
    ("Ann Arbor", "Ann Arbor, Michigan", 0, 0.8),
    ("A", "the", 1, 0.0),
    ("Theatre an der Wien", "theatre der Wien", 1, 1.0),
    ("yes", "Yes.", 1, 1.0),
    ("Yes, both", "yes", 0, 0.0),
    ("No one", "no", 0, 0.0),
    ("no", "noanswer", 0, 0.0),
    ("no", "No Country for Old Men", 0, 0.0),
    ("1,000", "1000", 1, 1.0),
    ("$29.00", "29", 0, 0.0),
    ("1878–1954", "1878-1954", 0, 0.0),
    ("1878-1954", "18781954", 1, 1.0),
    ("Rémi Lange", "Remi Lange", 0, 0.5),
    ("“Q” Is for Quarry", '"Q" Is for Quarry', 0, 0.75),
    ("MÜNCHEN", "münchen", 1, 1.0),
    ("Straße", "strasse", 0, 0.0),
    ("", "", 1, 0.0),
    ("", "Vienna", 0, 0.0),
    ("Vienna", "", 0, 0.0),
    ("Vienna Vienna", "Vienna", 0, 2 / 3),
    ("the river Danube", "Danube river", 0, 1.0),
    ("U.S.", "US", 1, 1.0),
    ("Vienna\u00a0Woods", "Vienna Woods", 1, 1.0),
    ("维也纳", "维也纳市", 0, 0.0),
    ("a b c d", "c d e", 0, 2 * (2 / 3) * (2 / 3) / (4 / 3)),
]


@pytest.mark.parametrize(("prediction", "reference", "em", "score"), PAIRS)
def test_pairs(prediction: str, reference: str, em: int, score: float) -> None:
    assert exact_match(prediction, reference) == em
    assert f1(prediction, reference) == pytest.approx(score)


def test_normal_form() -> None:
    assert normalise("  The  Lord of the Rings: An Epic! ") == "lord of rings epic"
    assert normalise("T.h.e Who") == "who"  # punctuation goes before articles do


def test_best_of_several_references() -> None:
    assert best_exact_match("Vienna", ["Wien", "Vienna"]) == 1.0
    assert best_f1("Vienna city", ["Wien", "Vienna"]) == pytest.approx(2 / 3)
    assert best_exact_match("x", []) == 0.0
