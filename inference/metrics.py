"""Exact match and token F1 by the official HotpotQA rules (hotpot_evaluate_v1.py, Yang et al. 2018), and their kin.

Normalisation, in this order: lower case, ASCII punctuation removed, the words a, an and the removed, white space
squeezed. No Unicode folding and no number reading: the official script does neither. Its known oddities are kept,
because a number that others can compare is worth more than a prettier one: `1.0` equals `10`, `3.14` equals `314`,
`1878–1954` with an en dash differs from `1878-1954`, `Rémi` from `Remi`, `A` equals `the` (both are empty), and two
empty texts match exactly while their F1 is 0.

Sub-EM is a metric of its own and never stands for exact match.
"""

from __future__ import annotations

import html
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable

from mia.types import Hit

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
    """Harmonic mean of token precision and recall; 0 if the two differ and one of them is yes, no or noanswer."""
    left, right = normalise(prediction), normalise(reference)
    if left != right and (left in _CLOSED or right in _CLOSED):
        return 0.0
    predicted, gold = left.split(), right.split()
    common = sum((Counter(predicted) & Counter(gold)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def sub_exact_match(prediction: str, reference: str) -> float:
    """1.0 if the reference's normal form occurs in the prediction's, as a string (FlashRAG, Search-R1), else 0.0.

    As there, a part of a word counts (`10` occurs in `1000`). Unlike there, a reference whose normal form is empty
    (`A`, `The`, `!`) occurs only in an empty one; otherwise it would be found in every answer.
    """
    predicted, gold = normalise(prediction), normalise(reference)
    return float(gold in predicted if gold else not predicted)


def best_exact_match(prediction: str, references: Iterable[str]) -> float:
    """Exact match with the best of several references."""
    return max((exact_match(prediction, reference) for reference in references), default=0.0)


def best_f1(prediction: str, references: Iterable[str]) -> float:
    """F1 with the best of several references."""
    return max((f1(prediction, reference) for reference in references), default=0.0)


def best_sub_exact_match(prediction: str, references: Iterable[str]) -> float:
    """Sub-EM with the best of several references."""
    return max((sub_exact_match(prediction, reference) for reference in references), default=0.0)


def title_recall(gold: Iterable[str], hits: Iterable[Hit]) -> float | None:
    """The share of the gold titles that were among the titles of a run's hits; None where there are no gold titles.

    Titles are compared without regard to case, white space, Unicode composition and HTML escapes.
    """
    wanted = {_title(title) for title in gold}
    return len(wanted & {_title(hit.passage.title) for hit in hits}) / len(wanted) if wanted else None


def _title(title: str) -> str:
    return " ".join(unicodedata.normalize("NFC", html.unescape(title)).casefold().split())
