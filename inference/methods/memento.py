"""Memento without parameters: a bank of cases, shown to the Planner.

Writes after each judged run: a case of question, plan and outcome; the supplementary plan belongs to the plan. A run
without plan, or one that nobody judged, makes no case. Reads before planning: the k cases whose questions are most like
the one asked, those that worked before those that failed. Neither trace nor answer is kept, and where a supplementary
plan names the answer it is blotted out. Source: arXiv 2508.16153 and its released client without parameters, whose case
is the last plan and the reward, found by the question's embedding. Left out: the learned retriever.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.methods.notebook import Change, Found, New
from inference.methods.notes import NotesMethod
from inference.methods.traces import asked
from inference.planner import LABELS
from inference.runs import Run
from memory_serve.workflow import without_answer
from mia.prompts import prompt
from mia.types import Judgement, Note, Outcome, Question


class MementoMethod(NotesMethod):
    """`memento`."""

    async def notes(self, question: Question, k: int, skip: int) -> Sequence[Note]:
        """See `NotesMethod.notes`."""
        found = await self.notebook.nearest("case", asked(question), k, skip, question.id)
        return [_shown(each) for each in sorted(found, key=lambda each: each.item.data["outcome"] != "correct")]

    async def changes(self, run: Run, judgement: Judgement) -> Sequence[Change] | None:
        """See `NotesMethod.changes`."""
        if judgement.correct is None:
            return None
        plan = without_answer("\n\nThen:\n".join(plan.text for plan in run.plans), run)
        data = {"question": asked(run.question), "outcome": judgement.outcome, "plan": plan}
        return [New("case", data, text=asked(run.question))] if plan.strip() else []


def _shown(found: Found) -> Note:
    data = found.item.data
    outcome: Outcome = data["outcome"]  # type: ignore[assignment]  # only outcomes are stored there
    shown = prompt("memento/case").render(label=LABELS[outcome], question=str(data["question"]), plan=str(data["plan"]))
    return Note(id=found.item.id, text=shown, similarity=found.similarity)
