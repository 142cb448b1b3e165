"""The audit log: what one call changed, with the state before and after, so that it can be read, replayed and undone.

An image holds the columns of one memory that a call changed, before and after; None where the memory did not exist.
Vectors that went away are kept with it. The log is written in the transaction of the change itself.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pydantic_core import to_json

from memory_serve.near import Spot
from memory_serve.protocol import Action
from memory_serve.rows import INSERT, STATE, State
from mia.types import now


@dataclass(slots=True)
class Image:
    """State of a memory before and after a call: all columns, or those that changed; None where it was not there."""

    before: State | None
    after: State | None
    vector: bytes | None = None
    caption_vector: bytes | None = None


class Pending:
    """What the calls of one transaction have to write, written together: new memories, their runs, and the log.

    Args:
        connection: in the transaction.
        version: marks all rows that it changes.
    """

    def __init__(self, connection: sqlite3.Connection, version: int) -> None:
        self.connection = connection
        self.version = version
        (last,) = connection.execute(
            "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'changes'"
        ).fetchone()
        self.last = int(last)
        self.memories: list[tuple[object, ...]] = []
        """Rows as `INSERT` wants them."""
        self.runs: dict[tuple[str, str], tuple[str, str]] = {}
        """By namespace and run: memory and outcome."""
        self._changes: list[tuple[object, ...]] = []
        self._images: list[tuple[object, ...]] = []

    def add(self, change: Sequence[object], images: Iterable[Sequence[object]]) -> int:
        """Note a change and its images; returns its number."""
        self.last += 1
        self._changes.append((self.last, *change))
        self._images += [(self.last, *image) for image in images]
        return self.last

    def drop(self, memories: int, runs: int) -> None:
        """Forget new memories and runs but the first so many."""
        del self.memories[memories:]
        for run in list(self.runs)[runs:]:
            del self.runs[run]

    def flush(self) -> None:
        """Write what there is."""
        if self.memories:
            self.connection.executemany(INSERT, self.memories)
            self.memories = []
        if self.runs:
            rows = [(*run, *held) for run, held in self.runs.items()]
            self.connection.executemany("INSERT INTO runs VALUES (?, ?, ?, ?)", rows)
            self.runs = {}
        if self._changes:
            self.connection.executemany(
                "INSERT INTO changes (number, at, actor, namespace, action) VALUES (?, ?, ?, ?, ?)", self._changes
            )
            self.connection.executemany("INSERT INTO images VALUES (?, ?, ?, ?, ?, ?)", self._images)
            self._changes, self._images = [], []


@dataclass(slots=True)
class Write:
    """One call that changes something; it enters the log when it has an image.

    It runs in a savepoint of its own, which is made when it first asks for the connection: one that only adds new
    memories does not, and what it has to write waits in `pending`.
    """

    pending: Pending
    namespace: str
    actor: str
    action: Action
    number: int | None = None
    images: dict[str, Image] = field(default_factory=dict)
    spots: Sequence[Spot] = ()
    """Where the drafts that it adds stand."""
    _kept: tuple[int, int] | None = None
    """How many new memories and runs of earlier calls wait; None once there is a savepoint, which has them before."""

    @property
    def connection(self) -> sqlite3.Connection:
        """In the transaction; what waits has been written."""
        if self._kept is not None:
            mine = self.pending.memories[self._kept[0] :], dict(list(self.pending.runs.items())[self._kept[1] :])
            self.pending.drop(*self._kept)
            self.pending.flush()
            self.pending.connection.execute("SAVEPOINT call")
            self._kept = None
            self.pending.memories, self.pending.runs = mine
        self.pending.flush()
        return self.pending.connection

    @property
    def version(self) -> int:
        """Marks all rows that the transaction changes."""
        return self.pending.version

    def begin(self) -> None:
        """Must come before all else."""
        self._kept = len(self.pending.memories), len(self.pending.runs)

    def end(self) -> None:
        """Keep what the call did; its images must have been finished."""
        if self._kept is None:
            self.pending.connection.execute("RELEASE call")

    def undo(self) -> None:
        """Take back what the call did."""
        if self._kept is not None:
            self.pending.drop(*self._kept)
            return
        self.pending.drop(0, 0)
        self.pending.connection.execute("ROLLBACK TO call")
        self.pending.connection.execute("RELEASE call")

    def enter(self) -> int:
        """The number of this call in the log, where it stands from now on."""
        if self.number is None:
            self.number = self.pending.add(self._row(), [])
        self.pending.flush()
        return self.number

    def _row(self) -> tuple[str, ...]:
        return now().isoformat(timespec="microseconds"), self.actor, self.namespace, self.action

    def image(self, memory_id: str, new: Image) -> None:
        """Note a change of a memory; several in one call become one."""
        old = self.images.get(memory_id)
        if old is None:
            self.images[memory_id] = new
            return
        if old.vector is None:
            old.vector, old.caption_vector = new.vector, new.caption_vector
        if old.before is not None and new.before is not None:
            old.before = new.before | old.before
        old.after = None if new.after is None else (old.after or {}) | new.after

    def finish(self) -> None:
        """Write the images."""
        kept = {name: i for name, i in self.images.items() if i.before is not None or i.after is not None}
        if not kept:
            return
        images = [(n, _dumped(i.before), _dumped(i.after), i.vector, i.caption_vector) for n, i in kept.items()]
        if self.number is None:
            self.number = self.pending.add(self._row(), images)
        else:
            self.connection.executemany(
                "INSERT INTO images VALUES (?, ?, ?, ?, ?, ?)", [(self.number, *image) for image in images]
            )

    def state(self, memory_id: str) -> State | None:
        """The whole state of a memory, or None."""
        row = self.connection.execute(f"SELECT {STATE} FROM memories WHERE id = ?", (memory_id,)).fetchone()
        if row is None:
            return None
        state: State = json.loads(row[0])
        state["runs"] = json.loads(state["runs"]) if isinstance(state["runs"], str) else state["runs"]
        return state

    def vectors(self, memory_id: str) -> tuple[bytes, bytes | None]:
        """The vectors of a memory that is there."""
        row = self.connection.execute("SELECT vector, caption_vector FROM memories WHERE id = ?", (memory_id,))
        question, caption = row.fetchone()
        return question, caption


def differences(before: State, after: State) -> tuple[State, State]:
    """The columns that are not the same, before and after."""
    changed = [name for name in after if before[name] != after[name]]
    return {name: before[name] for name in changed}, {name: after[name] for name in changed}


def read_images(connection: sqlite3.Connection, number: int) -> Iterable[tuple[str, Image]]:
    """The images of a change."""
    rows = connection.execute("SELECT * FROM images WHERE number = ? ORDER BY memory_id", (number,)).fetchall()
    for _, memory_id, before, after, vector, caption in rows:
        yield memory_id, Image(_loaded(before), _loaded(after), vector, caption)


def prune(connection: sqlite3.Connection, most: int) -> None:
    """Forget all but the last changes."""
    connection.execute("DELETE FROM changes WHERE number <= (SELECT max(number) FROM changes) - ?", (most,))


def _dumped(state: State | None) -> str | None:
    return None if state is None else to_json(state).decode()


def _loaded(state: str | None) -> State | None:
    return None if state is None else json.loads(state)
