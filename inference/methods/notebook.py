"""Where methods other than MIA keep their notes: one small SQLite file, searched exactly.

An item has a kind, JSON data, a vector if it can be found by likeness, and the ids of the questions it stems from: to
these it is never shown. What one run taught is one transaction together with the mark that the run was learned, so a
process killed at any moment has learned the whole of a run or nothing of it. Write-ahead log; every commit is on disk.
Items are numbered in the order they came, and likeness is rounded, so that equal files give equal results and the older
of two equals comes first. Left out: everything that only MIA's own memory needs (see `memory_serve`).
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import JsonValue

from local_search.protocol import Encoder, Vectors
from memory_serve.database import store_error, switch_to_log, transaction
from memory_serve.protocol import Added
from mia.errors import MemoryStoreError

APPLICATION_ID = 0x4D49416E
"""Marks the file as ours ("MIAn")."""
_BUSY_S = 10.0
_DIGITS = 6
_BLOB = np.dtype("<f4")
_TABLES = (
    "CREATE TABLE about (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT",
    """CREATE TABLE items (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL,
        sources TEXT NOT NULL,
        data TEXT NOT NULL,
        vector BLOB
    ) STRICT""",
    "CREATE INDEX items_kind ON items (kind)",
    "CREATE TABLE learned (run TEXT NOT NULL PRIMARY KEY, item TEXT NOT NULL) STRICT",
)
_REMEDIES = {
    "busy": "another process is writing; try again",
    "disk_full": "free some space; what was learned before is not lost",
}
T = TypeVar("T")
Data = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Item:
    """What is stored under a number. `sources` are the ids of the questions it stems from."""

    number: int
    kind: str
    sources: tuple[str, ...]
    data: Data

    @property
    def id(self) -> str:
        """Name of the item, the same in two files that came about alike."""
        return f"{self.kind}-{self.number}"


@dataclass(frozen=True, slots=True)
class Found:
    """An item and how like it is to what was asked: the cosine, rounded."""

    item: Item
    similarity: float


@dataclass(frozen=True, slots=True)
class New:
    """An item to store; `text` makes its vector, or `vector` (d,) is given; without either it is not searched."""

    kind: str
    data: Data
    text: str | None = None
    vector: Vectors | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """New data of a stored item. `text` makes a new vector. `rewritten`: it stems from this run's question as well."""

    number: int
    data: Data
    text: str | None = None
    rewritten: bool = True


@dataclass(frozen=True, slots=True)
class Removed:
    """An item to forget."""

    number: int


Change = New | Changed | Removed


class Notebook:
    """The notes of one method. Safe to call from many tasks at once; all work is done on one thread.

    Args:
        path: the file; it and its folder are made if missing.
        method: whose notes they are.
        encoder: makes the vectors; the file remembers its name.

    Raises:
        MemoryStoreError: the file cannot be used, belongs to another method, or its vectors to another encoder.
    """

    def __init__(self, path: Path, method: str, encoder: Encoder) -> None:
        self._thread = ThreadPoolExecutor(1, "notebook")
        try:
            self._file = self._thread.submit(_File, path, method, encoder).result()
        except BaseException:
            self._thread.shutdown()
            raise

    async def nearest(self, kind: str, text: str, k: int, skip: int = 0, asked: str = "") -> list[Found]:
        """The items of a kind that are most like a text, best first, after the `skip` best.

        Args:
            kind: of the items.
            text: what they are compared with.
            k: how many at most.
            skip: how many of the best to leave out.
            asked: id of the question being asked; what stems from it is left out. Empty leaves out nothing.
        """
        return await self._do(self._file.nearest, kind, text, k, skip, asked)

    async def items(self, kind: str | None = None) -> list[Item]:
        """All items, or those of a kind, in the order they came."""
        return await self._do(self._file.items, kind)

    async def some(self, numbers: Sequence[int]) -> list[Item]:
        """The items of these numbers that are there, in the order of the numbers given."""
        return await self._do(self._file.some, numbers)

    async def vectors(self, kind: str) -> Vectors:
        """Vectors of the items of a kind that have one, (n, d), in the order they came."""
        return await self._do(self._file.vectors, kind)

    async def learned(self, run: str) -> str | None:
        """Whether a run was learned: the id of the first item it brought, "" if it brought none, None if it was not."""
        return await self._do(self._file.learned, run)

    async def learn(self, run: str, source: str, changes: Sequence[Change]) -> Added | None:
        """Do the changes of a run and mark it as learned, all or nothing; a run that was learned changes nothing.

        Args:
            run: id of the run.
            source: id of its question, from which stems what it adds or rewrites.
            changes: in order.

        Returns:
            The first item that it brought; None if it brought none.

        Raises:
            MemoryStoreError: nothing was stored.
        """
        return await self._do(self._file.learn, run, source, changes)

    async def aclose(self) -> None:
        """Close the file."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close the file, where nothing is awaited."""
        self._thread.submit(self._file.close).result()
        self._thread.shutdown()

    async def _do(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)


