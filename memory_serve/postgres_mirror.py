"""What recall needs of every memory in PostgreSQL, in RAM as for the SQLite store, brought up to date by each use.

Writers take turns (see `memory_serve.postgres_writing`), so the numbers of the log rise in the order of the commits:
what has a higher number than the last one seen is all that is new. To ask for it is one small query. So all replicas
see at once what any of them has committed, and compare vectors by the same code as the SQLite store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pgvector import Vector

from memory_serve.config import MemoryConfig
from memory_serve.near import radius
from memory_serve.postgres_database import Connection
from memory_serve.ranking import Floats, Ints, Scoring
from memory_serve.rows import Encoded, entry
from memory_serve.rules import least_cosine
from memory_serve.upkeep import MemoryCore
from memory_serve.vectors import Bucket, Entry, Index
from mia.errors import MemoryStoreError

MIRRORED = (
    "m.id, m.namespace, m.modality, m.category, m.outcome, m.uses, m.successes, m.created, m.source_id, m.trust, "
    "m.win_rate, m.encoder, m.vector, m.caption_vector"
)
_NEWS = """
    SELECT f.value, coalesce((SELECT max(number) FROM changes), 0), coalesce((SELECT min(number) FROM changes), 0),
        ARRAY(SELECT i.memory_id FROM images i WHERE i.number > %s ORDER BY i.number)
    FROM facts f WHERE f.name = 'encoder'
"""
_LOADED = 4096
"""Rows that are read at once."""


class Mirror(MemoryCore):
    """Some memories in RAM, and the rules over them that the SQLite store has; without its file."""

    def __init__(self, config: MemoryConfig, encoder: str, dim: int) -> None:
        self._config = config
        self._encoder = encoder
        self._dim = dim
        self._scoring = Scoring(config.score, config.weights)
        self.index = self._index = Index(dim, radius(least_cosine(config.duplicate, config.weights)), self._scoring)
        self.rank = self._rank
        self.alike = self._alike

    def similarities(self, encoded: Encoded, bucket: Bucket, rows: Ints | None = None) -> Floats:
        """Similarities to the memories of a bucket, or to some of them."""
        return self._similarities(encoded, bucket, rows)


class LiveMirror(Mirror):
    """All memories of a database; for one event loop.

    Args:
        config: the rules.
        encoder: name of the encoder whose vectors are held.
        dim: length of these vectors.
        label: what errors call the database.
        other_encoder: the error for vectors of other encoders.
    """

    def __init__(
        self,
        config: MemoryConfig,
        encoder: str,
        dim: int,
        label: Path,
        other_encoder: Callable[[dict[str, int]], MemoryStoreError],
    ) -> None:
        super().__init__(config, encoder, dim)
        self.seen = -1
        """Number of the last change it has; -1: to be read from scratch."""
        self._label = label
        self._other_encoder = other_encoder
        self._lock = asyncio.Lock()
        self._begun = self._ended = 0

    async def fresh(self, connection: Connection) -> None:
        """Bring it to what was committed before this call; calls that wait together share one look.

        Raises:
            MemoryStoreError: a vector is damaged or was made by another encoder.
        """
        asked = self._begun
        async with self._lock:
            if self._ended > asked:  # a look that began after this call has come to its end
                return
            self._begun += 1
            await self._look(connection)
            self._ended = self._begun

    async def follow(self, base: int, last: int, entries: Mapping[str, Entry | None]) -> None:
        """Take over what was committed as change `last` by a writer that had seen all up to `base`."""
        async with self._lock:
            if self.seen == base:
                self._take_over(entries)
                self.seen = last

    def read(self, row: Sequence[Any]) -> Entry:
        """What is held of a row of `MIRRORED`."""
        return self.entry((*row[:12], blob(row[12]), blob(row[13])))

    def entry(self, row: Sequence[Any]) -> Entry:
        """What is held of a row of `MIRRORED` whose vectors are as in files."""
        if row[11] != self._encoder:
            raise self._other_encoder({row[11]: 1})
        return entry(self._label, self._dim, row)

    async def _look(self, connection: Connection) -> None:
        row = await (await connection.execute(_NEWS, (self.seen if self.seen >= 0 else 2**62,))).fetchone()
        if row is None or row[0] != self._encoder:
            raise self._other_encoder({row[0] if row else "?": 1})
        _, last, oldest, touched = row
        # Changes that were forgotten before they were seen, or a database that was put back to an earlier state.
        if not 0 <= self.seen <= last or oldest > self.seen + 1:
            await self._read_all(connection)
        elif touched:
            query = f"SELECT {MIRRORED} FROM memories m WHERE m.id = ANY(%s)"
            rows = await (await connection.execute(query, (touched,), binary=True)).fetchall()
            found: dict[str, Entry | None] = dict.fromkeys(touched)
            self.seen = -1  # if a row cannot be used, the next call starts from scratch
            self._take_over(found | {row[0]: self.read(row) for row in rows})
        self.seen = last

    async def _read_all(self, connection: Connection) -> None:
        """Read everything. What is committed meanwhile has a higher number, and is looked at the next time."""
        self.seen = -1
        self.index.clear()
        async with connection.transaction(), connection.cursor("mia_mirror") as cursor:
            await cursor.execute(f"SELECT {MIRRORED} FROM memories m", binary=True)
            while rows := await cursor.fetchmany(_LOADED):
                self._take_over({row[0]: self.read(row) for row in rows})

    def _take_over(self, entries: Mapping[str, Entry | None]) -> None:
        for memory_id, new in entries.items():
            if new is None:
                self.index.remove(memory_id)
        self.index.put(*(new for new in entries.values() if new is not None))


def blob(vector: Vector | None) -> Any:
    """A vector as little-endian float32, as files hold it, or None."""
    return None if vector is None else vector.to_numpy().astype("<f4", copy=False).tobytes()
