"""Calls that change something in PostgreSQL: what they read, what they make of it, and what the log says of it.

The rules work on states in RAM. What came of all calls of a transaction is written at its end, in few statements for
however many memories, with the images that `memory_serve.log` describes.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memory_serve.checks import storable
from memory_serve.log import Image, differences
from memory_serve.near import Spot
from memory_serve.postgres_database import Connection
from memory_serve.postgres_mirror import Mirror, blob
from memory_serve.postgres_reading import SELECT
from memory_serve.protocol import Action
from memory_serve.rows import COLUMNS, State
from mia.types import now

WHOLE = (
    f"{SELECT}, m.encoder, m.vector, m.caption_vector, "
    "(SELECT json_object_agg(r.trajectory_id, r.outcome) FROM runs r WHERE r.memory_id = m.id)"
)
"""Everything of a memory."""
_TYPES = {"uses": "int8", "successes": "int8", "revision": "int8", "win_rate": "float8"}
"""Columns that are no text."""
_VECTORS = ("vector", "caption_vector")


@dataclass(frozen=True, slots=True)
class Whole:
    """Everything of a memory: its columns with the encoder's name and the runs stored in it, and its vectors."""

    state: State
    vector: bytes
    caption: bytes | None


def whole(row: Sequence[Any]) -> Whole:
    """From a row of `WHOLE`."""
    *columns, encoder, vector, caption, runs = row
    state = dict(zip(COLUMNS, columns, strict=True)) | {"encoder": encoder, "runs": runs or {}}
    return Whole(state, blob(vector), blob(caption))


def digest(text: str) -> bytes:
    """What an id of any length is found by."""
    return hashlib.sha256(text.encode()).digest()


def possible(ids: Sequence[str]) -> list[str]:
    """Those of some texts that can be ids of memories here, sorted: PostgreSQL refuses to look for others."""
    return sorted(i for i in set(ids) if storable(i) == i)


@dataclass(slots=True)
class Group:
    """The calls of one transaction: the memories they look at, as they are `now`, and as the database has them."""

    connection: Connection
    mirror: Mirror
    """Some memories that added ones may be twins of, as they are now."""
    now: dict[str, Whole | None] = field(default_factory=dict)
    found: dict[str, Whole | None] = field(default_factory=dict)
    """As they were before the transaction."""
    written: dict[str, Whole | None] = field(default_factory=dict)
    known: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """Namespace and run to the memory that holds it and the run's outcome; of the runs that the calls name."""
    spots: deque[Spot] = field(default_factory=deque)
    """Where the drafts stand that are still to be added, in their order."""
    keys: set[tuple[str, bytes]] = field(default_factory=set)
    """Namespace and digest of the keys of credits that were not given before."""

    async def fetch(self, where: str, given: Sequence[object]) -> list[str]:
        """Read memories; what the calls have changed already stays as it is. Returns their ids in order."""
        query = f"SELECT {WHOLE} FROM memories m WHERE {where} ORDER BY m.id"
        rows = await (await self.connection.execute(query, given, binary=True)).fetchall()
        for row in rows:
            if row[0] not in self.now:
                self.found[row[0]] = self.written[row[0]] = self.now[row[0]] = whole(row)
        return [row[0] for row in rows if self.now[row[0]] is not None]

    async def flush(self) -> None:
        """Write what changed since the last time."""
        pairs = [(i, self.written.get(i), new) for i, new in self.now.items() if new is not self.written.get(i)]
        gone = [i for i, old, new in pairs if old is not None and new is None]
        if gone:
            await self.connection.execute("DELETE FROM memories WHERE id = ANY(%s)", (gone,))
        changed = [(old, new) for _, old, new in pairs if old is not None and new is not None]
        await self._take_runs([
            (new.state["id"], run) for old, new in changed for run in set(old.state["runs"]) - set(new.state["runs"])
        ])  # fmt: skip
        fresh = [new for _, old, new in pairs if old is None and new is not None]
        await self._insert(fresh)
        await self._update(changed)
        await self._give_runs([
            (new.state["namespace"], run, new.state["id"], outcome)
            for old, new in [*((None, new) for new in fresh), *changed]
            for run, outcome in new.state["runs"].items()
            if old is None or old.state["runs"].get(run) != outcome
        ])  # fmt: skip
        self.written = dict(self.now)

    async def _insert(self, new: Sequence[Whole]) -> None:
        if not new:
            return
        columns = (*COLUMNS, "encoder", "vector", "caption_vector")
        cursor, statement = self.connection.cursor(), f"COPY memories ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"
        async with cursor, cursor.copy(statement) as copy:
            copy.set_types([*(_TYPES.get(name, "text") for name in columns[:-2]), "vector", "vector"])
            for w in new:
                texts = (w.state[name] for name in columns[:-2])
                await copy.write_row((*texts, _array(w.vector), _array(w.caption)))

    async def _update(self, pairs: Sequence[tuple[Whole, Whole]]) -> None:
        statements: dict[tuple[str, ...], list[tuple[object, ...]]] = {}
        for old, new in pairs:
            changes = {name: v for name, v in new.state.items() if name != "runs" and v != old.state[name]}
            if (old.vector, old.caption) != (new.vector, new.caption):
                changes |= {"vector": _array(new.vector), "caption_vector": _array(new.caption)}
            if changes:
                statements.setdefault(tuple(changes), []).append((*changes.values(), new.state["id"]))
        async with self.connection.cursor() as cursor:
            for names, rows in statements.items():
                slots = ", ".join(f"{name} = {'%b' if name in _VECTORS else '%s'}" for name in names)
                await cursor.executemany(f"UPDATE memories SET {slots} WHERE id = %s", rows)

    async def _take_runs(self, rows: Sequence[tuple[str, str]]) -> None:
        if rows:
            ids, digests = [i for i, _ in rows], [digest(run) for _, run in rows]
            query = (
                "DELETE FROM runs r USING unnest(%s::text[], %b::bytea[]) d (memory_id, digest) "
                "WHERE r.memory_id = d.memory_id AND r.digest = d.digest"
            )
            await self.connection.execute(query, (ids, digests))

    async def _give_runs(self, rows: Sequence[tuple[str, str, str, str]]) -> None:
        if rows:
            namespaces, runs, ids, outcomes = (list(column) for column in zip(*rows, strict=True))
            query = (
                "INSERT INTO runs (namespace, digest, trajectory_id, memory_id, outcome) "
                "SELECT * FROM unnest(%s::text[], %b::bytea[], %s::text[], %s::text[], %s::text[]) "
                "ON CONFLICT (namespace, digest) DO UPDATE SET memory_id = excluded.memory_id, "
                "outcome = excluded.outcome"
            )
            await self.connection.execute(query, (namespaces, [digest(run) for run in runs], runs, ids, outcomes))

    async def finish(self, writes: Sequence[PostgresWrite]) -> int | None:
        """Write what changed, and the log; returns the number of the last change, if there is any."""
        await self.flush()
        logged = [write for write in writes if write.images or write.number is not None]
        rows = [write.row() for write in logged if write.number is None]
        if rows:
            query = (
                "INSERT INTO changes (at, actor, namespace, action) SELECT at, actor, namespace, action "
                "FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]) WITH ORDINALITY "
                "d (at, actor, namespace, action, place) ORDER BY place RETURNING number"
            )
            found = await self.connection.execute(query, [list(column) for column in zip(*rows, strict=True)])
            numbers = iter(sorted(number for (number,) in await found.fetchall()))
            for write in logged:
                write.number = next(numbers) if write.number is None else write.number
        images = [(write.number, i, image) for write in logged for i, image in write.images.items()]
        if images:
            cursor, statement = self.connection.cursor(), "COPY images FROM STDIN (FORMAT BINARY)"
            async with cursor, cursor.copy(statement) as copy:
                copy.set_types(["int8", "text", "text", "text", "bytea", "bytea"])
                for number, i, m in images:
                    row = (number, i, _dumped(m.before), _dumped(m.after), m.vector, m.caption_vector)
                    await copy.write_row(row)
        return max((write.number for write in logged if write.number is not None), default=None)


