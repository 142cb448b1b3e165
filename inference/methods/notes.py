"""What all methods over a notebook have in common: learning a run once, showing notes that fit, asking the Manager."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pydantic import JsonValue

from inference.executor import BYTES_PER_TOKEN, clip
from inference.methods.notebook import Change, Notebook
from inference.runs import Run
from inference.verdicts import ask
from memory_serve.protocol import Added
from mia.chat import ChatModel
from mia.errors import DataError, JudgeError, ParseError
from mia.types import Judgement, Note, Question, Recalled, Sampling

TRIES = 3
_REPLY_TOKENS = 1024
T = TypeVar("T")


class NotesMethod(ABC):
    """A `Method` that keeps notes. A subclass says what a run changes and what a question is shown.

    Args:
        notebook: where the notes are; closed with the method.
        room: bytes of all notes that one question is shown, at most.
    """

    def __init__(self, notebook: Notebook, room: int) -> None:
        self.notebook = notebook
        self.room = room

    async def recall(self, question: Question, k: int = 2, skip: int = 0) -> Recalled:
        """See `Method.recall`."""
        notes = await self.notes(question, k, skip)
        share = self.room // max(1, len(notes))
        return Recalled(notes=tuple(note.model_copy(update={"text": clip(note.text, share)}) for note in notes))

    async def learn(self, run: Run, judgement: Judgement) -> Added | None:
        """See `Method.learn`."""
        if run.failure is not None or run.stop_reason == "failed":
            raise DataError(f"run {run.id} failed", remedy="learn only runs that came to an end", code="failed_run")
        known = await self.notebook.learned(run.id)
        if known is not None:
            return Added(id=known, action="known") if known else None
        changes = await self.changes(run, judgement)
        return None if changes is None else await self.notebook.learn(run.id, run.question.id, changes)

    async def dump(self) -> list[Mapping[str, JsonValue]]:
        """See `Method.dump`."""
        return [{"id": item.id, "sources": list(item.sources), **item.data} for item in await self.notebook.items()]

    async def aclose(self) -> None:
        """Close the notebook."""
        await self.notebook.aclose()

    @abstractmethod
    async def notes(self, question: Question, k: int, skip: int) -> Sequence[Note]:
        """What a question is shown, best first."""

    @abstractmethod
    async def changes(self, run: Run, judgement: Judgement) -> Sequence[Change] | None:
        """What a run teaches; None if it cannot be learned before it is judged.

        Raises:
            MiaError: nothing was learned, and the run can be learned again.
        """


class Manager:
    """The Manager model, asked in a strict form.

    Args:
        model: the chat model.
    """

    def __init__(self, model: ChatModel) -> None:
        self.model = model
        self.room = model.context // 2 * BYTES_PER_TOKEN
        """Bytes of material that a prompt may hold beside its own words; the rest is for them and the reply."""

    @property
    def sampling(self) -> Sampling:
        """How the Manager answers: greedily, in a quarter of its context at most."""
        return Sampling(max_tokens=min(_REPLY_TOKENS, max(1, self.model.context // 4)))

    async def ask(self, text: str, read: Callable[[str], T], what: str) -> T:
        """Ask until the reply can be read, three times at most.

        Raises:
            ParseError: no reply could be read (code `no_note`).
            ModelError: the model did not answer.
        """
        try:
            return (await ask(self.model, text, read, self.sampling, TRIES, what))[0]
        except JudgeError as error:
            raise ParseError(
                f"{self.model.name}: {error.message}",
                remedy="use a stronger Manager model; nothing was learned of this run",
                code="no_note",
            ) from error
