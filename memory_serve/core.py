"""The memory itself, reading: rows in SQLite and their mirror in RAM; for one thread only.

Knows nothing of encoders, tasks or HTTP: vectors come ready-made. Every transaction that changes something gets the
next number of one counter in the file, and what it changed bears it, so the mirror is brought up to date by reading
what has a higher number than the last one seen. What we change ourselves is put in the mirror at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memory_serve.config import MemoryConfig
from memory_serve.database import Database
from memory_serve.near import radius
from memory_serve.protocol import TRUSTS, Change, PlanPair, Stats, Stored
from memory_serve.ranking import Floats, Ints, Rough, Scoring, Span, best, promising, similarity
from memory_serve.rows import MIRRORED, SELECT, Encoded, entry, stored
from memory_serve.rules import least_cosine
from memory_serve.vectors import OUTCOMES, Bucket, Index
from mia.errors import MemoryStoreError
from mia.types import Outcome, Recalled, ScoredMemory

_LOADED = 4096
"""Rows that are put in the mirror at once."""
EVERYWHERE = "*"
"""Stands in the log for all namespaces; no namespace can be called so."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A chosen memory, before its texts are read."""

    id: str
    outcome: Outcome
    score: float
    similarity: float
    terms: dict[str, float]


class MemoryReader:
    """One memory file and its mirror.

    Args:
        config: path of the file, weights, threshold of duplicates, durability.
        encoder: name of the encoder whose vectors are given and stored.
        dim: length of these vectors.

    Raises:
        MemoryStoreError: the file cannot be used.
    """

    def __init__(self, config: MemoryConfig, encoder: str, dim: int) -> None:
        self._config = config
        self._encoder = encoder
        self._dim = dim
        self._scoring = Scoring(config.score, config.weights)
        self._index = Index(dim, radius(least_cosine(config.duplicate, config.weights)), self._scoring)
        self._seen = -1  # number of the last change that the mirror has; -1: read it from scratch
        self._database = Database(config.path, config.synchronous, config.busy_s)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def backup(self, path: Path) -> None:
        """See `Database.backup`."""
        self._database.backup(path)

    def load(self) -> None:
        """Bring the mirror up to date.

        Raises:
            MemoryStoreError: a vector is damaged or was made by another encoder.
        """
        with self._reading():
            pass

    def recall(self, namespace: str, asked: Encoded, source_id: str, k: int, skip: int, own: bool) -> Recalled:
        """The k best memories of each outcome behind the `skip` best.

        Those that stem from the question `source_id` do not count at all, unless `own`.
        """
        with self._reading() as connection:
            ranked = self._rank(namespace, asked, "" if own else source_id, k, skip)
            memories = self._memories(connection, namespace, [r.id for r in ranked])
        return recalled(ranked, memories)

    def pairs(self, namespace: str, asked: Encoded, source_id: str, k: int) -> list[PlanPair]:
        """Plans that worked and failed for one question, the most similar question first, of equals the newest."""
        with self._reading() as connection:
            bucket = self._index.bucket((namespace, *asked.bucket))
            if bucket is None:
                return []
            found: dict[str, tuple[str, str, str]] = {}
            for memory_id, *plans in connection.execute(_PAIRS, (namespace, *asked.bucket, source_id)):
                found.setdefault(memory_id, (plans[0], plans[1], plans[2]))
            names = list(found)
            rows = np.array([bucket.rows[name] for name in names], np.int64)
            similar = self._similarities(asked, bucket, rows)
            chosen = best(similar, bucket.created[rows], names, np.ones(len(rows), np.bool_), k)
        pairs = [(*found[names[i]], float(similar[i])) for i in chosen]
        return [PlanPair(question=q, correct=good, incorrect=bad, similarity=s) for q, good, bad, s in pairs]

    def get(self, namespace: str, memory_id: str) -> Stored | None:
        """One memory, or None."""
        with self._database.reading() as connection:
            return self._memories(connection, namespace, [memory_id]).get(memory_id)

    def page(self, namespace: str, limit: int, offset: int) -> list[Stored]:
        """Memories from the newest to the oldest."""
        order = "WHERE namespace = ? ORDER BY created DESC, rowid DESC LIMIT ? OFFSET ?"
        with self._database.reading() as connection:
            rows = connection.execute(f"{SELECT} {order}", (namespace, limit, offset)).fetchall()
        return [stored(self._config.path, row) for row in rows]

    def export(self, namespace: str, after: str, limit: int) -> list[Stored]:
        """Memories in the order of their ids."""
        order = "WHERE +namespace = ? AND id > ? ORDER BY id LIMIT ?"
        with self._database.reading() as connection:
            rows = connection.execute(f"{SELECT} {order}", (namespace, after, limit)).fetchall()
        return [stored(self._config.path, row) for row in rows]

    def history(self, namespace: str, limit: int) -> list[Change]:
        """The last changes, the newest first."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT * FROM changes WHERE namespace IN (?, ?) ORDER BY number DESC LIMIT ?",
                (namespace, EVERYWHERE, limit),
            ).fetchall()
            return [change(connection, row) for row in rows]

    def stats(self, namespace: str) -> Stats:
        """Counts over a namespace."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT outcome, modality || '/' || category, trust, absorbed != '', count(*) FROM memories "
                "WHERE namespace = ? GROUP BY 1, 2, 3, 4 ORDER BY 1, 2",
                (namespace,),
            ).fetchall()
        return stats_of(rows, self._encoder, namespace)

    def _rank(self, namespace: str, asked: Encoded, source_id: str, k: int, skip: int) -> list[Ranked]:
        bucket = self._index.bucket((namespace, *asked.bucket))
        if bucket is None:
            return []
        allowed = bucket.trusted(self._config.recall_trust) & bucket.foreign(source_id)
        if not allowed.any():
            return []
        similar = bucket.similar(asked.question, asked.caption, self._config.weights)
        span = similar.span(allowed)
        rough = self._scoring.rough(similar.values, bucket.priors, span)
        slack = self._scoring.slack(similar.error, span)
        if span[0] < self._config.floor:
            allowed &= similar.at_least(self._config.floor)
        ranked = []
        for outcome in OUTCOMES:
            rows = promising(rough, bucket.having(outcome) & allowed, skip + k, slack)
            ranked += self._exact(bucket, outcome, similar.at(rows), rows, span, skip + k)[skip:]
        return ranked

    def _exact(self, bucket: Bucket, outcome: Outcome, similar: Rough, rows: Ints, span: Span, k: int) -> list[Ranked]:
        """The k best of some rows, all of which have this outcome; `similar` are their similarities."""
        numbers = bucket.uses[rows], bucket.successes[rows], bucket.win_rates[rows]
        scores = self._scoring.exact(similar, *numbers, span)
        ids = [bucket.ids[row] for row in rows.tolist()]
        chosen = best(scores.total, bucket.created[rows], ids, np.ones(len(rows), np.bool_), k)
        terms = [{name: float(values[i]) for name, values in scores.terms.items()} for i in chosen]
        return [
            Ranked(ids[i], outcome, float(scores.total[i]), float(scores.similarity[i]), t)
            for i, t in zip(chosen, terms, strict=True)
        ]

    def _similarities(self, encoded: Encoded, bucket: Bucket, rows: Ints | None = None) -> Floats:
        questions, captions, captioned = bucket.questions, bucket.captions, bucket.captioned
        if rows is not None:
            questions, captioned = questions[rows], captioned[rows]
            captions = None if captions is None else captions[rows]
        return similarity(encoded.question, questions, encoded.caption, captions, captioned, self._config.weights)

    def _memories(self, connection: sqlite3.Connection, namespace: str, ids: Sequence[str]) -> dict[str, Stored]:
        if not ids:
            return {}
        # The plus keeps SQLite from looking through the whole namespace instead of going by the ids.
        where = f"WHERE +namespace = ? AND id IN ({', '.join('?' * len(ids))})"
        rows = connection.execute(f"{SELECT} {where}", (namespace, *ids)).fetchall()
        return {row[0]: stored(self._config.path, row) for row in rows}

    # ------------------------------------------------------------------------------------------ mirror

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._database.reading() as connection:
            self._refresh(connection)
            yield connection

    def _refresh(self, connection: sqlite3.Connection) -> int:
        """Bring the mirror up to what the transaction sees; returns the number of the last change."""
        (current,) = connection.execute("SELECT value FROM counters WHERE name = 'version'").fetchone()
        if current == self._seen:
            return int(current)
        if self._seen < 0 or current < self._seen:
            self._index.clear()
            self._seen = -1
        seen, self._seen = self._seen, -1  # if a row cannot be used, the next call starts from scratch
        if seen < 0:
            self._mirror(connection, "true", ())
        else:
            self._mirror(connection, "version > ?", (seen,))
        for (memory_id,) in connection.execute("SELECT id FROM deleted WHERE version > ?", (seen,)):
            self._index.remove(memory_id)
        self._seen = current
        return int(current)

    def _mirror(self, connection: sqlite3.Connection, where: str, given: Sequence[object]) -> None:
        """Put some rows in the mirror."""
        changed = connection.execute(f"{MIRRORED} WHERE {where}", given)
        while rows := changed.fetchmany(_LOADED):
            others = {row[11] for row in rows} - {self._encoder}
            if others:
                raise other_encoder(self._config, self._others(connection), self._encoder)
            self._index.put(*(entry(self._config.path, self._dim, row) for row in rows))

    def _others(self, connection: sqlite3.Connection) -> dict[str, int]:
        """How many memories have vectors of which other encoders."""
        query = "SELECT encoder, count(*) FROM memories WHERE encoder != ? GROUP BY 1"
        return dict(connection.execute(query, (self._encoder,)).fetchall())


