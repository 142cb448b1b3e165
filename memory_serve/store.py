"""The memory store over one SQLite file: `MemoryCore` on a thread of its own, and the encoder on another.

Encoding happens before the write transaction, so a slow encoder never holds the lock. Two processes may open the same
file. What was acknowledged is on disk. Namespaces, eviction, import and export are left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from local_search.protocol import Encoder, Vectors
from memory_serve.category import Classifier, by_rules
from memory_serve.config import MemoryConfig
from memory_serve.core import Encoded, MemoryCore, other_encoder
from memory_serve.protocol import MAX_BATCH, MAX_CHARACTERS, MAX_K, Added, Credited, Draft, Stats
from mia.errors import DataError, MemoryStoreError
from mia.types import Memory, Question, Recalled, clean_text

T = TypeVar("T")
_log = logging.getLogger(__name__)
_REENCODE_BATCH = 64
_OFFSETS = 2**63


class SqliteMemory:
    """See `MemoryStore`. Opens the file at once, which reads all vectors but encodes nothing.

    Args:
        config: path of the file and the rules; `url` and `summary` are not looked at.
        encoder: makes the vectors; called from one thread at a time.
        classify: names the category of a question.

    Raises:
        MemoryStoreError: the file cannot be used, or its vectors were made by another encoder.
    """

    def __init__(self, config: MemoryConfig, encoder: Encoder, classify: Classifier = by_rules) -> None:
        self._encoder = encoder
        self._classify = classify
        self._closed = False
        self._fault: MemoryStoreError | None = None
        self._database_thread = ThreadPoolExecutor(1, "memory-database")
        self._encoder_thread = ThreadPoolExecutor(1, "memory-encoder")
        try:
            self._core = self._database_thread.submit(_open, config, encoder).result()
        except BaseException:
            self._stop_threads()
            raise

    @property
    def healthy(self) -> bool:
        """Whether the store is open and its last call met no fault that only a person can mend."""
        return not self._closed and self._fault is None

    async def recall(self, question: Question, k: int = 2) -> Recalled:
        """See `MemoryStore.recall`."""
        if not 1 <= k <= MAX_K:
            raise DataError(f"k is {k}", remedy=f"give a k from 1 to {MAX_K}")
        if not question.text.strip():
            raise DataError("the question is blank")
        _check_length(question.id, question.text, question.caption)
        (asked,) = await self._encoding(self._encode, [question])
        return await self._on_file(self._core.recall, asked, _storable(question.id), k)

    async def add(self, drafts: Sequence[Draft]) -> list[Added]:
        """See `MemoryStore.add`."""
        _check_size(drafts, "drafts")
        cleaned = [_clean(draft) for draft in drafts]
        for number, draft in enumerate(cleaned):
            blank = [name for name in ("question", "workflow") if not getattr(draft, name).strip()]
            if blank:
                raise DataError(f"draft {number} has a blank {blank[0]}", remedy="store only what tells something")
            _check_length(draft.model_dump_json())
        if not cleaned:
            return []
        encoded = await self._encoding(self._encode, cleaned)
        return await self._on_file(self._core.add, list(zip(cleaned, encoded, strict=True)))

    async def credit(self, ids: Sequence[str], success: bool, key: str = "") -> list[Credited]:
        """See `MemoryStore.credit`. A key that was given before changes nothing, so a call may be repeated safely."""
        _check_size(ids, "ids")
        _check_length(key)
        return await self._on_file(self._core.credit, list(ids), success, _storable(key))

    async def get(self, memory_id: str) -> Memory | None:
        """See `MemoryStore.get`."""
        return await self._on_file(self._core.get, _storable(memory_id))

    async def list(self, limit: int = 100, offset: int = 0) -> list[Memory]:
        """See `MemoryStore.list`."""
        if not 1 <= limit <= MAX_BATCH or not 0 <= offset < _OFFSETS:
            raise DataError(f"limit {limit}, offset {offset}", remedy=f"give a limit from 1 to {MAX_BATCH}")
        return await self._on_file(self._core.page, limit, offset)

    async def delete(self, ids: Sequence[str]) -> int:
        """See `MemoryStore.delete`."""
        _check_size(ids, "ids")
        return await self._on_file(self._core.delete, ids)

    async def stats(self) -> Stats:
        """See `MemoryStore.stats`."""
        return await self._on_file(self._core.stats)

    async def aclose(self) -> None:
        """See `MemoryStore.aclose`. Waits for what is under way; closing twice is no fault."""
        if self._closed:
            return
        self._closed = True
        try:
            await asyncio.wrap_future(self._database_thread.submit(self._core.close))
        finally:
            self._stop_threads()

    def _stop_threads(self) -> None:
        self._database_thread.shutdown(wait=False)
        self._encoder_thread.shutdown(wait=False)

    async def _on_file(self, work: Callable[..., T], *args: object) -> T:
        self._check_open()
        try:
            result = await asyncio.wrap_future(self._database_thread.submit(work, *args))
        except MemoryStoreError as error:
            self._fault = None if error.retryable else error
            raise
        self._fault = None
        return result

    async def _encoding(self, work: Callable[..., T], *args: object) -> T:
        self._check_open()
        return await asyncio.wrap_future(self._encoder_thread.submit(work, *args))

    def _check_open(self) -> None:
        if self._closed:
            raise MemoryStoreError("the memory is closed", remedy="open it again", code="closed")

    def _encode(self, items: Sequence[Question | Draft]) -> Sequence[Encoded]:
        asked = [item if isinstance(item, Question) else _question(item) for item in items]
        vectors = encode(self._encoder, [(question.text, question.caption) for question in asked])
        return [
            Encoded((item.modality, self._classify(question)), vector, caption)
            for item, question, (vector, caption) in zip(items, asked, vectors, strict=True)
        ]


def _open(config: MemoryConfig, encoder: Encoder) -> MemoryCore:
    core = MemoryCore(config, encoder.name, encoder.dim)
    try:
        others = {name: count for name, count in core.encoders().items() if name != encoder.name}
        if others and not config.reencode:
            raise other_encoder(config, others, encoder.name)
        if others:
            _log.info("encoding %d memories anew with %s", sum(others.values()), encoder.name)
            # Batch by batch, each on disk at once: after a crash the rest is still marked with the former encoder.
            while batch := core.outdated(_REENCODE_BATCH):
                vectors = encode(encoder, [(question, caption) for _, question, caption in batch])
                core.set_vectors([(row[0], *pair) for row, pair in zip(batch, vectors, strict=True)])
        core.load()
    except BaseException:
        core.close()
        raise
    return core


def encode(encoder: Encoder, texts: Sequence[tuple[str, str]]) -> Sequence[tuple[Vectors, Vectors | None]]:
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


def _question(draft: Draft) -> Question:
    return Question(id=draft.source_id, text=draft.question, caption=draft.caption)


def _storable(text: str) -> str:
    """Valid Unicode without NUL, which PostgreSQL refuses and other programs take for the end."""
    cleaned: str = clean_text(text)
    return cleaned.replace("\0", "\ufffd")


def _clean(draft: Draft) -> Draft:
    fields = draft.model_dump()
    texts = {name: _storable(value) for name, value in fields.items() if isinstance(value, str)}
    provenance = {_storable(name): _storable(value) for name, value in draft.provenance.items()}
    return draft.model_copy(update={**texts, "provenance": provenance})


def _check_size(items: Sequence[object], what: str) -> None:
    if isinstance(items, str) or len(items) > MAX_BATCH:
        raise DataError(f"{len(items)} {what} in one call", remedy=f"give a list of at most {MAX_BATCH}")


def _check_length(*texts: str) -> None:
    length = sum(map(len, texts))
    if length > MAX_CHARACTERS:
        raise DataError(f"{length} characters", remedy=f"shorten the texts to {MAX_CHARACTERS} characters in all")
