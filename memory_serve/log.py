"""The audit log: what one call changed, with the state before and after, so that it can be read, replayed and undone.

An image holds the columns of one memory that a call changed, before and after; None where the memory did not exist.
Vectors that went away are kept with it. The log is written in the transaction of the change itself.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field

from memory_serve.protocol import Action
from memory_serve.rows import STATE, State
from mia.types import now


@dataclass(slots=True)
class Image:
    """State of a memory before and after a call: all columns, or those that changed; None where it was not there."""

    before: State | None
    after: State | None
    vector: bytes | None = None
    caption_vector: bytes | None = None


@dataclass(slots=True)
class Write:
    """One call that changes something.

    `version` marks all rows that the transaction changes. The call enters the log when its first image comes.
    """

    connection: sqlite3.Connection
    version: int
    namespace: str
    actor: str
    action: Action
    number: int | None = None
    images: dict[str, Image] = field(default_factory=dict)

    def enter(self) -> int:
        """The number of this call in the log."""
        if self.number is None:
            row = (now().isoformat(timespec="microseconds"), self.actor, self.namespace, self.action)
            cursor = self.connection.execute(
                "INSERT INTO changes (at, actor, namespace, action) VALUES (?, ?, ?, ?)", row
            )
            self.number = cursor.lastrowid or 0
        return self.number

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
        number = self.enter()
        self.connection.executemany(
            "INSERT INTO images VALUES (?, ?, ?, ?, ?, ?)",
            [(number, n, _dumped(i.before), _dumped(i.after), i.vector, i.caption_vector) for n, i in kept.items()],
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
    return None if state is None else json.dumps(state, ensure_ascii=False)


def _loaded(state: str | None) -> State | None:
    return None if state is None else json.loads(state)
