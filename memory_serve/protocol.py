"""What a memory store must offer; the SQLite core, the HTTP client and test doubles all satisfy it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from pydantic import Field

from mia.types import Memory, Modality, Question, Recalled, Record, Text

MAX_BATCH = 1000
"""Drafts, ids or listed memories in one call, at most."""
MAX_K = 100
"""Memories of each outcome that one recall gives, at most."""
MAX_CHARACTERS = 200_000
"""Length of all texts of one draft, or of one question, at most; pictures are not counted."""


class Draft(Record):
    """A memory about to be stored; the store gives id, counters, bucket and time of creation.

    `trajectory_id` makes adding idempotent: the same run is stored once, however often it is sent; only a run that was
    sent unjudged may be sent again with its verdict.
    """

    question: Text
    caption: Text = ""
    workflow: Text = Field(min_length=1)
    plan: Text = ""
    outcome: Literal["correct", "incorrect", "unjudged"]
    modality: Modality = "text-only"
    source_id: Text = ""
    trajectory_id: Text = ""
    provenance: dict[Text, Text] = Field(default_factory=dict)


class Added(Record):
    """What became of a draft: stored anew as `id`, put in the place of what the memory `id` held, dropped because the
    memory `id` is kept, or known because its run was stored before.
    """

    id: str
    action: Literal["stored", "replaced", "kept", "known"]


class Credited(Record):
    """Result of crediting one id."""

    id: Text
    known: bool


class Stats(Record):
    """Counts over the whole store."""

    memories: int
    by_outcome: dict[str, int]
    by_bucket: dict[str, int]
    encoder: str


class MemoryStore(Protocol):
    """Keeps memories. Safe to call from many tasks at once; what was acknowledged is on disk.

    Every method may raise MemoryStoreError when the store cannot be reached, read or written, and DataError for
    arguments out of bounds (`MAX_BATCH`, `MAX_K`, `MAX_CHARACTERS`); then nothing was changed. NUL becomes U+FFFD.
    """

    async def recall(self, question: Question, k: int = 2) -> Recalled:
        """The k best successes, failures and unjudged memories of the question's bucket.

        Memories that stem from the question itself (same `source_id`) are left out.

        Raises:
            DataError: the question is blank.
            MemoryStoreError: the store cannot be read.
        """
        ...

    async def add(self, drafts: Sequence[Draft]) -> list[Added]:
        """Store drafts, in order, by the label-aware duplicate rule; one result per draft.

        Raises:
            DataError: a draft has a blank question or workflow; nothing of the batch was stored.
            MemoryStoreError: nothing of the batch was stored.
        """
        ...

    async def credit(self, ids: Sequence[str], success: bool, key: str = "") -> list[Credited]:
        """Count one use of each distinct memory, and a success if the run it was shown to was right.

        Unknown ids are reported, known ones are credited all the same. A key that was given before changes nothing,
        so a call with a key may be repeated safely.
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


class ServedStore(MemoryStore, Protocol):
    """A store that can be put behind HTTP, where a request may arrive twice."""

    @property
    def healthy(self) -> bool:
        """Whether the store is open and its last call met no fault that only a person can mend."""
        ...
