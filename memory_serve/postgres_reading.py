"""The memory in PostgreSQL, reading. `memory_serve.postgres_writing` writes.

Recall ranks what the mirror in RAM holds (see `memory_serve.postgres_mirror`) by the code of the SQLite store, then
reads the texts of what it has chosen; if one of these was changed in between, it ranks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from memory_serve.config import MemoryConfig
from memory_serve.core import EVERYWHERE, recalled, stats_of
from memory_serve.postgres_database import Connection, PostgresDatabase
from memory_serve.postgres_mirror import LiveMirror
from memory_serve.protocol import Change, PlanPair, Stats, Stored
from memory_serve.ranking import best
from memory_serve.rows import COLUMNS, Encoded, stored
from mia.errors import MemoryStoreError
from mia.types import Recalled

SELECT = ", ".join(f"m.{name}" for name in COLUMNS)
_TEXTS = f"""
    SELECT EXISTS (SELECT 1 FROM images i WHERE i.number > %(seen)s AND i.memory_id = ANY(%(ids)s)), {SELECT}
    FROM memories m WHERE m.id = ANY(%(ids)s)
"""
_PAIRS = """
    SELECT DISTINCT ON (m.id) m.id, m.question, m.plan, bad.plan FROM memories m JOIN memories bad
    ON bad.namespace = m.namespace AND bad.modality = m.modality AND bad.category = m.category
    AND coalesce(nullif(bad.source_id, ''), bad.question) = coalesce(nullif(m.source_id, ''), m.question)
    WHERE m.namespace = %s AND m.modality = %s AND m.category = %s AND (m.source_id = '' OR m.source_id <> %s)
    AND m.outcome = 'correct' AND bad.outcome = 'incorrect' AND m.plan <> '' AND bad.plan <> ''
    ORDER BY m.id, bad.created DESC, bad.place DESC
