"""What is measured by `scripts/bench/memory.py`: our stores and others, behind one face.

Imports nothing of ours or theirs before it is needed: each candidate runs in the environment that has it.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

DIM = 384
CLIENTS = 32


_ready: dict[str, Any] = {}


def vector(text: str) -> Any:
    """A random unit vector, (DIM,), the same for the same text."""
    found = _ready.get(text)
    if found is not None:
        return found
    values = np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIM, np.float32)
    return values / np.linalg.norm(values)


def prepare(numbers: Iterable[int]) -> None:
    """Make the vectors of these questions, and forget all others: what follows is measured without encoding."""
    _ready.clear()
    _ready.update({question(n): vector(question(n)) for n in numbers})


def question(number: int) -> str:
    """A question; all of them are of one category."""
    return f"Which river flows through town number {number}?"


def workflow(number: int) -> str:
    """A workflow of about 60 words."""
    return "\n".join(f"{step}. Search: town {number} river {step} and its course to the sea" for step in range(1, 6))


class Candidate(Protocol):
    """Something that remembers. Numbers stand for questions."""

    async def open(self) -> None:
        """Open what is there."""

    async def add(self, numbers: Sequence[int]) -> None:
        """Store memories; they are on disk when this returns."""

    async def recall(self, number: int) -> None:
        """Recall memories for a question that was not asked before."""

    async def close(self) -> None:
        """Close it."""

    def disk(self) -> int:
        """Bytes on disk."""


# ---------------------------------------------------------------------------------------------- ours


class RandomEncoder:
    """Vectors that cost nothing."""

    name, dim = "random", DIM

    def encode(self, texts: Sequence[str], kind: str = "query") -> Any:
        """See `Encoder`."""
        return np.stack([vector(text) for text in texts])


class Ours:
    """A store of this repository."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._store: Any = None

    async def open(self) -> None:
        """See `Candidate`."""
        from memory_serve.config import MemoryConfig
        from memory_serve.open import open_served

        schema = {"schema_name": f"bench_{os.getpid()}"}
        settings = {"path": self._folder / "memory.db", "url": self._url, "postgres": schema, "busy_s": 60}
        self._store = open_served(MemoryConfig.model_validate(settings), RandomEncoder())

    async def add(self, numbers: Sequence[int]) -> None:
        """See `Candidate`."""
        from memory_serve.protocol import Draft

        outcomes = ("correct", "incorrect", "unjudged")
        await self._store.add([
            Draft.model_validate({"question": question(n), "workflow": workflow(n), "outcome": outcomes[n % 3],
                                  "source_id": f"q{n}", "trajectory_id": f"t{n}"})
            for n in numbers
        ])  # fmt: skip

    async def recall(self, number: int) -> None:
        """See `Candidate`."""
        from mia.types import Question

        assert (await self._store.recall(Question(id="new", text=question(number)))).ids

    async def close(self) -> None:
        """See `Candidate`."""
        await self._store.aclose()

    def disk(self) -> int:
        """See `Candidate`."""
        if not self._url:
            return folder_size(self._folder)
        import psycopg

        query = (
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relkind = 'r'"
        )
        with psycopg.connect(self._url) as connection:
            row = connection.execute(query, (f"bench_{os.getpid()}",)).fetchone()
        return int(row[0]) if row else 0


# ---------------------------------------------------------------------------------------------- others


