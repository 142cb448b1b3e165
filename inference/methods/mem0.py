"""Mem0: the package `mem0ai` itself, with our Manager as its language model and our encoder as its embedder.

Writes after every run, whatever its outcome: `add` of the conversation, answer included but none of our prompts, so
that no prompt becomes a fact. Reads before the run: `search` for the question, k facts; user id is the namespace.
Source: arXiv 2504.19413 and the package; its prompt, its treatment of equal facts and its ranking are its own. Both
models are handed to it as objects (`mem0_models`), so any Manager will do that can read the package's prompt of 34 kB.

The package works on a vector store in memory, filled from the notebook when it is opened; what `add` brings goes to the
notebook in one transaction. So a killed process has stored all of a run or nothing, and a run is added once. Its
telemetry is off. Left out: its optional extras, keyword search (fastembed) and links between entities (spaCy).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from pydantic import JsonValue

from inference.methods.mem0_models import Embedder, Extractor
from inference.methods.notebook import Change, Data, New, Notebook
from inference.methods.notes import Manager, NotesMethod
from inference.methods.traces import RESULT_BYTES, Turn, asked, turns
from inference.runs import Run
from local_search.protocol import Encoder
from memory_serve.protocol import Added
from mia.chat import ChatModel
from mia.errors import ConfigError, MemoryStoreError, MiaError
from mia.extras import need
from mia.paths import home
from mia.types import Judgement, Note, Question

MIN_CONTEXT = 16384
"""Tokens a Manager must be able to read: the package's prompt takes about 8,000."""
_COLLECTION = "mia"
_LAST_RUNS = 10
"""Conversations given back to the package when it is opened; it shows its model the last ten messages."""
_TIMES = ("created_at", "updated_at")
T = TypeVar("T")


