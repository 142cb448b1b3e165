"""How often two runs said the same: answers and plans, word for word, question by question.

For the same method by two engines or two versions, where any difference has to be explained; metrics do not show it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

from inference.evaluation.folder import read_runs
from inference.evaluation.row import Row

Key = tuple[str, int]
"""Id of a question, and its repeat."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Questions that neither run failed on; `differ` are the ids of those that are not the same, in order of run A."""

    n: int
    same: int
    differ: list[str]


def agreement(a: tuple[Path, list[Row]], b: tuple[Path, list[Row]]) -> dict[str, Agreement]:
    """Agreement of two runs, each its folder and rows: in `answers`, and in `plans` where both kept some.

    A question's plans are the same if the first is and the replan, if any. A plan of one run alone is a difference.
    """
    found = {"answers": _agreement(_answers(a[1]), _answers(b[1]))}
    plans = [_plans(*run) for run in (a, b)]
    if all(any(texts for texts in some.values()) for some in plans):
        found["plans"] = _agreement(*plans)
    return found


def _answers(rows: list[Row]) -> dict[Key, str | None]:
    return {(row.id, row.repeat): row.answer for row in rows if row.failure is None}


def _plans(path: Path, rows: list[Row]) -> dict[Key, tuple[str, ...]]:
    keys = {row.run: (row.id, row.repeat) for row in rows if row.failure is None}
    return {keys[run.id]: tuple(plan.text for plan in run.plans) for run in read_runs(path) if run.id in keys}


def _agreement(a: Mapping[Key, Hashable], b: Mapping[Key, Hashable]) -> Agreement:
    both = [key for key in a if key in b]
    differ = [key[0] for key in both if a[key] != b[key]]
    return Agreement(len(both), len(both) - len(differ), differ)
