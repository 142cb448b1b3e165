"""Retrieval over what was done before: raw traces, or their summaries.

`rag_traces` stores each run's conversation as it was, final answer included, as the paper's RAG does; `rag_summaries`
stores the workflow that MIA itself would store (`memory_serve.workflow`: no answer in it). Both write after every run,
whatever its outcome, and show the k runs whose questions are most like the one asked, each with its outcome. Source:
the original's client for both, with its memory service behind it, but without its scores and buckets: retrieval is by
the question alone. (Paper, "RAG"; reference points for the ablation "only memory".)
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.methods.notebook import Change, Data, Found, New, Notebook
from inference.methods.notes import NotesMethod
from inference.methods.traces import asked, loaded, stored, text, turns
from inference.planner import LABELS
from inference.runs import Run
from memory_serve.workflow import Summary, prepare
from mia.chat import ChatModel
from mia.prompts import prompt
from mia.types import Judgement, Note, Outcome, Question


class TraceMethod(NotesMethod):
    """`rag_traces`."""

    async def notes(self, question: Question, k: int, skip: int) -> Sequence[Note]:
        """See `NotesMethod.notes`."""
        found = await self.notebook.nearest("trace", asked(question), k, skip, question.id)
        share = self.room // max(1, len(found))
        return [trace_note(each, share) for each in found]

    async def changes(self, run: Run, judgement: Judgement) -> Sequence[Change]:
        """See `NotesMethod.changes`."""
        return [new_trace(run, judgement.outcome)]


class SummaryMethod(NotesMethod):
    """`rag_summaries`.

    Args:
        notebook: where the notes are.
        room: see `NotesMethod`.
        summary: how summaries are made, as for MIA (`memory.summary`).
        manager: makes them, for `summary = "model"`.
    """

    def __init__(self, notebook: Notebook, room: int, summary: Summary, manager: ChatModel) -> None:
        super().__init__(notebook, room)
        self._summary = summary
        self._manager = manager

    async def notes(self, question: Question, k: int, skip: int) -> Sequence[Note]:
        """See `NotesMethod.notes`."""
        found = await self.notebook.nearest("summary", asked(question), k, skip, question.id)
        return [labelled(each, str(each.item.data["workflow"])) for each in found]

    async def changes(self, run: Run, judgement: Judgement) -> Sequence[Change]:
        """See `NotesMethod.changes`."""
        draft = await prepare(run, judgement, self._summary, self._manager)
        data = {"question": asked(run.question), "outcome": draft.outcome, "workflow": draft.workflow}
        return [New("summary", data, text=asked(run.question))]


def new_trace(run: Run, outcome: Outcome, kind: str = "trace") -> New:
    """The item of a run's conversation, found by its question."""
    data: Data = {"question": asked(run.question), "outcome": outcome, "turns": stored(turns(run))}
    return New(kind, data, text=asked(run.question))


def trace_note(found: Found, room: int) -> Note:
    """The note of an item made by `new_trace`, of about `room` bytes at most."""
    shown = room - len(str(found.item.data["question"]).encode())
    return labelled(found, text(loaded(found.item.data["turns"]), max(0, shown)))


def labelled(found: Found, body: str) -> Note:
    """A note that says how the run ended, what was asked, and something of what was done."""
    data = found.item.data
    outcome: Outcome = data["outcome"]  # type: ignore[assignment]  # only outcomes are stored there
    shown = prompt("planner/memory").render(label=LABELS[outcome], question=str(data["question"]), workflow=body)
    return Note(id=found.item.id, text=shown, similarity=found.similarity)
