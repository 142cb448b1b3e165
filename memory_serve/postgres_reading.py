"""The memory in PostgreSQL, reading. `memory_serve.postgres_writing` writes.

Recall: the database scores a whole bucket and gives the rows that can be among the best, with a margin for its own
rounding, and those that span the similarities; what is returned is scored anew from their vectors by the very code that
scores the SQLite store, so both give the same scores in the same order. With an approximate index (`hnsw_from`) the
rows come from the nearest `hnsw_candidates` alone: then memories that are far from the question but proved themselves
may be missed, and the least similarity is that of the row which the index takes for the farthest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pgvector import Vector

from memory_serve.config import MemoryConfig, Weights
from memory_serve.core import EVERYWHERE
from memory_serve.near import radius
from memory_serve.postgres_database import Connection, PostgresDatabase
from memory_serve.protocol import TRUSTS, Change, PlanPair, Stats, Stored
from memory_serve.ranking import best
from memory_serve.rows import COLUMNS, Encoded, stored
from memory_serve.rows import entry as file_entry
from memory_serve.upkeep import MemoryCore
from memory_serve.vectors import OUTCOMES, Entry, Index
from mia.errors import MemoryStoreError
from mia.types import Outcome, Recalled, ScoredMemory

ROUNDING = 2e-6
"""How far the database's similarities, sums of float32, may be from ours."""
_MARGIN = 1e-4
"""How far its scores may be from ours for another reason: win rates are rounded to four decimals."""
SELECT = ", ".join(f"m.{name}" for name in COLUMNS)
MIRRORED = (
    "m.id, m.namespace, m.modality, m.category, m.outcome, m.uses, m.successes, m.created, m.source_id, m.trust, "
    "m.win_rate, m.encoder, m.vector, m.caption_vector"
)
_MIRRORED = len(MIRRORED.split(","))
_PLAIN = "-(m.vector <#> %(question)b)"
SIMILARITY = (
    f"(CASE WHEN %(captioned)s AND m.caption_vector IS NOT NULL THEN %(question_share)s * {_PLAIN} "
    f"+ %(caption_share)s * -(m.caption_vector <#> %(caption)b) ELSE {_PLAIN} END)"
)
BUCKET = "m.namespace = %(namespace)s AND m.modality = %(modality)s AND m.category = %(category)s"
_ALLOWED = f"{BUCKET} AND m.trust = ANY(%(trusts)s) AND (%(source)s = '' OR m.source_id <> %(source)s)"
_SAME_ENCODER = "(SELECT value FROM facts WHERE name = 'encoder') = %(encoder)s"
_BUCKET = f"""
    SELECT m.id, m.outcome, m.uses, m.successes, m.win_rate, {SIMILARITY} AS similarity
    FROM memories m WHERE {_ALLOWED} AND {_SAME_ENCODER}
"""
_NEAREST = """
    SELECT m.id, m.outcome, m.uses, m.successes, m.win_rate, {similarity} AS similarity FROM memories m WHERE m.id IN (
        (SELECT n.id FROM memories n WHERE {allowed} ORDER BY n.vector::vector({dim}) <#> %(question)b LIMIT %(most)s)
        UNION
        (SELECT n.id FROM memories n WHERE {allowed} ORDER BY n.vector::vector({dim}) <#> %(opposite)b LIMIT 1)
    )
"""
_TOTALS = {
    "paper": "%(value)s * b.successes / (b.uses + 1) + %(frequency)s / (b.uses + 1)",
    "released": "%(value)s * coalesce(b.win_rate, b.successes::double precision / nullif(b.uses, 0), 1)",
}
_RECALL = """
    WITH bucket AS MATERIALIZED ({bucket}),
    span AS MATERIALIZED (SELECT min(similarity) AS low, max(similarity) AS high FROM bucket),
    scored AS MATERIALIZED (
        SELECT b.id, b.outcome,
            %(similarity)s * (b.similarity - span.low) / (span.high - span.low + 1e-8) + {total} AS total
        FROM bucket b, span WHERE b.similarity >= %(floor)s - %(rounding)s
    ),
    bar AS MATERIALIZED (
        SELECT o.outcome, (
            SELECT s.total FROM scored s WHERE s.outcome = o.outcome ORDER BY s.total DESC OFFSET %(last)s LIMIT 1
        ) AS total FROM unnest(ARRAY['correct', 'incorrect', 'unjudged']) o (outcome)
    ),
    chosen AS MATERIALIZED (
        SELECT s.id FROM scored s JOIN bar ON bar.outcome = s.outcome CROSS JOIN span
        WHERE s.total >= coalesce(bar.total, '-Infinity')
        - %(margin)s - 8 * %(similarity)s * %(rounding)s / (span.high - span.low + 1e-8)
        UNION
        SELECT b.id FROM bucket b, span
        WHERE b.similarity <= span.low + 2 * %(rounding)s OR b.similarity >= span.high - 2 * %(rounding)s
    )
    SELECT facts.value, found.* FROM facts
    LEFT JOIN (SELECT {mirrored}, {columns} FROM memories m WHERE m.id = ANY(ARRAY(SELECT id FROM chosen))) found
    ON true WHERE facts.name = 'encoder'
"""
_PAIRS = f"""
    WITH pairs AS MATERIALIZED (
        SELECT DISTINCT ON (m.id) m.id, bad.plan AS incorrect, {SIMILARITY} AS similarity
        FROM memories m JOIN memories bad
        ON bad.namespace = m.namespace AND bad.modality = m.modality AND bad.category = m.category
        AND coalesce(nullif(bad.source_id, ''), bad.question) = coalesce(nullif(m.source_id, ''), m.question)
        WHERE {BUCKET} AND (m.source_id = '' OR m.source_id <> %(source)s)
        AND m.outcome = 'correct' AND bad.outcome = 'incorrect' AND m.plan <> '' AND bad.plan <> ''
        AND {_SAME_ENCODER}
        ORDER BY m.id, bad.created DESC, bad.place DESC
    )
    SELECT facts.value, found.* FROM facts LEFT JOIN (
        SELECT {MIRRORED}, m.question, m.plan, pairs.incorrect FROM memories m JOIN pairs USING (id)
        WHERE pairs.similarity >= coalesce(
            (SELECT p.similarity FROM pairs p ORDER BY p.similarity DESC OFFSET %(last)s LIMIT 1), -2
        ) - 2 * %(rounding)s
    ) found ON true
    WHERE facts.name = 'encoder'
"""
_CHANGE = (
    "c.number, c.at, c.actor, c.namespace, c.action, "
    "array(SELECT i.memory_id FROM images i WHERE i.number = c.number ORDER BY i.memory_id), "
    "CASE WHEN c.undone > 0 THEN c.undone END"  # negative: the undo is itself undone
)


