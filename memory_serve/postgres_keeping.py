"""The memory in PostgreSQL, staying small: merging and dropping; see `memory_serve.keep` for the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memory_serve.keep import alike, surplus
from memory_serve.near import Spot
from memory_serve.postgres_log import Group, PostgresWrite, Whole
from memory_serve.postgres_mirror import MIRRORED
from memory_serve.postgres_reading import PostgresReader
from memory_serve.protocol import Compacted
from memory_serve.rules import believable, mergeable, merged
from memory_serve.vectors import Entry, Index, Key

_ENTRY = ("id", "namespace", "modality", "category", "outcome", "uses", "successes", "created", "source_id", "trust",
          "win_rate", "encoder")  # fmt: skip
"""Columns that the mirror holds, beside the vectors."""


class PostgresKeeper(PostgresReader):
    """Keeps a memory small; see `PostgresReader`."""

    async def compact(self, write: PostgresWrite) -> Compacted:
        """Drop what weights have absorbed, merge what is nearly the same, evict what is too much."""
        keep = self._config.keep
        group = write.group
        before = len(await group.fetch("m.namespace = %s", (write.namespace,)))
        uses = keep.absorbed_uses
        absorbed = [
            i for i, w in group.now.items() if w and uses and w.state["absorbed"] and w.state["uses"] >= uses
        ]  # fmt: skip
        for memory_id in absorbed:
            write.put(memory_id, None)
        for memory_id in group.now:
            self._reflect(group, memory_id)
        joined = evicted = 0
        for key in list(group.mirror.index.buckets(write.namespace)):
            joined += self._merge_all(write, key) if keep.merge else 0
            evicted += await self._drop_surplus(write, group.mirror.index, [key], {}, keep.capacity)
        keys = list(group.mirror.index.buckets(write.namespace))
        evicted += await self._drop_surplus(write, group.mirror.index, keys, {}, keep.total)
        after = sum(w is not None for w in group.now.values())
        return Compacted(before=before, after=after, absorbed=len(absorbed), merged=joined, evicted=evicted)

    def _merge_all(self, write: PostgresWrite, key: Key) -> int:
        bucket = write.group.mirror.index.bucket(key)
        if bucket is None:
            return 0
        weights = (self._config.weights.question, self._config.weights.caption)
        count = 0
        for one, other in list(alike(bucket, self._config.keep.merge, weights, mergeable(bucket, key))):
            if one in bucket.rows and other in bucket.rows and _alike(write, one, other):
                self._merge(write, one, other)
                count += 1
        return count

    async def _keep_small(self, write: PostgresWrite, fresh: dict[str, Key]) -> dict[str, str]:
        """Apply the rules of `memory.keep` after memories came to buckets; which of them were merged into which."""
        into: dict[str, str] = {}
        for memory_id, key in fresh.items() if self._config.keep.merge else ():
            other = write.group.mirror.alike(memory_id, key)
            if other is None or not _alike(write, memory_id, other):
                continue
            if self._merge(write, memory_id, other) == other:
                into[memory_id] = other
        for key in sorted(set(fresh.values())):
            where = "m.namespace = %s AND m.modality = %s AND m.category = %s"
            await self._evict(write, where, key, fresh, self._config.keep.capacity)
        await self._evict(write, "m.namespace = %s", (write.namespace,), fresh, self._config.keep.total)
        return into

    def _merge(self, write: PostgresWrite, one: str, other: str) -> str:
        """Make one memory of two; returns the id of the one that stays, which keeps its content."""
        keeps, goes, new, runs = merged(write.get(one).state, write.get(other).state)
        write.put(goes["id"], None)
        write.change(keeps["id"], {**new, "runs": runs})
        for memory_id in (goes["id"], keeps["id"]):
            self._reflect(write.group, memory_id)
        return str(keeps["id"])

    async def _evict(
        self, write: PostgresWrite, where: str, given: Sequence[str], fresh: Mapping[str, object], capacity: int
    ) -> None:
        """Drop what the memories that a condition names are beyond a capacity that they share."""
        if not capacity:
            return
        await write.group.flush()
        connection = write.group.connection
        row = await (await connection.execute(f"SELECT count(*) FROM memories m WHERE {where}", given)).fetchone()
        if row is None or row[0] <= capacity:
            return
        query = f"SELECT {MIRRORED} FROM memories m WHERE {where}"
        rows = await (await connection.execute(query, given, binary=True)).fetchall()
        index = Index(self._dim)
        index.put(*(self._mirror.read(row) for row in rows))
        await self._drop_surplus(write, index, list(index.buckets(write.namespace)), fresh, capacity)

    async def _drop_surplus(
        self, write: PostgresWrite, index: Index, keys: Sequence[Key], fresh: Mapping[str, object], capacity: int
    ) -> int:
        buckets = [bucket for key in keys if (bucket := index.bucket(key)) is not None]
        weights = (self._config.weights.question, self._config.weights.caption)
        gone = surplus(buckets, capacity, self._config.keep, weights, fresh)
        if gone:
            await write.group.fetch("m.id = ANY(%s)", (gone,))
        for memory_id in gone:
            write.put(memory_id, None)
            self._reflect(write.group, memory_id)
        return len(gone)

    def _reflect(self, group: Group, memory_id: str, spot: Spot | None = None) -> None:
        """Let the group's mirror know of a memory as the calls have left it; `spot` is where it stands, if known."""
        whole = group.now.get(memory_id)
        if whole is None:
            group.mirror.index.remove(memory_id)
        else:
            group.mirror.index.put(self._entry_of(whole), places=None if spot is None else [spot.place])

    def _entry_of(self, whole: Whole) -> Entry:
        return self._mirror.entry((*(whole.state[name] for name in _ENTRY), whole.vector, whole.caption))


def _alike(write: PostgresWrite, one: str, other: str) -> bool:
    return believable(write.get(one).state, write.get(other).state)
