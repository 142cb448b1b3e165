"""What memory learns of a question whose n rollouts were judged. Source: the original's rules of consolidation.

Of the right runs the one with the fewest Executor turns is stored, of the wrong ones one at random; both together are a
pair of plans for the router. The memories that were shown get one credit for the question, not one for each rollout: a
success if most of its judged rollouts were right. If nothing was judged, the official run is stored, unjudged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from inference.agent import UNJUDGED
from inference.runs import Run
from mia.types import Judgement, Recalled
from ttrl.config import Feedback
from ttrl.records import Asked, Verdict

Lesson = tuple[Run, Judgement]
"""A run, and the outcome that memory is told."""


def lessons(asked: Asked, verdicts: Sequence[Verdict], feedback: Feedback) -> list[Lesson]:
    """What `Method.learn` is given, in order; only the first of them credits what was recalled."""
    judged = [
        (rolled.run, judgement)
        for rolled, verdict in zip(asked.rolled, verdicts, strict=True)
        if rolled.run is not None
        and (judgement := _outcome(verdict, feedback)) is not None
        and judgement.correct is not None
    ]
    right = [lesson for lesson in judged if lesson[1].correct]
    wrong = [lesson for lesson in judged if not lesson[1].correct]
    if not judged:
        official = asked.official.run
        return [] if official is None else [(official, UNJUDGED)]
    kept = [pick(some) for some, pick in ((right, _shortest), (wrong, _drawn)) if some]
    if len(right) <= len(wrong):
        kept.reverse()
    return [kept[0], *((_unshown(run), judgement) for run, judgement in kept[1:])]


def _outcome(verdict: Verdict, feedback: Feedback) -> Judgement | None:
    return {"truth": verdict.judgement, "panel": verdict.feedback, "none": None}[feedback]


def _shortest(some: Sequence[Lesson]) -> Lesson:
    return min(some, key=lambda lesson: sum(step.role == "executor" for step in lesson[0].steps))


def _drawn(some: Sequence[Lesson]) -> Lesson:
    """One at random: by a hash of what it is, so that a resumed run draws the same."""
    return min(some, key=lambda lesson: hashlib.sha256(lesson[0].id.encode()).hexdigest())


def _unshown(run: Run) -> Run:
    return run.model_copy(update={"recalled": Recalled(), "recalled_again": Recalled()})