class Mirror(MemoryCore):
    """Some memories in RAM, and the rules over them that the SQLite store has; without its file."""

    def __init__(self, config: MemoryConfig, encoder: str, dim: int) -> None:
        self._config = config
        self._encoder = encoder
        self._dim = dim
        self.index = self._index = Index(dim, radius(least_cosine(config.duplicate, config.weights)))
        self.rank = self._rank
        self.similarities = self._similarities
        self.alike = self._alike


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
        self._approximate = False
        self._database = PostgresDatabase(config)
        self._label = Path(self._database.name)

    async def recall(self, namespace: str, asked: Encoded, source_id: str, k: int, skip: int, own: bool) -> Recalled:
        """See `MemoryReader.recall`."""
        given = self._given(namespace, asked) | {"source": "" if own else source_id, "last": k + skip - 1}
        rows = await self._compared(self._recall_query(), given)
        mirror = self._mirror(rows)
        memories = {row[0]: stored(self._label, row[_MIRRORED:]) for row in rows}
        scored: dict[Outcome, list[ScoredMemory]] = {outcome: [] for outcome in OUTCOMES}
        for r in mirror.rank(namespace, asked, "", k, skip):
            memory = memories[r.id].memory
            scored[r.outcome].append(ScoredMemory(memory=memory, score=r.score, similarity=r.similarity, terms=r.terms))
        return Recalled(
            successes=tuple(scored["correct"]),
            failures=tuple(scored["incorrect"]),
            unjudged=tuple(scored["unjudged"]),
        )

    async def pairs(self, namespace: str, asked: Encoded, source_id: str, k: int) -> list[PlanPair]:
        """See `MemoryReader.pairs`."""
        rows = await self._compared(_PAIRS, self._given(namespace, asked) | {"source": source_id, "last": k - 1})
        mirror = self._mirror(rows)
        bucket = mirror.index.bucket((namespace, *asked.bucket))
        if bucket is None:
            return []
        similar = mirror.similarities(asked, bucket)
        texts = {row[0]: row[_MIRRORED:] for row in rows}
        chosen = best(similar, bucket.created, bucket.ids, np.ones(len(bucket), np.bool_), k)
        return [
            PlanPair(question=question, correct=good, incorrect=bad, similarity=float(similar[i]))
            for i, (question, good, bad) in ((i, texts[bucket.ids[i]]) for i in chosen)
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
        outcomes: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        trusts: dict[str, int] = dict.fromkeys(TRUSTS, 0)
        buckets: dict[str, int] = {}
        for outcome, bucket, trust, _, count in rows:
            outcomes[outcome] += count
            trusts[trust] += count
            buckets[bucket] = buckets.get(bucket, 0) + count
        return Stats(
            memories=sum(outcomes.values()),
            by_outcome=outcomes,
            by_bucket=buckets,
            encoder=self._encoder,
            by_trust=trusts,
            absorbed=sum(row[4] for row in rows if row[3]),
            namespace=namespace,
        )

    def _recall_query(self) -> str:
        bucket = _BUCKET
        if self._approximate:
            bucket = _NEAREST.format(similarity=SIMILARITY, allowed=_ALLOWED.replace("m.", "n."), dim=self._dim)
        total = _TOTALS[self._config.score]
        return _RECALL.format(bucket=bucket, total=total, mirrored=MIRRORED, columns=SELECT)

    def _given(self, namespace: str, asked: Encoded) -> dict[str, Any]:
        weights = self._config.weights
        return {
            "namespace": namespace,
            "modality": asked.bucket[0],
            "category": asked.bucket[1],
            "encoder": self._encoder,
            "question": asked.question,
            "opposite": -asked.question,
            "most": self._config.postgres.hnsw_candidates,
            "captioned": asked.caption is not None,
            "caption": asked.question if asked.caption is None else asked.caption,
            "question_share": weights.question,
            "caption_share": weights.caption,
            "similarity": weights.similarity,
            "value": weights.value,
            "frequency": weights.frequency,
            "floor": self._config.floor,
            "trusts": list(self._config.recall_trust),
            "rounding": ROUNDING,
            "margin": _MARGIN,
        }

    async def _compared(self, query: str, given: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Rows of a query that compares vectors, without the name of their encoder, which must be ours."""
        async with self._database.reading() as connection:
            rows = await (await connection.execute(query, given, binary=True)).fetchall()
        if not rows or rows[0][0] != self._encoder:
            raise self._other_encoder({rows[0][0] if rows else "?": 1})
        return [blobs(row[1:]) for row in rows if row[1] is not None]

    def _mirror(self, rows: Sequence[tuple[Any, ...]]) -> Mirror:
        mirror = Mirror(self._config, self._encoder, self._dim)
        if rows:
            mirror.index.put(*(self._entry(row[:_MIRRORED]) for row in rows))
        return mirror

    def _entry(self, row: Sequence[Any]) -> Entry:
        return file_entry(self._label, self._dim, row)

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


def blobs(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row with its vectors as little-endian float32, as files hold them."""
    return tuple(value.to_numpy().astype("<f4").tobytes() if isinstance(value, Vector) else value for value in row)


def least_cosine(threshold: float, weights: Weights) -> float:
    """The least cosine of two questions whose similarity can reach a threshold, whatever their captions are."""
    if not weights.question:
        return -1.0
    return min(threshold, (threshold - weights.caption) / weights.question)
