"""One call that changes something in PostgreSQL: what it read, what it makes of it, and what the log says of it.

The rules work on states in RAM; the differences to what was read are written at the end, row by row in the order of the
ids, with the images that `memory_serve.log` describes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memory_serve.checks import storable
from memory_serve.log import Image, differences
from memory_serve.postgres_database import Connection
from memory_serve.postgres_reading import SELECT, blobs
from memory_serve.protocol import Action
from memory_serve.rows import COLUMNS, State
from mia.types import now

WHOLE = (
    f"{SELECT}, m.encoder, m.vector, m.caption_vector, m.cell, "
    "(SELECT json_object_agg(r.trajectory_id, r.outcome) FROM runs r WHERE r.memory_id = m.id)"
)
"""Everything of a memory."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Everything of a memory: its columns with the encoder's name and the runs stored in it, and its vectors."""

    state: State
    vector: bytes
    caption: bytes | None
    cell: bytes


def whole(row: Sequence[Any]) -> Whole:
    """From a row of `WHOLE`."""
    *columns, encoder, vector, caption, cell, runs = blobs(row)
    state = dict(zip(COLUMNS, columns, strict=True)) | {"encoder": encoder, "runs": runs or {}}
    return Whole(state, vector, caption, bytes(cell))


def digest(text: str) -> bytes:
    """What an id of any length is found by."""
    return hashlib.sha256(text.encode()).digest()


def possible(ids: Sequence[str]) -> list[str]:
    """Those of some texts that can be ids of memories here, sorted: PostgreSQL refuses to look for others."""
    return sorted(i for i in set(ids) if storable(i) == i)


