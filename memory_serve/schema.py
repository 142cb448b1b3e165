"""Bodies of the memory service; batch-first, unknown fields refused. Sizes are bounded by the store."""

from __future__ import annotations

from pydantic import Field, StrictBool

from memory_serve.protocol import Added, Credited, Draft
from mia.types import Memory, Question, Recalled, Record, Text

MAX_QUESTIONS = 64


class RecallRequest(Record):
    """Questions to recall memories for; `k` of each outcome. Send `data:,` in the place of a picture."""

    questions: tuple[Question, ...] = Field(max_length=MAX_QUESTIONS)
    k: int = 2


class RecallAnswer(Record):
    """One result per question, in order."""

    results: tuple[Recalled, ...]


class AddRequest(Record):
    """Memories to store: all or none."""

    memories: tuple[Draft, ...]


class AddAnswer(Record):
    """One result per draft, in order."""

    results: tuple[Added, ...]


class CreditRequest(Record):
    """Memories that were shown in a run, and whether it was right. A repeated `key` changes nothing."""

    ids: tuple[Text, ...]
    success: StrictBool
    key: Text = ""


class CreditAnswer(Record):
    """One result per distinct id, in order."""

    results: tuple[Credited, ...]


class DeleteRequest(Record):
    """Memories to forget."""

    ids: tuple[Text, ...]


class DeleteAnswer(Record):
    """How many there were."""

    deleted: int


class Page(Record):
    """Memories from the newest to the oldest."""

    memories: tuple[Memory, ...]