_PAIRS = """
    SELECT good.id, good.question, good.plan, bad.plan FROM memories good JOIN memories bad
    ON bad.namespace = good.namespace AND bad.modality = good.modality AND bad.category = good.category
    AND coalesce(nullif(bad.source_id, ''), bad.question) = coalesce(nullif(good.source_id, ''), good.question)
    WHERE good.namespace = ? AND good.modality = ? AND good.category = ?
    AND (good.source_id = '' OR good.source_id != ?)
    AND good.outcome = 'correct' AND bad.outcome = 'incorrect' AND good.plan != '' AND bad.plan != ''
    ORDER BY bad.created DESC
"""
"""Plans that worked beside plans that failed for the same question; of several that failed the newest comes first."""


def recalled(ranked: Sequence[Ranked], memories: Mapping[str, Stored]) -> Recalled:
    """Chosen memories with their texts, by outcome; of each the best first, as they were ranked."""
    scored: dict[Outcome, list[ScoredMemory]] = {outcome: [] for outcome in OUTCOMES}
    for r in ranked:
        memory = memories[r.id].memory
        scored[r.outcome].append(ScoredMemory(memory=memory, score=r.score, similarity=r.similarity, terms=r.terms))
    return Recalled(
        successes=tuple(scored["correct"]),
        failures=tuple(scored["incorrect"]),
        unjudged=tuple(scored["unjudged"]),
    )


