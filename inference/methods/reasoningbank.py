"""ReasoningBank: lessons, each of title, description and content, drawn from successes and from failures.

Writes after each judged run: the Manager draws up to three lessons from it, told whether it succeeded or failed, each
with a prompt of its own. They are stored together, with the outcome, and found by the question. A run that nobody
judged teaches nothing yet. Reads before the run: the lessons of the k runs whose questions are most like the one asked.
Lessons are to be general; where one names the final answer it is blotted out. Source: arXiv 2509.25140 and its released
code (three items at most, cosine of the question). There a model judges the run itself; here the feedback of the config
does, so that all methods learn from the same verdicts. (The original told every run that it had succeeded.)
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, JsonValue

from inference.methods.notebook import Change, Data, Found, New, Notebook
from inference.methods.notes import Manager, NotesMethod
from inference.methods.traces import asked, text, turns
from inference.planner import LABELS
from inference.runs import Run
from inference.verdicts import Form, read_form
from memory_serve.workflow import without_answer
from mia.chat import ChatModel
from mia.prompts import Trusted, prompt
from mia.types import Judgement, Note, Outcome, Question

MAX_ITEMS = 3


class Lesson(Form):
    """One lesson."""

    title: str = Field(min_length=1)
    description: str = Field(min_length=1)
    content: str = Field(min_length=1)


class Lessons(Form):
    """What the Manager replies; why the run ended as it did comes first, so that the lessons rest on it."""

    why: str
    items: list[Lesson] = Field(min_length=1, max_length=MAX_ITEMS)


class ReasoningBankMethod(NotesMethod):
    """`reasoningbank`.

    Args:
        notebook: where the notes are.
        room: see `NotesMethod`.
        manager: draws the lessons.
    """

    def __init__(self, notebook: Notebook, room: int, manager: ChatModel) -> None:
        super().__init__(notebook, room)
        self._manager = Manager(manager)

    async def notes(self, question: Question, k: int, skip: int) -> Sequence[Note]:
        """See `NotesMethod.notes`."""
        return [_shown(each) for each in await self.notebook.nearest("lessons", asked(question), k, skip, question.id)]

    async def changes(self, run: Run, judgement: Judgement) -> Sequence[Change] | None:
        """See `NotesMethod.changes`."""
        if judgement.correct is None:
            return None
        shown = prompt("reasoningbank/success" if judgement.correct else "reasoningbank/failure").render(
            question=asked(run.question), trace=text(turns(run), self._manager.room), most=str(MAX_ITEMS)
        )
        lessons = await self._manager.ask(shown, _read, "lessons")
        items: list[JsonValue] = [
            {name: without_answer(value, run) for name, value in lesson.model_dump().items()}
            for lesson in lessons.items
        ]
        data: Data = {"question": asked(run.question), "outcome": judgement.outcome, "items": items}
        return [New("lessons", data, text=asked(run.question))]


def _read(reply: str) -> Lessons:
    return read_form(reply, Lessons)


def _shown(found: Found) -> Note:
    data = found.item.data
    outcome: Outcome = data["outcome"]  # type: ignore[assignment]  # only outcomes are stored there
    items = data["items"]
    assert isinstance(items, list)
    lines = [prompt("reasoningbank/item").render(**item) for item in items]  # type: ignore[arg-type]  # see `changes`
    shown = prompt("reasoningbank/experience").render(
        label=LABELS[outcome], question=str(data["question"]), items=Trusted("\n".join(lines))
    )
    return Note(id=found.item.id, text=shown, similarity=found.similarity)