@dataclass(frozen=True, slots=True)
class _Shelf:
    """All items of a kind that have a vector: numbers, sources and vectors (n, d), as of one state of the file."""

    state: tuple[int, int]
    numbers: list[int]
    sources: list[frozenset[str]]
    vectors: Vectors


class _File:
    """The work of a `Notebook`, on its thread."""

    def __init__(self, path: Path, method: str, encoder: Encoder) -> None:
        self.path = path
        self._encoder = encoder
        self._writes = 0
        self._shelves: dict[str, _Shelf] = {}
        with self._faults():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            try:
                self._prepare({"method": method, "encoder": encoder.name, "dimensions": str(encoder.dim)})
            except BaseException:
                self._connection.close()
                raise

    def nearest(self, kind: str, text: str, k: int, skip: int, asked: str) -> list[Found]:
        """See `Notebook.nearest`."""
        shelf = self._shelf(kind)
        if not shelf.numbers:
            return []
        likeness = np.round(shelf.vectors @ self._encode([text])[0], _DIGITS)
        order = np.argsort(-likeness, kind="stable")
        places = [int(place) for place in order if not asked or asked not in shelf.sources[place]][skip : skip + k]
        items = self.some([shelf.numbers[place] for place in places])
        return [Found(item, float(likeness[place])) for item, place in zip(items, places, strict=True)]

    def items(self, kind: str | None) -> list[Item]:
        """See `Notebook.items`."""
        with self._faults():
            rows = self._connection.execute(
                "SELECT id, kind, sources, data FROM items WHERE ?1 IS NULL OR kind = ?1 ORDER BY id", (kind,)
            )
            return [_item(row) for row in rows]

    def some(self, numbers: Sequence[int]) -> list[Item]:
        """See `Notebook.some`."""
        with self._faults():
            statement = "SELECT id, kind, sources, data FROM items WHERE id = ?"
            rows = [self._connection.execute(statement, (number,)).fetchone() for number in numbers]
            return [_item(row) for row in rows if row is not None]

    def vectors(self, kind: str) -> Vectors:
        """See `Notebook.vectors`."""
        return self._shelf(kind).vectors

    def learned(self, run: str) -> str | None:
        """See `Notebook.learned`."""
        with self._faults():
            row = self._connection.execute("SELECT item FROM learned WHERE run = ?", (run,)).fetchone()
            return None if row is None else str(row[0])

    def learn(self, run: str, source: str, changes: Sequence[Change]) -> Added | None:
        """See `Notebook.learn`."""
        texts = [c.text for c in changes if not isinstance(c, Removed) and c.text is not None]
        made = iter(self._encode(texts) if texts else ())  # before the transaction: a slow encoder holds no lock
        with self._writing():
            known = self.learned(run)
            if known is not None:
                return Added(id=known, action="known") if known else None
            stored = [self._apply(change, source, made) for change in changes]
            first = next((name for name in stored if name), "")
            self._connection.execute("INSERT INTO learned VALUES (?, ?)", (run, first))
        return Added(id=first, action="stored") if first else None

    def close(self) -> None:
        """Close the connection; the last one of a file also folds the log into it."""
        with self._faults():
            self._connection.close()

    def _apply(self, change: Change, source: str, made: Iterator[Vectors]) -> str:
        """Do one change; returns the id of the item that it brought, else an empty text."""
        execute = self._connection.execute
        if isinstance(change, Removed):
            execute("DELETE FROM items WHERE id = ?", (change.number,))
            return ""
        data = json.dumps(change.data, ensure_ascii=False)
        vector = next(made) if change.text is not None else change.vector if isinstance(change, New) else None
        blob = None if vector is None else vector.astype(_BLOB).tobytes()
        if isinstance(change, New):
            row = (change.kind, json.dumps([source] if source else []), data, blob)
            made_at = execute("INSERT INTO items (kind, sources, data, vector) VALUES (?, ?, ?, ?)", row).lastrowid
            return f"{change.kind}-{made_at}"
        old = self.some([change.number])
        if not old:
            raise MemoryStoreError(f"{self.path}: item {change.number} is gone", code="gone", retryable=True)
        sources = {*old[0].sources, *([source] if source and change.rewritten else [])}
        execute(
            "UPDATE items SET sources = ?, data = ?, vector = coalesce(?, vector) WHERE id = ?",
            (json.dumps(sorted(sources)), data, blob, change.number),
        )
        return ""

    def _shelf(self, kind: str) -> _Shelf:
        with self._faults():
            state = (self._writes, self._connection.execute("PRAGMA data_version").fetchone()[0])
            shelf = self._shelves.get(kind)
            if shelf is not None and shelf.state == state:
                return shelf
            rows = self._connection.execute(
                "SELECT id, sources, vector FROM items WHERE kind = ? AND vector IS NOT NULL ORDER BY id", (kind,)
            ).fetchall()
        joined = b"".join(row[2] for row in rows)
        if len(joined) != len(rows) * self._encoder.dim * _BLOB.itemsize:
            raise MemoryStoreError(f"{self.path} is damaged: a vector has the wrong length", code="damaged")
        vectors = np.frombuffer(joined, _BLOB).astype(np.float32).reshape(len(rows), self._encoder.dim)
        sources = [frozenset(json.loads(row[1])) for row in rows]
        self._shelves[kind] = _Shelf(state, [row[0] for row in rows], sources, vectors)
        return self._shelves[kind]

    def _encode(self, texts: Sequence[str]) -> Vectors:
        vectors = self._encoder.encode(texts, "query")
        if vectors.shape != (len(texts), self._encoder.dim):
            raise MemoryStoreError(f"{self._encoder.name} made vectors of shape {vectors.shape}", code="bad_encoder")
        return vectors

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction; on disk when this ends, undone when something is raised."""
        with self._faults():
            with transaction(self._connection, "BEGIN IMMEDIATE"):
                yield
            self._writes += 1

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: what should be JSON is none
            known = store_error(self.path, error)
            remedy = _REMEDIES.get(known.code, "check the file, or set method.path to another one")
            raise MemoryStoreError(known.message, remedy=remedy, code=known.code, retryable=known.retryable) from error

    def _prepare(self, about: Mapping[str, str]) -> None:
        execute = self._connection.execute
        switch_to_log(self._connection, _BUSY_S)
        execute("PRAGMA synchronous = FULL")
        with self._writing():
            (application,) = execute("PRAGMA application_id").fetchone()
            (tables,) = execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if application != APPLICATION_ID and (application or tables):
                raise self._other("is a database of another program", "foreign_file")
            if not tables:
                for statement in _TABLES:
                    execute(statement)
                execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._connection.executemany("INSERT INTO about VALUES (?, ?)", about.items())
            found = dict(execute("SELECT name, value FROM about").fetchall())
        if found["method"] != about["method"]:
            raise self._other(f"holds notes of {found['method']}, not of {about['method']}", "other_method")
        if found != about:
            raise self._other(f"holds vectors of {found['encoder']}, not of {about['encoder']}", "other_encoder")

    def _other(self, what: str, code: str) -> MemoryStoreError:
        return MemoryStoreError(f"{self.path} {what}", remedy="set method.path to another file", code=code)


def _item(row: Sequence[Any]) -> Item:
    return Item(row[0], row[1], tuple(json.loads(row[2])), json.loads(row[3]))