def stats_of(rows: Iterable[Sequence[Any]], encoder: str, namespace: str) -> Stats:
    """Counts of a namespace from those of its groups: outcome, bucket, trust, whether absorbed, how many."""
    outcomes: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
    trusts: dict[str, int] = dict.fromkeys(TRUSTS, 0)
    buckets: dict[str, int] = {}
    learned = 0
    for outcome, bucket, trust, absorbed, count in rows:
        outcomes[outcome] += count
        trusts[trust] += count
        learned += count if absorbed else 0
        buckets[bucket] = buckets.get(bucket, 0) + count
    return Stats(
        memories=sum(outcomes.values()),
        by_outcome=outcomes,
        by_bucket=buckets,
        encoder=encoder,
        by_trust=trusts,
        absorbed=learned,
        namespace=namespace,
    )


def change(connection: sqlite3.Connection, row: Sequence[object]) -> Change:
    """The record of a row of `changes`. Its `undone` is negative while the undo is itself undone."""
    images = connection.execute("SELECT memory_id FROM images WHERE number = ? ORDER BY memory_id", (row[0],))
    names = ("number", "at", "actor", "namespace", "action", "undone")
    fields = dict(zip(names, (*row[:5], row[5] if isinstance(row[5], int) and row[5] > 0 else None), strict=True))
    return Change.model_validate({**fields, "memories": tuple(memory_id for (memory_id,) in images)})


def other_encoder(config: MemoryConfig, found: dict[str, int], wanted: str) -> MemoryStoreError:
    """The error for vectors that must not be compared with ours."""
    named = ", ".join(f"{count} by {name}" for name, count in sorted(found.items()))
    return MemoryStoreError(
        f"{config.path} holds vectors of another encoder ({named}); this one is {wanted}",
        remedy="set memory.reencode = true once to encode them anew, or use the former encoder",
        code="other_encoder",
    )