@dataclass(slots=True)
class PostgresWrite:
    """One call of a group. `number` is its place in the log, once it has one; `first` is what it found."""

    group: Group
    namespace: str
    actor: str
    action: Action
    number: int | None = None
    first: dict[str, Whole | None] = field(default_factory=dict)
    images: dict[str, Image] = field(default_factory=dict)

    async def fetch_ids(self, ids: Sequence[str]) -> list[str]:
        """Those of some memories that are in this namespace, in the order in which they are named."""
        found = set(await self.group.fetch("m.namespace = %s AND m.id = ANY(%s)", (self.namespace, possible(ids))))
        return [i for i in dict.fromkeys(ids) if i in found]

    def get(self, memory_id: str) -> Whole:
        """A memory that was read and is there."""
        found = self.group.now[memory_id]
        assert found is not None
        return found

    def put(self, memory_id: str, new: Whole | None) -> None:
        """Store, change or forget a memory."""
        old, known = self.group.now.get(memory_id), self.group.known
        self.first.setdefault(memory_id, old)
        self.group.now[memory_id] = new
        if old is not None:
            for run in ((old.state["namespace"], run) for run in old.state["runs"]):
                if run in known and known[run][0] == memory_id:
                    del known[run]
        if new is not None:
            known.update({(new.state["namespace"], run): (memory_id, o) for run, o in new.state["runs"].items()})

    def change(self, memory_id: str, columns: State) -> None:
        """New values of some columns; counts as a new version."""
        old = self.get(memory_id)
        state = {**old.state, **columns, "revision": old.state["revision"] + 1}
        self.put(memory_id, Whole(state, old.vector, old.caption))

    def row(self) -> tuple[str, str, str, str]:
        """What the log says of the call, but for its number."""
        return now().isoformat(timespec="microseconds"), self.actor, self.namespace, self.action

    async def enter(self) -> int:
        """The number of this call in the log."""
        if self.number is None:
            query = "INSERT INTO changes (at, actor, namespace, action) VALUES (%s, %s, %s, %s) RETURNING number"
            found = await (await self.group.connection.execute(query, self.row())).fetchone()
            self.number = int(found[0]) if found else 0
        return self.number

    def done(self) -> None:
        """Note the images; the next call of the group begins with what this one has left."""
        for memory_id, before in self.first.items():
            image = _image(before, self.group.now[memory_id])
            if image is not None:
                self.images[memory_id] = image


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
