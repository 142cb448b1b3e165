"""The memory store over one SQLite file: `MemoryCore` on a thread of its own, and the encoder on another.

Encoding happens before the write transaction, so a slow encoder never holds the lock. Calls that come while others are
under way wait together: they are encoded in one batch and committed in one transaction (group commit), so many writers
wait for the disk once. A call returns after the commit that holds its change: what was acknowledged is on disk. Two
processes may open the same file.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from local_search.protocol import Encoder, Vectors
from memory_serve.category import Classifier, by_rules
from memory_serve.checks import (
    check_drafts,
    check_edit,
    check_length,
    check_memories,
    check_namespace,
    check_page,
    check_question,
    check_size,
    storable,
)
from memory_serve.classify import Classified, model_classifier
from memory_serve.config import MemoryConfig
from memory_serve.protocol import (
    MAX_BATCH,
    Action,
    Added,
    Change,
    Compacted,
    Credited,
    Draft,
    Edit,
    PlanPair,
    Stats,
    Stored,
)
from memory_serve.rows import Encoded
from memory_serve.upkeep import MemoryCore
from memory_serve.worker import Worker
from memory_serve.writing import Call
from mia.chat import ChatModel
from mia.errors import DataError, MemoryStoreError
from mia.types import Question, Recalled

_log = logging.getLogger(__name__)
_REENCODE_BATCH = 64
_Text = tuple[str, str]
"""A question and its caption."""
Vectorised = tuple[Vectors, Vectors | None]
"""Their unit vectors, each of shape (d,)."""
_Batch = list[_Text]
_Vectorised = list[Vectorised]
_Encodings = list[tuple[Encoded, str]]
"""Buckets and vectors; and for each why the rules named its category though the model was asked, if so."""


@dataclass(slots=True)
class _State:
    """What all views of a store share."""

    closed: bool = False
    fault: MemoryStoreError | None = None


class SqliteMemory:
    """See `MemoryStore`. Opens the file at once, which reads all vectors but encodes nothing.

    Args:
        config: path of the file and the rules; `url` and `summary` are not looked at.
        encoder: makes the vectors; called from one thread at a time.
        classify: names the category of a question.
        manager: asked for the category instead, if the config says so.

    Raises:
        MemoryStoreError: the file cannot be used, or its vectors were made by another encoder.
        DataError: the config's namespace cannot be one.
        ConfigError: the Manager model is wanted and there is none.
    """

    _own = False

    def __init__(
        self,
        config: MemoryConfig,
        encoder: Encoder,
        classify: Classifier = by_rules,
        manager: ChatModel | None = None,
    ) -> None:
        self._set_up(config, encoder, classify, manager)
        self._files: Worker[Call, Any] = Worker("memory-database", self._run)
        try:
            self._core = self._files.call(_open, config, encoder)
        except BaseException:
            self._stop_threads()
            raise

    def _set_up(self, config: MemoryConfig, encoder: Encoder, classify: Classifier, manager: ChatModel | None) -> None:
        """All but what the memories are kept in."""
        self._namespace = check_namespace(config.namespace)
        self._actor = ""
        self._own = config.recall_own
        self._encoder = encoder
        self._classify = classify
        self._asked = model_classifier(config.classify == "model", manager)
        self._state = _State()
        self._texts: Worker[list[_Text], list[Vectorised]] = Worker("memory-encoder", self._encode_group)

    def scoped(self, namespace: str | None = None, actor: str | None = None) -> SqliteMemory:
        """See `MemoryStore.scoped`."""
        view = copy.copy(self)
        if namespace is not None:
            view._namespace = check_namespace(namespace)
        if actor is not None:
            check_length(actor)
            view._actor = storable(actor)
        return view

    @property
    def healthy(self) -> bool:
        """Whether the store is open and its last call met no fault that only a person can mend."""
        return not self._state.closed and self._state.fault is None

    @property
    def classify_failures(self) -> int:
        """How often the Manager model was asked for a category and the rules had to name it."""
        return self._asked.failures if self._asked is not None else 0

    async def recall(self, question: Question, k: int = 2, skip: int = 0, own: bool = False) -> Recalled:
        """See `MemoryStore.recall`."""
        check_question(question, k, skip)
        ((asked, _),) = await self._encoded([question])
        source = storable(question.id)
        recalled: Recalled = await self._read(self._core.recall, asked, source, k, skip, own or self._own)
        return recalled

    async def pairs(self, question: Question, k: int = 3) -> list[PlanPair]:
        """See `MemoryStore.pairs`."""
        check_question(question, k)
        ((asked, _),) = await self._encoded([question])
        pairs: list[PlanPair] = await self._read(self._core.pairs, asked, storable(question.id), k)
        return pairs

    async def add(self, drafts: Sequence[Draft]) -> list[Added]:
        """See `MemoryStore.add`."""
        cleaned = check_drafts(drafts)
        if not cleaned:
            return []
        encoded = await self._encoded(cleaned)
        marked = [_marked(draft, how) for draft, (_, how) in zip(cleaned, encoded, strict=True)]
        added: list[Added] = await self._write("add", self._core.add, marked, [e for e, _ in encoded])
        return added

    async def load(self, memories: Sequence[Stored]) -> list[Added]:
        """See `MemoryStore.load`."""
        cleaned = check_memories(memories)
        if not cleaned:
            return []
        vectors = await self._vectors([(memory.question, memory.caption) for memory in cleaned])
        encoded = [Encoded((m.modality, m.category), *v) for m, v in zip(cleaned, vectors, strict=True)]
        added: list[Added] = await self._write("import", self._core.load_memories, cleaned, encoded)
        return added

    async def export(self, after: str = "", limit: int = MAX_BATCH) -> list[Stored]:
        """See `MemoryStore.export`."""
        check_page(limit)
        found: list[Stored] = await self._read(self._core.export, storable(after), limit)
        return found

    async def credit(self, ids: Sequence[str], success: bool, key: str = "") -> list[Credited]:
        """See `MemoryStore.credit`. A key that was given before changes nothing, so a call may be repeated safely."""
        check_size(ids, "ids")
        check_length(key)
        given = list(ids), success, storable(key)
        credited: list[Credited] = await self._write("credit", self._core.credit, *given)
        return credited

    async def get(self, memory_id: str) -> Stored | None:
        """See `MemoryStore.get`."""
        found: Stored | None = await self._read(self._core.get, storable(memory_id))
        return found

    async def update(self, memory_id: str, edit: Edit, version: int) -> Stored:
        """See `MemoryStore.update`."""
        cleaned = check_edit(edit)
        encoded = None
        if cleaned.question is not None or cleaned.caption is not None:
            old = await self.get(memory_id)
            if old is None:
                raise DataError(f"no memory {memory_id!r}", code="not_found", status=404)
            new = old.model_copy(update=cleaned.model_dump(include={"question", "caption"}, exclude_none=True))
            ((encoded, _),) = await self._encoded([new])
        stored: Stored = await self._write("update", self._core.update, storable(memory_id), cleaned, encoded, version)
        return stored

    async def absorb(self, ids: Sequence[str], checkpoint: str) -> int:
        """See `MemoryStore.absorb`."""
        check_size(ids, "ids")
        check_length(checkpoint)
        count: int = await self._write("absorb", self._core.absorb, list(ids), storable(checkpoint))
        return count

    async def delete(self, ids: Sequence[str]) -> int:
        """See `MemoryStore.delete`."""
        check_size(ids, "ids")
        count: int = await self._write("delete", self._core.delete, list(ids))
        return count

    async def clear(self, everything: bool = False) -> int:
        """See `MemoryStore.clear`."""
        count: int = await self._write("clear", self._core.clear, everything)
        return count

    async def compact(self) -> Compacted:
        """See `MemoryStore.compact`."""
        report: Compacted = await self._write("compact", self._core.compact)
        return report

    async def history(self, limit: int = 100) -> list[Change]:
        """See `MemoryStore.history`."""
        check_page(limit)
        changes: list[Change] = await self._read(self._core.history, limit)
        return changes

    async def undo(self, number: int | None = None) -> Change:
        """See `MemoryStore.undo`."""
        if number is not None and not 0 < number < 2**63:
            raise DataError(f"no change {number}", code="not_found", status=404)
        undone: Change = await self._write("undo", self._core.undo, number)
        return undone

    async def stats(self) -> Stats:
        """See `MemoryStore.stats`."""
        stats: Stats = await self._read(self._core.stats)
        return stats

    async def backup(self, path: Path) -> None:
        """Copy the whole file to a new one, while others read and write; the copy is one consistent state.

        Raises:
            DataError: there is a file already.
            MemoryStoreError: it cannot be written.
        """
        self._check_open()
        await self._files.call_async(self._core.backup, path)

    async def list(self, limit: int = 100, offset: int = 0) -> list[Stored]:
        """See `MemoryStore.list`."""
        check_page(limit, offset)
        memories: list[Stored] = await self._read(self._core.page, limit, offset)
        return memories

    async def aclose(self) -> None:
        """See `MemoryStore.aclose`. Waits for what is under way; closing twice is no fault."""
        if self._state.closed:
            return
        self._state.closed = True
        try:
            await self._files.call_async(self._core.close)
        finally:
            self._stop_threads()

    def _stop_threads(self) -> None:
        self._files.stop()
        self._texts.stop()

    async def _read(self, work: Callable[..., Any], *args: object) -> Any:
        return await self._on_file(Call(work, args, self._namespace))

    async def _write(self, action: Action, work: Callable[..., Any], *args: object) -> Any:
        return await self._on_file(Call(work, args, self._namespace, self._actor, action))

    async def _on_file(self, call: Call) -> Any:
        self._check_open()
        try:
            result = await self._files.do(call)
        except MemoryStoreError as error:
            self._state.fault = None if error.retryable else error
            raise
        self._state.fault = None
        return result

    def _run(self, calls: Sequence[Call]) -> Sequence[Any]:
        return self._core.run(calls)

    def _check_open(self) -> None:
        if self._state.closed:
            raise MemoryStoreError("the memory is closed", remedy="open it again", code="closed")

    async def _encoded(self, items: Sequence[Question | Draft | Stored]) -> _Encodings:
        questions = [item if isinstance(item, Question) else _question(item) for item in items]
        if self._asked is None:
            named = [Classified(self._classify(question)) for question in questions]
        else:
            named = [await self._asked.classify(question) for question in questions]
        vectors = await self._vectors([(question.text, question.caption) for question in questions])
        return [
            (Encoded((item.modality, n.category), *v), n.degraded)
            for item, n, v in zip(items, named, vectors, strict=True)
        ]

    async def _vectors(self, texts: _Batch) -> _Vectorised:
        self._check_open()
        return await self._texts.do(texts)

    def _encode_group(self, group: Sequence[_Batch]) -> Sequence[_Vectorised]:
        vectors = iter(encode(self._encoder, [text for texts in group for text in texts]))
        return [[next(vectors) for _ in texts] for texts in group]


def _open(config: MemoryConfig, encoder: Encoder) -> MemoryCore:
    core = MemoryCore(config, encoder.name, encoder.dim)
    try:
        if config.reencode:
            _encode_anew(core, encoder)
        core.load()
    except BaseException:
        core.close()
        raise
    return core


def _encode_anew(core: MemoryCore, encoder: Encoder) -> None:
    """Batch by batch, each on disk at once: after a crash the rest is still marked with the former encoder."""
    count = 0
    while batch := core.outdated(_REENCODE_BATCH):
        if not count:
            _log.info("encoding memories anew with %s", encoder.name)
        vectors = encode(encoder, [(question, caption) for _, question, caption in batch])
        core.set_vectors([(row[0], *pair) for row, pair in zip(batch, vectors, strict=True)])
        count += len(batch)
    if count:
        _log.info("encoded %d memories anew with %s", count, encoder.name)


def encode(encoder: Encoder, texts: Sequence[_Text]) -> list[Vectorised]:
    """Vectors of questions and captions, each of shape (d,); None for a blank caption.

    Raises:
        MemoryStoreError: the encoder broke its word on shape, type or length of the vectors.
    """
    captions = [caption for _, caption in texts if caption.strip()]
    vectors = encoder.encode([*(question for question, _ in texts), *captions], "query")
    wanted = (len(texts) + len(captions), encoder.dim)
    lengths = np.linalg.norm(vectors, axis=1) if vectors.shape == wanted else np.zeros(1)
    if vectors.dtype != np.float32 or not np.all(np.abs(lengths - 1) < 1e-3):
        raise MemoryStoreError(
            f"encoder {encoder.name} gave {vectors.dtype} vectors of shape {vectors.shape} for {wanted}, "
            f"the shortest of length {lengths.min():.3g}",
            remedy="use an encoder that gives float32 vectors of length 1",
            code="bad_vectors",
        )
    rest = iter(vectors[len(texts) :])
    return [
        (vector, next(rest) if caption.strip() else None)
        for vector, (_, caption) in zip(vectors[: len(texts)], texts, strict=True)
    ]


def _question(item: Draft | Stored) -> Question:
    return Question(id=item.source_id, text=item.question, caption=item.caption)


def _marked(draft: Draft, degraded: str) -> Draft:
    """Whoever reads the memory can see that its category is the rules' guess."""
    if not degraded:
        return draft
    return draft.model_copy(update={"provenance": {**draft.provenance, "classified": f"rules ({degraded})"}})