"""
_CHANGE = (
    "c.number, c.at, c.actor, c.namespace, c.action, "
    "array(SELECT i.memory_id FROM images i WHERE i.number = c.number ORDER BY i.memory_id), "
    "CASE WHEN c.undone > 0 THEN c.undone END"  # negative: the undo is itself undone
)


class PostgresReader:
    """One memory in a database.

    Args:
        config: address, rules.
        encoder: name of the encoder whose vectors are given and stored.
        dim: length of these vectors.
    """

    def __init__(self, config: MemoryConfig, encoder: str, dim: int) -> None:
        self._config = config
        self._encoder = encoder
        self._dim = dim
        self._database = PostgresDatabase(config)
        self._label = Path(self._database.name)
        self._mirror = LiveMirror(config, encoder, dim, self._label, self._other_encoder)

    async def recall(self, namespace: str, asked: Encoded, source_id: str, k: int, skip: int, own: bool) -> Recalled:
        """See `MemoryReader.recall`."""
        async with self._database.reading() as connection:
            memories: dict[str, Stored] | None = None
            while memories is None:
                await self._mirror.fresh(connection)
                ranked = self._mirror.rank(namespace, asked, "" if own else source_id, k, skip)
                memories = await self._texts(connection, [r.id for r in ranked])
        return recalled(ranked, memories)

    async def _texts(self, connection: Connection, ids: Sequence[str]) -> dict[str, Stored] | None:
        """Memories as the mirror knows them; None if one of them was changed since."""
        if not ids:
            return {}
        given = {"seen": self._mirror.seen, "ids": list(ids)}
        rows = await (await connection.execute(_TEXTS, given)).fetchall()
        if len(rows) < len(ids) or rows[0][0]:
            return None
        return {row[1]: stored(self._label, row[1:]) for row in rows}

    async def pairs(self, namespace: str, asked: Encoded, source_id: str, k: int) -> list[PlanPair]:
        """See `MemoryReader.pairs`."""
        async with self._database.reading() as connection:
            rows = await (await connection.execute(_PAIRS, (namespace, *asked.bucket, source_id))).fetchall()
            await self._mirror.fresh(connection)
        bucket = self._mirror.index.bucket((namespace, *asked.bucket))
        if bucket is None:
            return []
        texts = {row[0]: row[1:] for row in rows if row[0] in bucket.rows}
        names = list(texts)
        places = np.array([bucket.rows[name] for name in names], np.int64)
        similar = self._mirror.similarities(asked, bucket, places)
        chosen = best(similar, bucket.created[places], names, np.ones(len(places), np.bool_), k)
        return [
            PlanPair(question=question, correct=good, incorrect=bad, similarity=float(similar[i]))
            for i, (question, good, bad) in ((i, texts[names[i]]) for i in chosen)
        ]

    async def get(self, namespace: str, memory_id: str) -> Stored | None:
        """One memory, or None."""
        rows = await self._rows("WHERE m.namespace = %s AND m.id = %s", (namespace, memory_id))
        return rows[0] if rows else None

    async def page(self, namespace: str, limit: int, offset: int) -> list[Stored]:
        """Memories from the newest to the oldest."""
        order = "WHERE m.namespace = %s ORDER BY m.created DESC, m.place DESC LIMIT %s OFFSET %s"
        return await self._rows(order, (namespace, limit, offset))

    async def export(self, namespace: str, after: str, limit: int) -> list[Stored]:
        """Memories in the order of their ids."""
        rest = "WHERE m.namespace = %s AND m.id > %s ORDER BY m.id LIMIT %s"
        return await self._rows(rest, (namespace, after, limit))

    async def history(self, namespace: str, limit: int) -> list[Change]:
        """The last changes, the newest first."""
        query = f"SELECT {_CHANGE} FROM changes c WHERE c.namespace IN (%s, %s) ORDER BY c.number DESC LIMIT %s"
        async with self._database.reading() as connection:
            rows = await (await connection.execute(query, (namespace, EVERYWHERE, limit))).fetchall()
        return [change(row) for row in rows]

    async def stats(self, namespace: str) -> Stats:
        """Counts over a namespace."""
        query = (
            "SELECT m.outcome, m.modality || '/' || m.category, m.trust, m.absorbed <> '', count(*) FROM memories m "
            "WHERE m.namespace = %s GROUP BY 1, 2, 3, 4 ORDER BY 1, 2"
        )
        async with self._database.reading() as connection:
            rows = await (await connection.execute(query, (namespace,))).fetchall()
        return stats_of(rows, self._encoder, namespace)

    async def _rows(self, rest: str, given: Sequence[object]) -> list[Stored]:
        async with self._database.reading() as connection:
            return await self.records(connection, rest, given)

    async def records(self, connection: Connection, rest: str, given: Sequence[object]) -> list[Stored]:
        """The records that a condition names."""
        rows = await (await connection.execute(f"SELECT {SELECT} FROM memories m {rest}", given)).fetchall()
        return [stored(self._label, row) for row in rows]

    def _other_encoder(self, found: dict[str, int]) -> MemoryStoreError:
        named = ", ".join(f"{count} by {name}" for name, count in sorted(found.items()))
        return MemoryStoreError(
            f"{self._database.name} holds vectors of another encoder ({named}); this one is {self._encoder}",
            remedy="set memory.reencode = true once to encode them anew, or use the former encoder",
            code="other_encoder",
        )


def change(row: Sequence[Any]) -> Change:
    """The record of a row of `changes`."""
    names = ("number", "at", "actor", "namespace", "action", "memories", "undone")
    return Change.model_validate(dict(zip(names, (*row[:5], tuple(row[5]), row[6]), strict=True)))


async def read_change(connection: Connection, where: str, given: Sequence[object]) -> Change | None:
    """The change that a condition names, if there is one."""
    query = f"SELECT {_CHANGE} FROM changes c WHERE {where} ORDER BY c.number DESC LIMIT 1"
    row = await (await connection.execute(query, given)).fetchone()
    return change(row) if row else None
