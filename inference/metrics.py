"""Exact match and token F1 by the official HotpotQA rules (hotpot_evaluate_v1.py, Yang et al. 2018).

Normalisation, in this order: lower case, ASCII punctuation removed, the words a, an and the removed, white space
squeezed. No Unicode folding and no number reading: the official script does neither.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = ("yes", "no", "noanswer")


def normalise(text: str) -> str:
    """The official normal form of an answer."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, reference: str) -> float:
    """1.0 if the normal forms are equal, else 0.0."""
    return float(normalise(prediction) == normalise(reference))


def f1(prediction: str, reference: str) -> float:
    """Harmonic mean of token precision and recall; 0 if only one of the two is yes, no or noanswer."""
    left, right = normalise(prediction), normalise(reference)
    if left != right and (left in _CLOSED or right in _CLOSED):
        return 0.0
    predicted, gold = left.split(), right.split()
    common = sum((Counter(predicted) & Counter(gold)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def best_exact_match(prediction: str, references: Iterable[str]) -> float:
    """Exact match with the best of several references."""
    return max((exact_match(prediction, reference) for reference in references), default=0.0)


def best_f1(prediction: str, references: Iterable[str]) -> float:
    """F1 with the best of several references."""
    return max((f1(prediction, reference) for reference in references), default=0.0)
