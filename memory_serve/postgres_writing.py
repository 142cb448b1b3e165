"""The memory in PostgreSQL, writing: adding, crediting, editing, forgetting; see `memory_serve.writing` for the rules.

Each call is one transaction. Replicas are kept apart by advisory locks, taken from the outermost inwards: everything, a
namespace, then what a call works on. Adding takes the outer ones shared and, for itself, the cells of the grid in which
a twin of its drafts can lie: so two drafts of one question wait for each other, in whatever replica, and others do not.
Crediting takes rows. All else has the namespace for itself.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from pgvector import Vector

from local_search.protocol import Vectors
from memory_serve.duplicates import decide, same_question, twins
from memory_serve.log import Image
from memory_serve.near import radius
from memory_serve.postgres_cells import Cells
from memory_serve.postgres_database import lock_key
from memory_serve.postgres_log import PostgresWrite, Whole, digest, possible
from memory_serve.postgres_reading import BUCKET, Mirror, PostgresReader, least_cosine
from memory_serve.protocol import TRUSTS, Added, Credited, Draft, Edit, Stored
from memory_serve.rows import COLUMNS, Encoded, State, stored, to_blob, values
from memory_serve.vectors import Key
from memory_serve.writing import Call
from mia.errors import DataError
from mia.types import Outcome, now

_STRIPES = 128
"""Locks that the cells of a bucket, or the runs of a namespace, are spread over."""
_PRUNED = 1000
"""Changes after which the log is cut to its length."""
_LONGEST_ID = 500
_NEAR = """
    m.id = ANY(ARRAY(
        SELECT n.id FROM unnest(%b::vector[]) WITH ORDINALITY d (vector, draft)
        JOIN unnest(%s::bigint[], %s::text[], %s::text[], %b::bytea[]) p (draft, modality, category, cell) USING (draft)
        JOIN memories n ON n.modality = p.modality AND n.category = p.category AND n.cell = p.cell AND n.namespace = %s
        WHERE -(n.vector <#> d.vector) >= %s
    ))
"""
"""Memories that are near to a draft: those in its cells are looked at."""
_WRITTEN = "UPDATE memories m SET {} FROM old WHERE m.id = old.id"


class PostgresWriter(PostgresReader):
    """Adds what changes a memory. Methods that take a `PostgresWrite` are called through `perform`."""

    def __init__(self, config: Any, encoder: str, dim: int) -> None:
        super().__init__(config, encoder, dim)
        self._least = least_cosine(min(config.duplicate, config.keep.merge or 1.0), config.weights)
        self._cells = Cells(dim, radius(self._least))

    async def perform(self, call: Call) -> Any:
        """Do a call; if it writes, in a transaction of its own."""
        if call.action is None:
            return await call.work(call.namespace, *call.args)
        action = call.action

        async def work(connection: Any) -> Any:
            write = PostgresWrite(connection, call.namespace, call.actor, action)
            result = await call.work(write, *call.args)
            await write.finish()
            if write.number is not None and write.number % _PRUNED == 0:
                most = write.number - self._config.history
                await connection.execute("DELETE FROM changes WHERE number <= %s", (most,))
            return result

        return await self._database.writing(work)

    async def alone(self, write: PostgresWrite, everywhere: bool = False) -> None:
        """Let nobody else write in this namespace, or anywhere, until the end of the transaction."""
        if everywhere:
            await self.lock(write, [], [self._key()])
        else:
            await self.lock(write, [self._key()], [self._key(write.namespace)])

    async def beside(self, write: PostgresWrite, *names: int) -> None:
        """Let others write in this namespace, except what these locks stand for."""
        await self.lock(write, [self._key(), self._key(write.namespace)], names)

    async def lock(self, write: PostgresWrite, shared: Sequence[int], exclusive: Sequence[int]) -> None:
        """Take locks, then see that vectors are still made by our encoder."""
        await self._database.lock(write.connection, shared, exclusive)
        row = await (await write.connection.execute("SELECT value FROM facts WHERE name = 'encoder'")).fetchone()
        if row is None or row[0] != self._encoder:
            raise self._other_encoder({row[0] if row else "?": 1})

    def _key(self, *names: str) -> int:
        return lock_key("mia", self._database.schema, *names)

    # ------------------------------------------------------------------------------------------ adding

    async def add(self, write: PostgresWrite, drafts: Sequence[Draft], encoded: Sequence[Encoded]) -> list[Added]:
        """Store drafts in order; see `memory_serve.duplicates` and `memory_serve.keep` for what becomes of each."""
        await self.beside(write, *self._add_locks(write.namespace, drafts, encoded))
        known = await self._known_runs(write, drafts)
        if known:
            await write.fetch("m.id = ANY(%s)", (sorted({memory_id for memory_id, _ in known.values()}),))
        mirror = await self._candidates(write, encoded)
        added = [self._add(write, mirror, known, draft, e) for draft, e in zip(drafts, encoded, strict=True)]
        fresh = {
            a.id: (write.namespace, *e.bucket) for a, e in zip(added, encoded, strict=True) if a.action == "stored"
        }
        if not fresh or not (self._config.keep.merge or self._config.keep.capacity):
            return added
        into = await self._keep_small(write, mirror, fresh)
        return [Added(id=into[a.id], action="kept") if a.id in into else a for a in added]

    async def _keep_small(self, write: PostgresWrite, mirror: Mirror, fresh: dict[str, Key]) -> dict[str, str]:
        """Apply the rules of `memory.keep` after memories came to buckets; which of them were merged into which."""
        raise NotImplementedError

    def _add_locks(self, namespace: str, drafts: Sequence[Draft], encoded: Sequence[Encoded]) -> set[int]:
        keep = self._config.keep
        runs = {digest(draft.trajectory_id)[0] % _STRIPES for draft in drafts if draft.trajectory_id}
        locks = {self._key(namespace, "run", str(stripe)) for stripe in runs}
        for e in encoded:
            if keep.merge or keep.capacity or not self._cells.useful:
                locks.add(self._key(namespace, *e.bucket))
                continue
            stripes = {hash_of(cell) for cell in self._cells.reached(e.question)}
            locks |= {self._key(namespace, *e.bucket, str(stripe)) for stripe in stripes}
        return locks

    async def _known_runs(self, write: PostgresWrite, drafts: Sequence[Draft]) -> dict[str, tuple[str, str]]:
        runs = [digest(draft.trajectory_id) for draft in drafts if draft.trajectory_id]
        if not runs:
            return {}
        query = "SELECT trajectory_id, memory_id, outcome FROM runs WHERE namespace = %s AND digest = ANY(%b)"
        rows = await (await write.connection.execute(query, (write.namespace, runs))).fetchall()
        return {run: (memory_id, outcome) for run, memory_id, outcome in rows}

    async def _candidates(self, write: PostgresWrite, encoded: Sequence[Encoded]) -> Mirror:
        """All memories that can be twins of drafts, or be merged with them, and some more."""
        found: dict[str, None] = {}
        lock = bool(self._config.keep.merge)  # what is merged must not be credited meanwhile
        if self._cells.useful:
            places = [(n, *e.bucket, c) for n, e in enumerate(encoded, 1) for c in self._cells.reached(e.question)]
            given = [[Vector(e.question) for e in encoded], *([place[i] for place in places] for i in range(4))]
            row = (*given, write.namespace, self._least - 1e-4)
            found |= dict.fromkeys(await write.fetch(_NEAR, row, lock))
        else:
            where = f"{BUCKET} AND -(m.vector <#> %b) >= %s"
            for name in ("namespace", "modality", "category"):
                where = where.replace(f"%({name})s", "%s")
            for e in encoded:
                near = (write.namespace, *e.bucket, e.question, self._least - 1e-4)
                found |= dict.fromkeys(await write.fetch(where, near, lock))
        mirror = Mirror(self._config, self._encoder, self._dim)
        for memory_id in found:
            self._reflect(write, mirror, memory_id)
        return mirror

    def _reflect(self, write: PostgresWrite, mirror: Mirror, memory_id: str) -> None:
        """Let the mirror know of a memory as this call has left it."""
        w = write.now[memory_id]
        if w is None:
            mirror.index.remove(memory_id)
            return
        names = ("id", "namespace", "modality", "category", "outcome", "uses", "successes", "created", "source_id",
                 "trust", "win_rate", "encoder")  # fmt: skip
        mirror.index.put(self._entry((*(w.state[name] for name in names), w.vector, w.caption)))

    def _add(
        self,
        write: PostgresWrite,
        mirror: Mirror,
        known: dict[str, tuple[str, str]],
        draft: Draft,
        encoded: Encoded,
    ) -> Added:
        run, former = draft.trajectory_id, known.get(draft.trajectory_id)
        # A run is stored once; only a verdict that came later than the run makes it worth looking at again.
        if former and (former[1] != "unjudged" or draft.outcome == "unjudged"):
            return Added(id=former[0], action="known")
        action, memory_id = self._decide(write, mirror, draft, encoded)
        if action == "stored":
            memory_id = str(uuid.uuid4())
            row = self._row(write.namespace, memory_id, draft, encoded.bucket)
            write.put(memory_id, self._whole(row, encoded, {}))
        elif action == "replaced":
            self._replace(write, memory_id, draft, encoded)
        if run:
            if former and former[0] != memory_id:
                self._set_runs(write, former[0], lambda runs: {r: o for r, o in runs.items() if r != run})
            self._set_runs(write, memory_id, lambda runs: {**runs, run: draft.outcome})
            known[run] = (memory_id, draft.outcome)
        self._reflect(write, mirror, memory_id)
        return Added(id=memory_id, action=action)

    def _decide(self, write: PostgresWrite, mirror: Mirror, draft: Draft, encoded: Encoded) -> tuple[Any, str]:
        bucket = mirror.index.bucket((write.namespace, *encoded.bucket))
        found: dict[Outcome, str] = {}
        if bucket is not None:
            rows = bucket.near(encoded.question)
            if len(rows):
                similar = mirror.similarities(encoded, bucket, rows)
                captioned = encoded.caption is not None
                threshold = self._config.duplicate
                found = twins(bucket, rows, similar, threshold, encoded.bucket[0], captioned, draft.source_id)
        found = {o: i for o, i in found.items() if same_question(draft.question, write.get(i).state["question"])}
        if not found:
            return "stored", ""
        return decide(
            draft.outcome,
            found,
            lambda i: len(draft.workflow.split()) < len(write.get(i).state["workflow"].split()),
            lambda i: TRUSTS.index(draft.trust) > TRUSTS.index(write.get(i).state["trust"]),
        )

    def _row(self, namespace: str, memory_id: str, draft: Draft, bucket: tuple[str, str]) -> State:
        fields = draft.model_dump(include=set(Draft.model_fields) - {"provenance", "modality"})
        return {
            **fields,
            "id": memory_id,
            "uses": 0,
            "successes": 0,
            "modality": bucket[0],
            "category": bucket[1],
            "created": now().isoformat(timespec="microseconds"),
            "provenance": json.dumps(draft.provenance, ensure_ascii=False),
            "namespace": namespace,
            "revision": 1,
            "absorbed": "",
            "merged_from": "[]",
            "win_rate": None,
            "original": "{}",
        }

    def _whole(self, row: State, encoded: Encoded, runs: dict[str, str]) -> Whole:
        caption = None if encoded.caption is None else to_blob(encoded.caption)
        state = {**row, "encoder": self._encoder, "runs": runs}
        return Whole(state, to_blob(encoded.question), caption, self.cell(encoded.question))

    def cell(self, vector: Vectors) -> bytes:
        """Where a vector, (d,), stands in the grid."""
        return self._cells.cell(vector)

    def _replace(self, write: PostgresWrite, memory_id: str, draft: Draft, encoded: Encoded) -> None:
        """New content under the old id; counters and time of creation stay."""
        row = self._row(write.namespace, memory_id, draft, encoded.bucket)
        old = write.get(memory_id).state
        for kept in ("id", "created", "uses", "successes", "merged_from", "win_rate"):
            row[kept] = old[kept]
        write.put(memory_id, self._whole({**row, "revision": old["revision"] + 1}, encoded, old["runs"]))

    def _set_runs(self, write: PostgresWrite, memory_id: str, new: Callable[[dict[str, str]], dict[str, str]]) -> None:
        old = write.get(memory_id)
        state = {**old.state, "runs": new(old.state["runs"])}
        write.put(memory_id, Whole(state, old.vector, old.caption, old.cell))

    async def load_memories(
        self, write: PostgresWrite, memories: Sequence[Stored], encoded: Sequence[Encoded]
    ) -> list[Added]:
        """Store exported memories as they are."""
        for memory in memories:
            if len(memory.id) > _LONGEST_ID:
                raise DataError(f"an id has {len(memory.id)} characters", remedy=f"shorten it to {_LONGEST_ID}")
        await self.alone(write, everywhere=True)  # an id may be that of another namespace
        await write.fetch("m.id = ANY(%s)", ([memory.id for memory in memories],))
        query = "SELECT trajectory_id FROM runs WHERE namespace = %s AND digest = ANY(%b)"
        digests = [digest(memory.trajectory_id) for memory in memories]
        held = {run for (run,) in await (await write.connection.execute(query, (write.namespace, digests))).fetchall()}
        return [self._load_one(write, held, memory, e) for memory, e in zip(memories, encoded, strict=True)]

    def _load_one(self, write: PostgresWrite, held: set[str], memory: Stored, encoded: Encoded) -> Added:
        memory = memory.model_copy(update={"namespace": write.namespace})
        there = write.now.get(memory.id)
        if there is not None:
            if there.state["namespace"] != write.namespace:
                raise DataError(f"memory {memory.id!r} belongs to another namespace", code="conflict", status=409)
            mine = self._stored(there.state)
            return Added(id=memory.id, action="known" if mine == memory else "kept")
        run = memory.trajectory_id
        runs = {run: memory.outcome} if run and run not in held else {}
        held.add(run)
        write.put(memory.id, self._whole(values(memory), encoded, dict(runs)))
        return Added(id=memory.id, action="stored")

    def _stored(self, state: State) -> Stored:
        return stored(self._label, [state[name] for name in COLUMNS])

    # ------------------------------------------------------------------------------------------ changing

    async def credit(self, write: PostgresWrite, ids: Sequence[str], success: bool, key: str) -> list[Credited]:
        """Count one use of each distinct memory, and a success or not; once per key, if there is a key."""
        await self.beside(write)
        new = True
        if key:
            query = "INSERT INTO credited VALUES (%s, %b) ON CONFLICT DO NOTHING RETURNING 1"
            row = await (await write.connection.execute(query, (write.namespace, digest(key)))).fetchone()
            new = row is not None
        given = (write.namespace, possible(ids))
        locked = "SELECT id, uses, successes, win_rate FROM memories WHERE namespace = %s AND id = ANY(%s) ORDER BY id"
        if new:
            change = _WRITTEN.format(f"uses = m.uses + 1, successes = m.successes + {int(success)}, win_rate = NULL")
            locked = f"WITH old AS ({locked} FOR UPDATE), new AS ({change}) SELECT * FROM old"
        rows = await (await write.connection.execute(locked, given)).fetchall()
        for memory_id, uses, successes, given_rate in rows if new else ():
            before = {"uses": uses, "successes": successes, "win_rate": given_rate}
            after = {"uses": uses + 1, "successes": successes + int(success), "win_rate": None}
            write.images[memory_id] = Image(before, after)
        known = {row[0] for row in rows}
        return [Credited(id=i, known=i in known) for i in dict.fromkeys(ids)]

    async def update(
        self, write: PostgresWrite, memory_id: str, edit: Edit, encoded: Encoded | None, version: int
    ) -> Stored:
        """Change the content of a memory that has the expected version."""
        await self.alone(write)
        if not await write.fetch_ids([memory_id], lock=True):
            raise DataError(f"no memory {memory_id!r}", code="not_found", status=404)
        found = write.get(memory_id).state["revision"]
        if found != version:
            raise DataError(
                f"memory {memory_id} has version {found}, not {version}",
                remedy="read it again and repeat the change",
                code="conflict",
                status=409,
            )
        new: State = {**edit.model_dump(exclude_none=True), "absorbed": ""}
        if encoded is not None:
            new |= {"modality": encoded.bucket[0], "category": encoded.bucket[1]}
        write.change(memory_id, new)
        if encoded is not None:
            state = write.get(memory_id).state
            write.put(memory_id, self._whole(state, encoded, state["runs"]))
        return self._stored(write.get(memory_id).state)

    async def absorb(self, write: PostgresWrite, ids: Sequence[str], checkpoint: str) -> int:
        """Mark memories as learned by a checkpoint."""
        await self.alone(write)
        known = await write.fetch_ids(ids, lock=True)
        for memory_id in known:
            write.change(memory_id, {"absorbed": checkpoint})
        return len(known)

    async def delete(self, write: PostgresWrite, ids: Sequence[str]) -> int:
        """Forget memories; returns how many there were."""
        await self.alone(write)
        known = await write.fetch_ids(ids, lock=True)
        for memory_id in known:
            write.put(memory_id, None)
        return len(known)


def hash_of(cell: bytes) -> int:
    """The stripe of a cell; the same in every process."""
    return int.from_bytes(digest(cell.hex())[:4], "big") % _STRIPES
