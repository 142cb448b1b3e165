"""The memory in PostgreSQL, upkeep: opening, clearing, compacting, undoing; see `memory_serve.upkeep`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence

from local_search.protocol import Vectors
from memory_serve.core import EVERYWHERE
from memory_serve.duplicates import same_question
from memory_serve.keep import alike, surplus
from memory_serve.log import Image
from memory_serve.postgres_database import Connection
from memory_serve.postgres_log import PostgresWrite, Whole, read_images
from memory_serve.postgres_mirror import MIRRORED
from memory_serve.postgres_reading import read_change
from memory_serve.postgres_writing import PostgresWriter
from memory_serve.protocol import Change, Compacted
from memory_serve.upkeep import _is_as_left, _listed, _mergeable, _stays
from memory_serve.vectors import Index, Key
from mia.errors import DataError

_log = logging.getLogger(__name__)
_REENCODE_BATCH = 64
_BUCKETS = "SELECT DISTINCT modality, category FROM memories WHERE namespace = %s ORDER BY 1, 2"

Encode = Callable[[Sequence[tuple[str, str]]], Sequence[tuple[Vectors, Vectors | None]]]
"""Vectors of questions and captions."""


class PostgresCore(PostgresWriter):
    """The whole memory in a database; see `PostgresReader`."""

    async def open(self, encode: Encode) -> None:
        """Bring the schema to this version, and all vectors to this encoder, if `reencode` allows it.

        Raises:
            MemoryStoreError: the database cannot be used, or holds vectors of another encoder.
        """
        await self._database.open()
        while await self._database.writing(lambda connection: self._reencode(connection, encode)):
            pass

    async def close(self) -> None:
        """Close all connections, after the writes that are under way."""
        await self.drained()
        await self._database.close()

    async def _reencode(self, connection: Connection, encode: Encode) -> int:
        """Encode some memories anew; each batch is on disk at once, so what is left can be done after a crash."""
        await self._database.lock(connection)
        query = "SELECT encoder, count(*) FROM memories WHERE encoder <> %s GROUP BY 1"
        others = dict(await (await connection.execute(query, (self._encoder,))).fetchall())
        if others and not self._config.reencode:
            raise self._other_encoder(others)
        # From now on a replica with the former encoder is refused.
        await connection.execute(
            "INSERT INTO facts VALUES ('encoder', %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (self._encoder,),
        )
        if not others:
            return 0
        _log.info("encoding %d memories anew with %s", sum(others.values()), self._encoder)
        query = f"SELECT id, question, caption FROM memories WHERE encoder <> %s LIMIT {_REENCODE_BATCH}"
        rows = await (await connection.execute(query, (self._encoder,))).fetchall()
        vectors = encode([(question, caption) for _, question, caption in rows])
        async with connection.cursor() as cursor:
            await cursor.executemany(
                "UPDATE memories SET encoder = %s, vector = %b, caption_vector = %b WHERE id = %s",
                [(self._encoder, q, c, row[0]) for row, (q, c) in zip(rows, vectors, strict=True)],
            )
        return len(rows)

    # ------------------------------------------------------------------------------------------ staying small

    async def clear(self, write: PostgresWrite, everything: bool) -> int:
        """Forget all memories of the namespace, or of all."""
        where, given = ("true", ()) if everything else ("m.namespace = %s", (write.namespace,))
        known = await write.group.fetch(where, given)
        if everything:
            write.namespace = EVERYWHERE
        for memory_id in known:
            write.put(memory_id, None)
        return len(known)

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
        merged = evicted = 0
        for key in list(group.mirror.index.buckets(write.namespace)):
            merged += self._merge_all(write, key) if keep.merge else 0
            evicted += await self._drop_surplus(write, group.mirror.index, [key], {}, keep.capacity)
        keys = list(group.mirror.index.buckets(write.namespace))
        evicted += await self._drop_surplus(write, group.mirror.index, keys, {}, keep.total)
        after = sum(w is not None for w in group.now.values())
        return Compacted(before=before, after=after, absorbed=len(absorbed), merged=merged, evicted=evicted)

    def _merge_all(self, write: PostgresWrite, key: Key) -> int:
        bucket = write.group.mirror.index.bucket(key)
        if bucket is None:
            return 0
        weights = (self._config.weights.question, self._config.weights.caption)
        merged = 0
        for one, other in list(alike(bucket, self._config.keep.merge, weights, _mergeable(bucket, key))):
            if one in bucket.rows and other in bucket.rows and _believable(write, one, other):
                self._merge(write, one, other)
                merged += 1
        return merged

    async def _keep_small(self, write: PostgresWrite, fresh: dict[str, Key]) -> dict[str, str]:
        into: dict[str, str] = {}
        for memory_id, key in fresh.items() if self._config.keep.merge else ():
            other = write.group.mirror.alike(memory_id, key)
            if other is None or not _believable(write, memory_id, other):
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
        a, b = write.get(one).state, write.get(other).state
        keeps, goes = (a, b) if _stays(a, b) else (b, a)
        names = [*json.loads(keeps["merged_from"]), goes["id"], *json.loads(goes["merged_from"])]
        counters = {name: keeps[name] + goes[name] for name in ("uses", "successes")}
        write.put(goes["id"], None)
        runs = {**goes["runs"], **keeps["runs"]}
        write.change(keeps["id"], {**counters, "win_rate": None, "merged_from": _listed(names), "runs": runs})
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

    # ------------------------------------------------------------------------------------------ undoing

    async def undo(self, write: PostgresWrite, number: int | None) -> Change:
        """Take back a change; the taking back is a change itself, which can be taken back in its turn."""
        connection = write.group.connection
        last = "%s::bigint IS NULL AND c.action <> 'undo' AND coalesce(c.undone, 0) <= 0"
        where = "c.number = %s" if number is not None else last
        given = (write.namespace, EVERYWHERE, number)
        target = await read_change(connection, f"c.namespace IN (%s, %s) AND {where}", given)
        if target is None or target.undone is not None:
            what = "nothing to undo" if number is None else f"no change {number} that is not undone already"
            raise DataError(what, remedy="`mia memory undo --list` shows the changes", code="not_found", status=404)
        write.namespace = target.namespace
        images = await read_images(connection, target.number)
        await write.group.fetch("m.id = ANY(%s)", ([memory_id for memory_id, _ in images],))
        for memory_id, image in images:
            self._revert(write, target.number, memory_id, image)
        query = "UPDATE changes SET undone = %s WHERE number = %s"
        await connection.execute(query, (await write.enter(), target.number))
        flipped: tuple[int] | None = (target.number,)
        while flipped:  # what an undo took back is in effect when the undo is not, and so on down to the first change
            query = "UPDATE changes SET undone = -undone WHERE abs(undone) = %s RETURNING number"
            flipped = await (await connection.execute(query, flipped)).fetchone()
        undone = await read_change(connection, "c.number = %s", (target.number,))
        assert undone is not None
        return undone

    def _revert(self, write: PostgresWrite, number: int, memory_id: str, image: Image) -> None:
        there = write.group.now.get(memory_id)
        if not _is_as_left(there.state if there else None, image):
            raise DataError(
                f"memory {memory_id} has changed since change {number}",
                remedy="undo the later changes first (`mia memory undo --list` shows them)",
                code="conflict",
                status=409,
            )
        if image.before is None:
            if there is not None:
                write.put(memory_id, None)
            return
        if image.vector is not None and image.before["encoder"] != self._encoder:
            raise DataError(
                f"change {number} is from before the memories were encoded anew by {self._encoder}",
                remedy=f"open the memory with {image.before['encoder']}, or restore a backup",
                code="conflict",
                status=409,
            )
        if there is None:
            assert image.vector is not None
            write.put(memory_id, Whole(image.before, image.vector, image.caption_vector))
            return
        state = {**there.state, **image.before}
        if "revision" in image.before:
            state["revision"] = there.state["revision"] + 1
        if image.vector is None:
            write.put(memory_id, Whole(state, there.vector, there.caption))
        else:
            write.put(memory_id, Whole(state, image.vector, image.caption_vector))


def _believable(write: PostgresWrite, one: str, other: str) -> bool:
    """Whether the vectors of two memories say what their whole questions say; see `same_question`."""
    return same_question(write.get(one).state["question"], write.get(other).state["question"])