@dataclass(slots=True)
class PostgresWrite:
    """See the module. `number` is the call's place in the log, once it has one."""

    connection: Connection
    namespace: str
    actor: str
    action: Action
    number: int | None = None
    images: dict[str, Image] = field(default_factory=dict)
    first: dict[str, Whole | None] = field(default_factory=dict)
    written: dict[str, Whole | None] = field(default_factory=dict)
    now: dict[str, Whole | None] = field(default_factory=dict)

    async def fetch(self, where: str, given: Sequence[object], lock: bool = False) -> list[str]:
        """Read memories; what this call has changed already stays as it is. Returns their ids in order."""
        query = f"SELECT {WHOLE} FROM memories m WHERE {where} ORDER BY m.id {'FOR UPDATE OF m' if lock else ''}"
        rows = await (await self.connection.execute(query, given, binary=True)).fetchall()
        for row in rows:
            if row[0] not in self.now:
                self.first[row[0]] = self.written[row[0]] = self.now[row[0]] = whole(row)
        return [row[0] for row in rows if self.now[row[0]] is not None]

    async def fetch_ids(self, ids: Sequence[str], lock: bool = False) -> list[str]:
        """Those of some memories that are in this namespace, in the order in which they are named."""
        found = await self.fetch("m.namespace = %s AND m.id = ANY(%s)", (self.namespace, possible(ids)), lock)
        return [i for i in dict.fromkeys(ids) if i in set(found)]

    def get(self, memory_id: str) -> Whole:
        """A memory that was read and is there."""
        found = self.now[memory_id]
        assert found is not None
        return found

    def put(self, memory_id: str, new: Whole | None) -> None:
        """Store, change or forget a memory."""
        self.first.setdefault(memory_id, None)
        self.written.setdefault(memory_id, None)
        self.now[memory_id] = new

    def change(self, memory_id: str, columns: State) -> None:
        """New values of some columns; counts as a new version."""
        old = self.get(memory_id)
        state = {**old.state, **columns, "revision": old.state["revision"] + 1}
        self.put(memory_id, Whole(state, old.vector, old.caption, old.cell))

    async def enter(self) -> int:
        """The number of this call in the log."""
        if self.number is None:
            row = (now().isoformat(timespec="microseconds"), self.actor, self.namespace, self.action)
            query = "INSERT INTO changes (at, actor, namespace, action) VALUES (%s, %s, %s, %s) RETURNING number"
            found = await (await self.connection.execute(query, row)).fetchone()
            self.number = int(found[0]) if found else 0
        return self.number

    async def finish(self) -> None:
        """Write what changed, and the images."""
        await self.flush()
        for memory_id, before in self.first.items():
            image = _image(before, self.now[memory_id])
            if image is not None:
                self.images[memory_id] = image
        self.first = dict(self.now)
        if not self.images:
            return
        number = await self.enter()
        async with self.connection.cursor() as cursor:
            await cursor.executemany(
                "INSERT INTO images VALUES (%s, %s, %s, %s, %b, %b)",
                [
                    (number, i, _dumped(image.before), _dumped(image.after), image.vector, image.caption_vector)
                    for i, image in self.images.items()
                ],
            )
        self.images = {}

    async def flush(self) -> None:
        """Write what changed since the last time."""
        changed = sorted(i for i, new in self.now.items() if new is not self.written[i])
        pairs = [(i, self.written[i], self.now[i]) for i in changed]
        gone = [i for i, old, new in pairs if old is not None and new is None]
        if gone:
            await self.connection.execute("DELETE FROM memories WHERE id = ANY(%s)", (gone,))
        moved = [(i, set(old.state["runs"]) - set(new.state["runs"])) for i, old, new in pairs if old and new]
        for memory_id, runs in moved:
            if runs:
                query = "DELETE FROM runs WHERE memory_id = %s AND digest = ANY(%b)"
                await self.connection.execute(query, (memory_id, [digest(run) for run in runs]))
        await self._insert([new for _, old, new in pairs if old is None and new is not None])
        for memory_id, old, new in pairs:
            if old is not None and new is not None:
                await self._update(memory_id, old, new)
        self.written = dict(self.now)

    async def _insert(self, new: Sequence[Whole]) -> None:
        if not new:
            return
        columns = (*COLUMNS, "encoder", "cell", "vector", "caption_vector")
        slots = ", ".join(["%s"] * (len(COLUMNS) + 1) + ["%b"] * 3)
        rows = [
            (*(w.state[name] for name in (*COLUMNS, "encoder")), w.cell, _array(w.vector), _array(w.caption))
            for w in new
        ]
        runs = [
            (w.state["namespace"], digest(run), run, w.state["id"], outcome)
            for w in new
            for run, outcome in w.state["runs"].items()
        ]
        async with self.connection.cursor() as cursor:
            await cursor.executemany(f"INSERT INTO memories ({', '.join(columns)}) VALUES ({slots})", rows)
            if runs:
                query = "INSERT INTO runs VALUES (%s, %b, %s, %s, %s) ON CONFLICT DO NOTHING"
                await cursor.executemany(query, runs)

    async def _update(self, memory_id: str, old: Whole, new: Whole) -> None:
        changes: dict[str, Any] = {
            name: value for name, value in new.state.items() if name != "runs" and value != old.state[name]
        }
        slots = [f"{name} = %s" for name in changes]
        if (old.vector, old.caption) != (new.vector, new.caption):
            changes |= {"cell": new.cell, "vector": _array(new.vector), "caption_vector": _array(new.caption)}
            slots += ["cell = %b", "vector = %b", "caption_vector = %b"]
        if slots:
            query = f"UPDATE memories SET {', '.join(slots)} WHERE id = %s"
            await self.connection.execute(query, (*changes.values(), memory_id))
        for run, outcome in new.state["runs"].items():
            if old.state["runs"].get(run) != outcome:
                await self.connection.execute(
                    "INSERT INTO runs VALUES (%s, %b, %s, %s, %s) ON CONFLICT (namespace, digest) "
                    "DO UPDATE SET memory_id = excluded.memory_id, outcome = excluded.outcome",
                    (new.state["namespace"], digest(run), run, memory_id, outcome),
                )


async def read_images(connection: Connection, number: int) -> list[tuple[str, Image]]:
    """The images of a change."""
    query = "SELECT memory_id, before, after, vector, caption_vector FROM images WHERE number = %s ORDER BY memory_id"
    rows = await (await connection.execute(query, (number,), binary=True)).fetchall()
    return [(i, Image(_loaded(before), _loaded(after), vector, caption)) for i, before, after, vector, caption in rows]


def _image(before: Whole | None, after: Whole | None) -> Image | None:
    if before is after:
        return None
    if before is None or after is None:
        gone = (before.vector, before.caption) if before is not None else (None, None)
        return Image(before.state if before else None, after.state if after else None, *gone)
    old, new = differences(before.state, after.state)
    if (before.vector, before.caption) == (after.vector, after.caption):
        return Image(old, new) if new else None
    encoders = {"encoder": before.state["encoder"]}, {"encoder": after.state["encoder"]}
    return Image(old | encoders[0], new | encoders[1], before.vector, before.caption)


def _array(blob: bytes | None) -> Any:
    return None if blob is None else np.frombuffer(blob, "<f4")


def _dumped(state: State | None) -> str | None:
    return None if state is None else json.dumps(state, ensure_ascii=False)


def _loaded(state: str | None) -> State | None:
    return None if state is None else json.loads(state)
