"""What a memory store must offer; the SQLite core, the HTTP client and test doubles all satisfy it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from pydantic import Field

from mia.types import Memory, Modality, Question, Recalled, Record, Text


class Draft(Record):
    """A memory about to be stored; the store gives id, counters, bucket and time of creation.

    `trajectory_id` makes adding idempotent: the same run is stored once, however often it is sent.
    """

    question: Text
    caption: Text = ""
    workflow: Text = Field(min_length=1)
    plan: Text = ""
    outcome: Literal["correct", "incorrect", "unjudged"]
    modality: Modality = "text-only"
    source_id: str = ""
    trajectory_id: str = ""
    provenance: dict[str, str] = Field(default_factory=dict)


class Added(Record):
    """What became of a draft: stored anew, merged into the memory `id`, or already there."""

    id: str
    action: Literal["stored", "replaced", "kept", "known"]


class Credited(Record):
    """Result of crediting one id."""

    id: str
    known: bool


class Stats(Record):
    """Counts over the whole store."""

    memories: int
    by_outcome: dict[str, int]
    by_bucket: dict[str, int]
    encoder: str


class MemoryStore(Protocol):
    """Keeps memories. Safe to call from many tasks at once; what was acknowledged is on disk."""

    async def recall(self, question: Question, k: int = 2) -> Recalled:
        """The k best successes, failures and unjudged memories of the question's bucket.

        Memories that stem from the question itself (same `source_id`) are left out.

        Raises:
            MemoryStoreError: the store cannot be read.
        """
        ...

    async def add(self, drafts: Sequence[Draft]) -> list[Added]:
        """Store drafts, in order, by the label-aware duplicate rule; one result per draft.

        Raises:
            MemoryStoreError: nothing of the batch was stored.
        """
        ...

    async def credit(self, ids: Sequence[str], success: bool) -> list[Credited]:
        """Count one use of each distinct memory, and a success if the run it was shown to was right.

        Unknown ids are reported, known ones are credited all the same.
        """
        ...

    async def get(self, memory_id: str) -> Memory | None:
        """One memory, or None."""
        ...

    async def list(self, limit: int = 100, offset: int = 0) -> list[Memory]:
        """Memories from the newest to the oldest."""
        ...

    async def delete(self, ids: Sequence[str]) -> int:
        """Forget memories; returns how many there were."""
        ...

    async def stats(self) -> Stats:
        """Counts over the whole store."""
        ...

    async def aclose(self) -> None:
        """Free what the store holds."""
        ...