class Mem0Method(NotesMethod):
    """`mem0`.

    Args:
        notebook: where the facts are.
        room: see `NotesMethod`.
        manager: finds facts in conversations.
        encoder: makes the vectors.
        user: whose facts they are: the namespace.

    Raises:
        ConfigError: the package is not installed (code `missing_extra`), or the Manager's context is too small.
    """

    def __init__(self, notebook: Notebook, room: int, manager: ChatModel, encoder: Encoder, user: str) -> None:
        super().__init__(notebook, room)
        if manager.context < MIN_CONTEXT:
            raise ConfigError(
                f"Mem0's prompt does not fit the Manager's context of {manager.context} tokens",
                remedy=f"set models.manager to a model that reads {MIN_CONTEXT} tokens, or choose another method",
            )
        self._package = import_mem0()
        self._manager = Manager(manager)
        self._encoder = encoder
        self._user = user
        self._opened: tuple[Any, Embedder] | None = None
        self._opening = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "mem0")

    async def notes(self, question: Question, k: int, skip: int) -> Sequence[Note]:
        """See `NotesMethod.notes`."""
        memory, _ = await self._memory()
        filters: dict[str, Any] = {"user_id": self._user}
        if question.id:
            filters["source_id"] = {"ne": question.id}
        found = await self._do(memory.search, asked(question), top_k=k + skip, filters=filters)
        return [
            Note(id=f"fact-{fact['hash'][:12]}", text=str(fact["memory"]), similarity=float(fact["score"]))
            for fact in found["results"][skip:]
        ]

    async def learn(self, run: Run, judgement: Judgement) -> Added | None:
        """See `Method.learn`."""
        try:
            return await super().learn(run, judgement)
        except BaseException:
            if self._opened is not None and self._opened[0].llm is not None:
                self._opened[0].llm.cancel()
            self._opened = None  # it may know what the notebook does not
            raise

    async def changes(self, run: Run, judgement: Judgement) -> Sequence[Change]:
        """See `NotesMethod.changes`."""
        memory, embedder = await self._memory()
        memory.llm = Extractor(self._manager, asyncio.get_running_loop())
        messages = _messages(turns(run), self._manager.room)
        metadata = {"source_id": run.question.id}
        added = await self._do(memory.add, messages, user_id=self._user, metadata=metadata)
        facts = [await self._do(memory.vector_store.get, fact["id"]) for fact in added["results"]]
        items = [
            New("fact", {"id": str(f.id), "payload": dict(f.payload)}, vector=embedder.made[f.payload["data"]])
            for f in facts
        ]
        embedder.made.clear()
        return [*items, New("conversation", {"user": self._user, "messages": [dict(message) for message in messages]})]

    async def dump(self) -> list[Mapping[str, JsonValue]]:
        """See `Method.dump`."""
        return [
            {"id": item.id, "sources": list(item.sources), **_lasting(item.data)}
            for item in await self.notebook.items()
        ]

    async def aclose(self) -> None:
        """Close package and notebook."""
        if self._opened is not None:
            await self._do(self._opened[0].close)
        await asyncio.to_thread(self._thread.shutdown)
        await super().aclose()

    async def _memory(self) -> tuple[Any, Embedder]:
        """The package's memory, filled from the notebook."""
        async with self._opening:
            if self._opened is None:
                facts, vectors = await self.notebook.items("fact"), await self.notebook.vectors("fact")
                told = [item.data for item in await self.notebook.items("conversation")]
                known = [data["messages"] for data in told if data["user"] == self._user][-_LAST_RUNS:]
                self._opened = await self._do(self._fill, [f.data for f in facts], vectors.tolist(), known)
            return self._opened

    def _fill(self, facts: Sequence[Data], vectors: list[list[float]], known: Sequence[Any]) -> tuple[Any, Embedder]:
        from mem0.memory.main import _build_session_scope
        from qdrant_client import QdrantClient

        embedder = Embedder(self._encoder)
        store = {"client": QdrantClient(":memory:"), "collection_name": _COLLECTION}
        unused = {"api_key": "unused"}  # what the package makes of it is replaced below, before anything is called
        memory = self._package.Memory.from_config(
            {
                "vector_store": {"provider": "qdrant", "config": {**store, "embedding_model_dims": self._encoder.dim}},
                "llm": {"provider": "openai", "config": unused},
                "embedder": {"provider": "openai", "config": unused},
                "history_db_path": ":memory:",
            }
        )
        memory.llm, memory.embedding_model = None, embedder
        if facts:
            payloads = [fact["payload"] for fact in facts]
            memory.vector_store.insert(vectors=vectors, payloads=payloads, ids=[fact["id"] for fact in facts])
        for messages in known:
            memory.db.save_messages(messages, _build_session_scope({"user_id": self._user}))
        return memory, embedder

    async def _do(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        """Call the package on its thread; its errors become ours, and ours that it wrapped come out again."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args, **named))
        except Exception as error:
            raise _ours(error) from error


def import_mem0() -> ModuleType:
    """The package, without telemetry and without a folder in the user's home.

    Raises:
        ConfigError: it is not installed (code `missing_extra`), or was imported before with telemetry on.
    """
    os.environ["MEM0_TELEMETRY"] = "False"  # read when it is imported; there is no other way
    os.environ.setdefault("MEM0_DIR", str(home() / "mem0"))
    logging.getLogger("mem0").setLevel(logging.ERROR)  # it warns of every extra that is left out
    package: ModuleType = need("mem0", "mem0")
    if need("mem0.memory.telemetry", "mem0").MEM0_TELEMETRY:
        raise ConfigError(
            "mem0 was imported with its telemetry on", remedy="set MEM0_TELEMETRY=False in the environment"
        )
    return package


def _ours(error: BaseException) -> MiaError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MiaError):
            return cause
        cause = cause.__cause__
    return MemoryStoreError(f"mem0: {error}", remedy="see the package's documentation", code="mem0")


def _messages(conversation: Sequence[Turn], room: int) -> list[dict[str, str]]:
    """A conversation as the package takes it: only what was said and shown, cut so that the Manager can read it."""
    share = max(80, min(RESULT_BYTES, room // (2 * len(conversation))))
    return [{"role": role, "content": text.encode()[:share].decode("utf-8", "ignore")} for role, text in conversation]


def _lasting(data: Data) -> Data:
    """Data without what differs between two runs alike."""
    payload = data.get("payload")
    if not isinstance(payload, dict):
        return data
    return {name: value for name, value in payload.items() if name not in _TIMES}
