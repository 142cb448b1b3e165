"""What a memory store must offer; the SQLite core, the HTTP client and test doubles all satisfy it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from pydantic import Field, JsonValue

from mia.types import Memory, Modality, Outcome, Question, Recalled, Record, Text

MAX_BATCH = 1000
"""Drafts, ids or listed memories in one call, at most."""
MAX_K = 100
"""Memories of each outcome that one recall gives, at most."""
MAX_CHARACTERS = 200_000
"""Length of all texts of one draft, or of one question, at most; pictures are not counted."""


DEFAULT_NAMESPACE = "default"

Trust = Literal["reference", "panel", "model", "user", "unjudged"]
"""What a memory's outcome rests on, the strongest first: gold answers, a panel of models, one model, a person's word,
nothing. A memory is never replaced by one that rests on less."""
TRUSTS: tuple[Trust, ...] = ("reference", "panel", "model", "user", "unjudged")


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
    trust: Trust = "unjudged"


class Stored(Memory):
    """A memory with what only its keeper needs.

    `version` counts the changes of its content (credits do not count) and starts at 1. `absorbed` names the checkpoint
    whose weights have learned it. `merged_from` are the ids of memories that were merged into it. `win_rate` is that of
    an imported file until the next credit. `original` holds fields of a foreign file that have no place here.
    """

    namespace: str = DEFAULT_NAMESPACE
    version: int = Field(1, ge=1)
    trust: Trust = "unjudged"
    absorbed: Text = ""
    merged_from: tuple[str, ...] = ()
    win_rate: float | None = Field(None, ge=0, le=1)
    original: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def memory(self) -> Memory:
        """What the agent sees of it."""
        return Memory.model_construct(**{name: getattr(self, name) for name in Memory.model_fields})


class Edit(Record):
    """New content of a memory; what is None stays."""

    question: Text | None = None
    caption: Text | None = None
    workflow: Text | None = None
    plan: Text | None = None
    outcome: Outcome | None = None
    trust: Trust | None = None


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
    by_trust: dict[str, int] = Field(default_factory=dict)
    absorbed: int = 0
    namespace: str = DEFAULT_NAMESPACE


class Compacted(Record):
    """What compacting did: memories before and after, and how many of them went for which reason."""

    before: int
    after: int
    absorbed: int
    merged: int
    evicted: int


class PlanPair(Record):
    """A plan that worked and one that failed for the same question, and how similar that question is to one asked."""

    question: Text
    correct: Text
    incorrect: Text
    similarity: float


Action = Literal["add", "credit", "update", "delete", "clear", "import", "compact", "absorb", "undo"]


class Change(Record):
    """One entry of the audit log: who changed what, and when; `undone` says by which later change it was undone."""

    number: int
    at: str
    actor: str
    namespace: str
    action: Action
    memories: tuple[str, ...]
    undone: int | None = None


class MemoryStore(Protocol):
    """Keeps memories of one namespace. Safe to call from many tasks at once; what was acknowledged is on disk.

    Every method may raise MemoryStoreError when the store cannot be reached, read or written, and DataError for
    arguments out of bounds (`MAX_BATCH`, `MAX_K`, `MAX_CHARACTERS`); then nothing was changed. NUL becomes U+FFFD.
    Ids of other namespaces are unknown ids. Every call that changed something is one `Change`, which can be undone.
    """

    def scoped(self, namespace: str | None = None, actor: str | None = None) -> MemoryStore:
        """The same store, looking at another namespace or writing another name in the log; None keeps what it is.

        It shares everything with this one and need not be closed.

        Raises:
            DataError: not 1 to 64 letters a-z A-Z, digits, `_`, `-` or `.`, the first a letter or digit.
        """
        ...

    async def recall(self, question: Question, k: int = 2, skip: int = 0, own: bool = False) -> Recalled:
        """The k best successes, failures and unjudged memories of the question's bucket, after the `skip` best.

        Left out are memories below the similarity floor, those whose trust the config does not recall, and, unless
        `own`, those that stem from the question itself (same `source_id`). The terms of each score come with it.

        Raises:
            DataError: the question is blank.
            MemoryStoreError: the store cannot be read.
        """
        ...

    async def pairs(self, question: Question, k: int = 3) -> list[PlanPair]:
        """Questions of the bucket of which both a plan that worked and one that failed are known, most similar first.

        Those that stem from the question itself are left out.
        """
        ...

    async def add(self, drafts: Sequence[Draft]) -> list[Added]:
        """Store drafts, in order, by the label-aware duplicate rule; one result per draft.

        Raises:
            DataError: a draft has a blank question or workflow; nothing of the batch was stored.
            MemoryStoreError: nothing of the batch was stored.
        """
        ...

    async def load(self, memories: Sequence[Stored]) -> list[Added]:
        """Store exported memories as they are (id, counters, time, version), but in this store's namespace.

        No duplicate rule; vectors are made anew. An id that is there already is `known` if its content is the same, and
        `kept` (this store's content stays) if not.

        Raises:
            DataError: a memory has a blank question or workflow, or an id of another namespace.
        """
        ...

    async def export(self, after: str = "", limit: int = MAX_BATCH) -> list[Stored]:
        """Memories in the order of their ids, from the one behind `after`.

        Who walks the pages sees each memory that is there throughout exactly once.
        """
        ...

    async def credit(self, ids: Sequence[str], success: bool, key: str = "") -> list[Credited]:
        """Count one use of each distinct memory, and a success if the run it was shown to was right.

        Unknown ids are reported, known ones are credited all the same. A key that was given before changes nothing,
        so a call with a key may be repeated safely.
        """
        ...

    async def get(self, memory_id: str) -> Stored | None:
        """One memory, or None."""
        ...

    async def update(self, memory_id: str, edit: Edit, version: int) -> Stored:
        """Change the content of a memory whose version the caller has seen; the bucket follows the question.

        Raises:
            DataError: there is no such memory (404, `not_found`), or its version is another one now (409, `conflict`).
        """
        ...

    async def absorb(self, ids: Sequence[str], checkpoint: str) -> int:
        """Mark memories as learned by a checkpoint's weights; returns how many there were. An empty name unmarks."""
        ...

    async def delete(self, ids: Sequence[str]) -> int:
        """Forget memories; returns how many there were."""
        ...

    async def clear(self, everything: bool = False) -> int:
        """Forget all memories of this namespace, or of all namespaces; returns how many there were."""
        ...

    async def compact(self) -> Compacted:
        """Apply the rules of `memory.keep` to this namespace now (see `memory_serve.keep`)."""
        ...

    async def history(self, limit: int = 100) -> list[Change]:
        """The last changes of this namespace, the newest first."""
        ...

    async def undo(self, number: int | None = None) -> Change:
        """Take back a change: the one of this number, or the last of this namespace that is neither undone nor an undo.

        Raises:
            DataError: there is no such change (404, `not_found`), or its memories have changed since (409, `conflict`).
        """
        ...

    async def list(self, limit: int = 100, offset: int = 0) -> list[Stored]:
        """Memories from the newest to the oldest."""
        ...

    async def stats(self) -> Stats:
        """Counts over this namespace."""
        ...

    async def aclose(self) -> None:
        """Free what the store holds."""
        ...


class ServedStore(MemoryStore, Protocol):
    """A store that can be put behind HTTP, where a request may arrive twice."""

    def scoped(self, namespace: str | None = None, actor: str | None = None) -> ServedStore:
        """See `MemoryStore.scoped`."""
        ...

    @property
    def healthy(self) -> bool:
        """Whether the store is open and its last call met no fault that only a person can mend."""
        ...

    @property
    def classify_failures(self) -> int:
        """How often the Manager model was asked for a category and the rules had to name it."""
        ...
