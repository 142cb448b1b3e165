"""The memory in PostgreSQL, upkeep: opening, clearing, undoing; see `memory_serve.upkeep`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from local_search.protocol import Vectors
from memory_serve.core import EVERYWHERE
from memory_serve.log import Image
from memory_serve.postgres_database import Connection
from memory_serve.postgres_log import PostgresWrite, Whole, read_images
from memory_serve.postgres_reading import read_change
from memory_serve.postgres_writing import PostgresWriter
from memory_serve.protocol import Change
from memory_serve.rules import check_undo, nothing_to_undo

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

    async def clear(self, write: PostgresWrite, everything: bool) -> int:
        """Forget all memories of the namespace, or of all."""
        where, given = ("true", ()) if everything else ("m.namespace = %s", (write.namespace,))
        known = await write.group.fetch(where, given)
        if everything:
            write.namespace = EVERYWHERE
        for memory_id in known:
            write.put(memory_id, None)
        return len(known)

    # ------------------------------------------------------------------------------------------ undoing

    async def undo(self, write: PostgresWrite, number: int | None) -> Change:
        """Take back a change; the taking back is a change itself, which can be taken back in its turn."""
        connection = write.group.connection
        last = "%s::bigint IS NULL AND c.action <> 'undo' AND coalesce(c.undone, 0) <= 0"
        where = "c.number = %s" if number is not None else last
        given = (write.namespace, EVERYWHERE, number)
        target = await read_change(connection, f"c.namespace IN (%s, %s) AND {where}", given)
        if target is None or target.undone is not None:
            raise nothing_to_undo(number)
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
        check_undo(there.state if there else None, number, memory_id, image, self._encoder)
        if image.before is None:
            if there is not None:
                write.put(memory_id, None)
            return
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