class Threaded:
    """Calls blocking code on as many threads as there are clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._threads = ThreadPoolExecutor(CLIENTS)

    async def run(self, work: Callable[..., object], *args: object) -> None:
        """Do something on a thread."""
        await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    async def open(self) -> None:
        """See `Candidate`."""
        await self.run(self._open)

    async def add(self, numbers: Sequence[int]) -> None:
        """See `Candidate`."""
        await self.run(self._add, numbers)

    async def recall(self, number: int) -> None:
        """See `Candidate`."""
        await self.run(self._recall, number)

    async def close(self) -> None:
        """See `Candidate`."""
        await self.run(self._close)

    def disk(self) -> int:
        """See `Candidate`."""
        return folder_size(self.folder)

    def _open(self) -> None: ...

    def _add(self, numbers: Sequence[int]) -> None: ...

    def _recall(self, number: int) -> None: ...

    def _close(self) -> None: ...


class Original(Threaded):
    """The original's scheme, with its lock around everything that it lacks."""

    def _open(self) -> None:
        self._lock = threading.Lock()
        self._file = self.folder / "memory.json"
        self._entries: list[dict[str, Any]] = json.loads(self._file.read_text()) if self._file.exists() else []
        vectors = [vector(entry["question"]) for entry in self._entries]  # it encodes all anew at start
        self._matrix = np.stack(vectors) if vectors else np.zeros((0, DIM), np.float32)

    def _add(self, numbers: Sequence[int]) -> None:
        with self._lock:
            for n in numbers:
                self._matrix = np.concatenate([self._matrix, vector(question(n))[np.newaxis]])
                self._entries.append({"question": question(n), "workflow": workflow(n), "judgement": n % 2,
                                      "usage": 0, "win_rate": 1.0})  # fmt: skip
            self._file.write_text(json.dumps(self._entries, indent=2))

    def _recall(self, number: int) -> None:
        with self._lock:
            similar = self._matrix @ vector(question(number))
            scaled = (similar - similar.min()) / (similar.max() - similar.min() + 1e-8)
            scores = [0.7 * float(s) + 0.3 * e["win_rate"] for s, e in zip(scaled, self._entries, strict=True)]
            sorted(range(len(scores)), key=lambda i: -scores[i])[:4]


class Chroma(Threaded):
    """chromadb, its persistent client."""

    def _open(self) -> None:
        import chromadb

        settings = chromadb.Settings(anonymized_telemetry=False)
        self._client = chromadb.PersistentClient(str(self.folder), settings)
        self._memories = self._client.get_or_create_collection("memories", metadata={"hnsw:space": "cosine"})

    def _add(self, numbers: Sequence[int]) -> None:
        self._memories.add(
            ids=[str(n) for n in numbers],
            embeddings=[vector(question(n)) for n in numbers],
            documents=[workflow(n) for n in numbers],
            metadatas=[{"question": question(n)} for n in numbers],
        )

    def _recall(self, number: int) -> None:
        found = self._memories.query(query_embeddings=[vector(question(number))], n_results=6)
        assert found["ids"][0]


class Mem0(Threaded):
    """mem0 with its local Qdrant, without a model: `infer=False`, and vectors from elsewhere.

    The local Qdrant bears no two calls at once (`cannot start a transaction within a transaction`), hence the lock.
    """

    def _open(self) -> None:
        self._lock = threading.Lock()
        os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(self.folder), "OPENAI_API_KEY": "none"}
        from mem0 import Memory

        store = {"path": str(self.folder / "qdrant"), "on_disk": True, "embedding_model_dims": DIM}
        config = {
            "vector_store": {"provider": "qdrant", "config": store},
            "history_db_path": str(self.folder / "history.db"),
        }
        self._memory = Memory.from_config(config)
        self._memory.embedding_model = self

    def embed(self, text: str, action: str = "") -> list[float]:
        """The vector that mem0 asks for."""
        values: list[float] = vector(text).tolist()
        return values

    def embed_batch(self, texts: Sequence[str], action: str = "") -> list[list[float]]:
        """The vectors that mem0 asks for."""
        return [self.embed(text) for text in texts]

    def _add(self, numbers: Sequence[int]) -> None:
        messages = [{"role": "user", "content": f"{question(n)}\n{workflow(n)}"} for n in numbers]
        with self._lock:
            self._memory.add(messages, user_id="u", infer=False)

    def _recall(self, number: int) -> None:
        with self._lock:
            assert self._memory.search(question(number), filters={"user_id": "u"}, limit=6)["results"]

    def _close(self) -> None:
        self._memory.vector_store.client.close()


CANDIDATES: dict[str, Callable[[Path, str], Candidate]] = {
    "sqlite": lambda folder, url: Ours(folder, ""),
    "postgres": Ours,
    "original": lambda folder, url: Original(folder),
    "chromadb": lambda folder, url: Chroma(folder),
    "mem0": lambda folder, url: Mem0(folder),
}
PEERS = {"chromadb": "chromadb", "mem0": "mem0ai"}


def folder_size(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
