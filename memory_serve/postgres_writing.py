"""The memory in PostgreSQL, writing: adding, crediting, editing, forgetting; see `memory_serve.writing` for the rules.

Writers take turns: whoever writes holds one lock of the whole schema until the commit, in whatever replica, so each
works on what all before it have left, and the log's numbers rise in the order of the commits. Additions and credits
that wait are done in one transaction (group commit): together they wait once for the lock and the disk. All other calls
have a transaction of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from memory_serve.config import MemoryConfig
from memory_serve.near import Spot
from memory_serve.postgres_database import Connection
from memory_serve.postgres_keeping import PostgresKeeper
from memory_serve.postgres_log import Group, PostgresWrite, Whole, digest, possible
from memory_serve.postgres_mirror import Mirror
from memory_serve.protocol import Added, Credited, Draft, Edit, Stored
from memory_serve.rows import COLUMNS, Encoded, State, new_id, stored, to_blob, values
from memory_serve.rules import (
    KEPT,
    check_edited,
    check_namespaces,
    decide_on,
    edited,
    is_known,
    least_cosine,
    new_state,
)
from memory_serve.worker import resolve
from memory_serve.writing import Call
from mia.errors import DataError, MemoryStoreError

Run = tuple[str, str]
"""Namespace and id of a run."""
_TOGETHER = ("add", "credit")
"""Calls that share a transaction: once it has begun, nothing is wrong with one of them alone."""
_MOST = 1024
"""Calls in one transaction, at most, and drafts, unless one call has more."""
_PRUNED = 1000
"""Changes after which the log is cut to its length."""
_LONGEST_ID = 500


class PostgresWriter(PostgresKeeper):
    """Adds what changes a memory. Methods that take a `PostgresWrite` are called through `perform`."""

    def __init__(self, config: MemoryConfig, encoder: str, dim: int) -> None:
        super().__init__(config, encoder, dim)
        self._least = least_cosine(min(config.duplicate, config.keep.merge or 1.0), config.weights) - 1e-4
        self._waiting: deque[tuple[Call, asyncio.Future[Any]]] = deque()
        self._drain: asyncio.Task[None] | None = None

    async def perform(self, call: Call) -> Any:
        """Do a call; if it writes, in its turn. A caller who is cancelled does not stop it."""
        if call.action is None:
            return await call.work(call.namespace, *call.args)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, future))
        if self._drain is None or self._drain.done():
            self._drain = asyncio.create_task(self._do_waiting())
        return await future

    async def drained(self) -> None:
        """Wait for the writes that are under way."""
        if self._drain is not None:
            await self._drain

    async def _do_waiting(self) -> None:
        while self._waiting:
            group = self._next_group()
            results: Sequence[Any]
            try:
                results = await self._together([call for call, _ in group])
            except BaseException as error:  # noqa: BLE001  # whoever waits must learn of it, whatever it is
                results = [error] * len(group)
            resolve((future, result) for (_, future), result in zip(group, results, strict=True))

    async def _together(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Do calls in one transaction; if that is refused, one by one, so that one that is at fault fails alone."""
        try:
            return await self._transaction(calls)
        except (MemoryStoreError, DataError) as error:
            if len(calls) == 1 or error.retryable:
                return [error] * len(calls)
        return [result for call in calls for result in await self._together([call])]

    def _next_group(self) -> list[tuple[Call, asyncio.Future[Any]]]:
        group = [self._waiting.popleft()]
        size = _size(group[0][0])
        while group[0][0].action in _TOGETHER and self._waiting and self._waiting[0][0].action in _TOGETHER:
            size += _size(self._waiting[0][0])
            if size > _MOST:
                break
            group.append(self._waiting.popleft())
        return group

    async def _transaction(self, calls: Sequence[Call]) -> list[Any]:
        """Do calls in one transaction; their results."""

        async def work(connection: Connection) -> tuple[list[Any], Group, int, int | None]:
            await self._database.lock(connection)
            await self._mirror.fresh(connection)
            base = self._mirror.seen
            group = Group(connection, Mirror(self._config, self._encoder, self._dim))
            writes = [PostgresWrite(group, call.namespace, call.actor, call.action or "add") for call in calls]
            await self._prepare(group, calls)
            results = []
            for call, write in zip(calls, writes, strict=True):
                results.append(await call.work(write, *call.args))
                write.done()
            last = await group.finish(writes)
            if last is not None and last // _PRUNED > base // _PRUNED:
                await connection.execute("DELETE FROM changes WHERE number <= %s", (last - self._config.history,))
            return results, group, base, last

        if self._mirror.seen < 0:  # to read everything takes a while, in which others should be able to write
            async with self._database.reading() as connection:
                await self._mirror.fresh(connection)
        results, group, base, last = await self._database.writing(work)
        if last is not None:
            changed = {i: w for i, w in group.now.items() if w is not group.found.get(i)}
            entries = {i: None if w is None else self._entry_of(w) for i, w in changed.items()}
            await self._mirror.follow(base, last, entries)
        return results

    async def _prepare(self, group: Group, calls: Sequence[Call]) -> None:
        """Read what additions and credits will look at, for all of them together."""
        ids: set[str] = set()
        drafts: list[tuple[str, Draft, Encoded]] = []
        keys: list[tuple[str, bytes]] = []
        for call in calls:
            if call.action == "add":
                drafts += [(call.namespace, draft, e) for draft, e in zip(*call.args, strict=True)]
            elif call.action == "credit":
                ids.update(possible(call.args[0]))
                keys += [(call.namespace, digest(call.args[2]))] if call.args[2] else []
        runs = {(namespace, draft.trajectory_id) for namespace, draft, _ in drafts if draft.trajectory_id}
        group.known = await self._known_runs(group, sorted(runs))
        ids.update(memory_id for memory_id, _ in group.known.values())
        spots = self._mirror.index.spots([e.question for _, _, e in drafts])
        group.spots.extend(spots)
        near = {
            i for (namespace, _, e), spot in zip(drafts, spots, strict=True) for i in self._near(namespace, e, spot)
        }
        if ids or near:
            await group.fetch("m.id = ANY(%s)", (sorted(ids | near),))
        for memory_id in near:
            self._reflect(group, memory_id)
        if keys:
            columns = [list(column) for column in zip(*sorted(set(keys)), strict=True)]
            query = (
                "INSERT INTO credited SELECT * FROM unnest(%s::text[], %b::bytea[]) ON CONFLICT DO NOTHING "
                "RETURNING namespace, digest"
            )
            group.keys = set(await (await group.connection.execute(query, columns, binary=True)).fetchall())

    def _near(self, namespace: str, encoded: Encoded, spot: Spot) -> list[str]:
        """Memories that can be twins of a draft, or be merged with it, and some more."""
        bucket = self._mirror.index.bucket((namespace, *encoded.bucket))
        if bucket is None:
            return []
        if self._config.keep.merge:
            rows = np.flatnonzero(np.vecdot(bucket.questions, encoded.question) >= self._least)
        else:
            rows = bucket.near(encoded.question, spot)
            if len(rows):
                rows = rows[np.vecdot(bucket.questions[rows], encoded.question) >= self._least]
        return [bucket.ids[row] for row in rows]

    async def _known_runs(self, group: Group, runs: Sequence[Run]) -> dict[Run, tuple[str, str]]:
        """The memory and the outcome of the runs that are stored already."""
        if not runs:
            return {}
        query = (
            "SELECT r.namespace, r.trajectory_id, r.memory_id, r.outcome "
            "FROM unnest(%s::text[], %b::bytea[]) d (namespace, digest) JOIN runs r USING (namespace, digest)"
        )
        given = [namespace for namespace, _ in runs], [digest(run) for _, run in runs]
        rows = await (await group.connection.execute(query, given)).fetchall()
        return {(namespace, run): (memory_id, outcome) for namespace, run, memory_id, outcome in rows}

    # ------------------------------------------------------------------------------------------ adding

    async def add(self, write: PostgresWrite, drafts: Sequence[Draft], encoded: Sequence[Encoded]) -> list[Added]:
        """Store drafts in order; see `memory_serve.duplicates` and `memory_serve.keep` for what becomes of each."""
        added = [self._add(write, draft, e) for draft, e in zip(drafts, encoded, strict=True)]
        fresh = {
            a.id: (write.namespace, *e.bucket) for a, e in zip(added, encoded, strict=True) if a.action == "stored"
        }
        if not fresh or not self._config.keep.limits:
            return added
        into = await self._keep_small(write, fresh)
        return [Added(id=into[a.id], action="kept") if a.id in into else a for a in added]

    def _add(self, write: PostgresWrite, draft: Draft, encoded: Encoded) -> Added:
        spot = write.group.spots.popleft()
        run = draft.trajectory_id
        former = write.group.known.get((write.namespace, run))
        if former and is_known(former, draft.outcome):
            return Added(id=former[0], action="known")
        mirror = write.group.mirror
        bucket = mirror.index.bucket((write.namespace, *encoded.bucket))
        action, memory_id = decide_on(
            draft,
            encoded,
            bucket,
            spot,
            self._config.duplicate,
            lambda of, rows: mirror.similarities(encoded, of, rows),
            lambda twin: write.get(twin).state,
        )
        if action == "stored":
            memory_id = new_id()
            write.put(memory_id, self._whole(new_state(write.namespace, memory_id, draft, encoded.bucket), encoded, {}))
        elif action == "replaced":
            self._replace(write, memory_id, draft, encoded)
        if run:
            if former and former[0] != memory_id:
                self._set_runs(write, former[0], lambda runs: {r: o for r, o in runs.items() if r != run})
            self._set_runs(write, memory_id, lambda runs: {**runs, run: draft.outcome})
        if action != "kept" or run:
            self._reflect(write.group, memory_id, spot if action == "stored" else None)
        return Added(id=memory_id, action=action)

    def _whole(self, row: State, encoded: Encoded, runs: dict[str, str]) -> Whole:
        caption = None if encoded.caption is None else to_blob(encoded.caption)
        state = {**row, "encoder": self._encoder, "runs": runs}
        return Whole(state, to_blob(encoded.question), caption)

    def _replace(self, write: PostgresWrite, memory_id: str, draft: Draft, encoded: Encoded) -> None:
        """New content under the old id; counters and time of creation stay."""
        row = new_state(write.namespace, memory_id, draft, encoded.bucket)
        old = write.get(memory_id).state
        for kept in KEPT:
            row[kept] = old[kept]
        write.put(memory_id, self._whole({**row, "revision": old["revision"] + 1}, encoded, old["runs"]))

    def _set_runs(self, write: PostgresWrite, memory_id: str, new: Callable[[dict[str, str]], dict[str, str]]) -> None:
        old = write.get(memory_id)
        state = {**old.state, "runs": new(old.state["runs"])}
        write.put(memory_id, Whole(state, old.vector, old.caption))

    async def load_memories(
        self, write: PostgresWrite, memories: Sequence[Stored], encoded: Sequence[Encoded]
    ) -> list[Added]:
        """Store exported memories as they are."""
        for memory in memories:
            if len(memory.id) > _LONGEST_ID:
                raise DataError(f"an id has {len(memory.id)} characters", remedy=f"shorten it to {_LONGEST_ID}")
        group = write.group
        await group.fetch("m.id = ANY(%s)", ([memory.id for memory in memories],))
        runs = {(write.namespace, memory.trajectory_id) for memory in memories if memory.trajectory_id}
        held = {run for _, run in await self._known_runs(group, sorted(runs))}
        return [self._load_one(write, held, memory, e) for memory, e in zip(memories, encoded, strict=True)]

    def _load_one(self, write: PostgresWrite, held: set[str], memory: Stored, encoded: Encoded) -> Added:
        memory = memory.model_copy(update={"namespace": write.namespace})
        there = write.group.now.get(memory.id)
        if there is not None:
            check_namespaces(memory.id, there.state["namespace"], write.namespace)
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
        group = write.group
        there = {i: group.now.get(i) for i in dict.fromkeys(ids)}
        known = {i: w for i, w in there.items() if w is not None and w.state["namespace"] == write.namespace}
        spent = (write.namespace, digest(key))
        if not key or spent in group.keys:
            group.keys.discard(spent)
            for memory_id, w in known.items():
                counted = {"uses": w.state["uses"] + 1, "successes": w.state["successes"] + int(success)}
                write.put(memory_id, Whole({**w.state, **counted, "win_rate": None}, w.vector, w.caption))
                if group.mirror.index.place(memory_id):
                    self._reflect(group, memory_id)
        return [Credited(id=i, known=i in known) for i in there]

    async def update(
        self, write: PostgresWrite, memory_id: str, edit: Edit, encoded: Encoded | None, version: int
    ) -> Stored:
        """Change the content of a memory that has the expected version."""
        known = await write.fetch_ids([memory_id])
        check_edited(memory_id, write.get(memory_id).state["revision"] if known else None, version)
        write.change(memory_id, edited(edit, encoded))
        if encoded is not None:
            state = write.get(memory_id).state
            write.put(memory_id, self._whole(state, encoded, state["runs"]))
        return self._stored(write.get(memory_id).state)

    async def absorb(self, write: PostgresWrite, ids: Sequence[str], checkpoint: str) -> int:
        """Mark memories as learned by a checkpoint."""
        known = await write.fetch_ids(ids)
        for memory_id in known:
            write.change(memory_id, {"absorbed": checkpoint})
        return len(known)

    async def delete(self, write: PostgresWrite, ids: Sequence[str]) -> int:
        """Forget memories; returns how many there were."""
        known = await write.fetch_ids(ids)
        for memory_id in known:
            write.put(memory_id, None)
        return len(known)


def _size(call: Call) -> int:
    return len(call.args[0]) if call.action == "add" else 1
