"""Metrics that need no model, by name. Each gives a number in [0, 1], or None for a row it does not apply to.

A run without an answer is wrong; a run that failed has no metric at all (see `inference.evaluation.row`).
"""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_uppercase

from inference.evaluation.config import Metric
from inference.matching import accepted, gaia_match, read_choice
from inference.metrics import best_exact_match, best_f1, best_sub_exact_match, title_recall
from inference.runs import Run
from mia.examples import Example


def score(metrics: tuple[Metric, ...], run: Run, example: Example) -> dict[str, float]:
    """The metrics that apply to a run that did not fail."""
    found = {name: METRICS[name](run, example) for name in metrics}
    return {name: value for name, value in found.items() if value is not None}


def _open(measure: Callable[[str, tuple[str, ...]], float]) -> Callable[[Run, Example], float | None]:
    """A comparison of the answer's text with the gold answers; a letter stands for the text of its option."""

    def by_text(run: Run, example: Example) -> float | None:
        if run.answer is None:
            return 0.0
        letter = read_choice(run.answer, example.choices) if example.choices else None
        text = run.answer if letter is None else example.choices[ascii_uppercase.index(letter)]
        return float(measure(text, example.reference.answers))

    return by_text


def _choice(run: Run, example: Example) -> float | None:
    if not example.choices:
        return None
    return float(run.answer is not None and read_choice(run.answer, example.choices) == example.reference.choice)


def _titles(run: Run, example: Example) -> float | None:
    return title_recall(example.supporting_titles, run.hits)


METRICS: dict[Metric, Callable[[Run, Example], float | None]] = {
    "em": _open(best_exact_match),
    "f1": _open(best_f1),
    "sub_em": _open(best_sub_exact_match),
    "accepted": _open(accepted),
    "gaia": _open(lambda answer, golds: float(any(gaia_match(answer, gold) for gold in golds))),
    "choice": _choice,
    "title_recall": _titles,
}
