"""Bodies of the memory service; batch-first, unknown fields refused. Sizes are bounded by the store.

`namespace` may be left out everywhere but in `ClearRequest`; then it is the one of the service's config.
"""

from __future__ import annotations

from pydantic import Field, StrictBool, StrictInt

from memory_serve.protocol import Added, Change, Credited, Draft, Edit, PlanPair, Stored
from mia.types import Question, Recalled, Record, Text

MAX_QUESTIONS = 64


class Scoped(Record):
    """A body that says whose memories are meant."""

    namespace: str | None = None


class RecallRequest(Scoped):
    """Questions to recall memories for; `k` of each outcome. Send `data:,` in the place of a picture."""

    questions: tuple[Question, ...] = Field(max_length=MAX_QUESTIONS)
    k: int = 2
    skip: int = 0
    own: StrictBool = False


class RecallAnswer(Record):
    """One result per question, in order."""

    results: tuple[Recalled, ...]


class PairsRequest(Scoped):
    """Questions to find plan pairs for, `k` for each."""

    questions: tuple[Question, ...] = Field(max_length=MAX_QUESTIONS)
    k: int = 3


class PairsAnswer(Record):
    """One list per question, in order; each with the most similar question first."""

    results: tuple[tuple[PlanPair, ...], ...]


class AddRequest(Scoped):
    """Memories to store: all or none."""

    memories: tuple[Draft, ...]


class AddAnswer(Record):
    """One result per draft, in order."""

    results: tuple[Added, ...]


class ImportRequest(Scoped):
    """Exported memories to store as they are: all or none."""

    memories: tuple[Stored, ...]


class EditRequest(Scoped):
    """New content of a memory; what is left out stays. The version may come in the header `If-Match` instead."""

    edit: Edit
    version: StrictInt | None = None


class CreditRequest(Scoped):
    """Memories that were shown in a run, and whether it was right. A repeated `key` changes nothing."""

    ids: tuple[Text, ...]
    success: StrictBool
    key: Text = ""


class CreditAnswer(Record):
    """One result per distinct id, in order."""

    results: tuple[Credited, ...]


class AbsorbRequest(Scoped):
    """Memories that the weights of a checkpoint have learned."""

    ids: tuple[str, ...]
    checkpoint: Text


class DeleteRequest(Scoped):
    """Memories to forget."""

    ids: tuple[Text, ...]


class ClearRequest(Scoped):
    """Forget everything of a namespace, which must be named, or of all (`all`)."""

    all: StrictBool = False


class UndoRequest(Scoped):
    """The change to take back; none: the last one."""

    number: StrictInt | None = None


class Count(Record):
    """How many memories there were."""

    count: int


class DeleteAnswer(Record):
    """How many there were."""

    deleted: int


class Page(Record):
    """Some memories."""

    memories: tuple[Stored, ...]


class History(Record):
    """Changes, the newest first."""

    changes: tuple[Change, ...]
