"""The memory itself: rows in SQLite, their mirror in RAM, and the rules that tie both; for one thread only.

Knows nothing of encoders, tasks or HTTP: vectors come ready-made. Every change gets the next number of one counter in
the file, in the same transaction, so the mirror is brought up to date by reading what has a higher number than the last
one seen: by the same path for our own changes and for those of another process on the same file.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

import numpy as np
from pydantic import ValidationError

from local_search.protocol import Vectors
from memory_serve.config import MemoryConfig
from memory_serve.database import Database, damaged
from memory_serve.duplicates import decide, same_question, twins
from memory_serve.protocol import Added, Credited, Draft, Stats
from memory_serve.ranking import Flags, Floats, best, score, similarity
from memory_serve.vectors import OUTCOMES, Bucket, Entry, Index, Key
from mia.errors import MemoryStoreError
from mia.types import Memory, Outcome, Recalled, ScoredMemory, now

_FIELDS = (
    "id, question, caption, workflow, plan, outcome, uses, successes, modality, category, created, source_id, "
    "trajectory_id, provenance"
)
_MIRRORED = "id, modality, category, outcome, uses, successes, created, source_id, encoder, vector, caption_vector"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BLOB = np.dtype("<f4")
"""Vectors are stored as little-endian float32."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A question or a draft as it is compared: its bucket, and unit vectors of shape (d,)."""

    bucket: Key
    question: Vectors
    caption: Vectors | None


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A chosen memory, before its texts are read."""

    id: str
    outcome: Outcome
    score: float
    similarity: float
    terms: dict[str, float]


class MemoryCore:
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
        self._index = Index(dim)
        self._seen = -1  # number of the last change that the mirror has; -1: read it from scratch
        self._database = Database(config.path, config.synchronous, config.busy_s)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    # ------------------------------------------------------------------------------------------ reading

    def load(self) -> None:
        """Bring the mirror up to date.

        Raises:
            MemoryStoreError: a vector is damaged or was made by another encoder.
        """
        with self._reading():
            pass

    def recall(self, asked: Encoded, source_id: str, k: int) -> Recalled:
        """The k best memories of each outcome; those that stem from the question `source_id` are not even compared."""
        with self._reading() as connection:
            ranked = self._rank(asked, source_id, k)
            memories = self._memories(connection, [r.id for r in ranked])
        scored: dict[Outcome, list[ScoredMemory]] = {outcome: [] for outcome in OUTCOMES}
        for r in ranked:
            scored[r.outcome].append(
                ScoredMemory(memory=memories[r.id], score=r.score, similarity=r.similarity, terms=r.terms)
            )
        return Recalled(
            successes=tuple(scored["correct"]),
            failures=tuple(scored["incorrect"]),
            unjudged=tuple(scored["unjudged"]),
        )

    def get(self, memory_id: str) -> Memory | None:
        """One memory, or None."""
        with self._database.reading() as connection:
            return self._memories(connection, [memory_id]).get(memory_id)

    def page(self, limit: int, offset: int) -> list[Memory]:
        """Memories from the newest to the oldest."""
        with self._database.reading() as connection:
            rows = connection.execute(
                f"SELECT {_FIELDS} FROM memories ORDER BY created DESC, rowid DESC LIMIT ? OFFSET ?", (limit, offset)
            ).fetchall()
        return [self._memory(row) for row in rows]

    def stats(self) -> Stats:
        """Counts over the whole file."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT outcome, modality || '/' || category, count(*) FROM memories GROUP BY 1, 2 ORDER BY 1, 2"
            ).fetchall()
        outcomes: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        buckets: dict[str, int] = {}
        for outcome, bucket, count in rows:
            outcomes[outcome] += count
            buckets[bucket] = buckets.get(bucket, 0) + count
        return Stats(memories=sum(outcomes.values()), by_outcome=outcomes, by_bucket=buckets, encoder=self._encoder)

    def _rank(self, asked: Encoded, source_id: str, k: int) -> list[_Ranked]:
        bucket = self._index.bucket(asked.bucket)
        if bucket is None:
            return []
        rows = np.flatnonzero(bucket.foreign(source_id))
        if not len(rows):
            return []
        scores = score(
            self._similarities(asked, bucket)[rows], bucket.uses[rows], bucket.successes[rows], self._config.weights
        )
        ids = [bucket.ids[row] for row in rows]
        ranked = []
        for outcome in OUTCOMES:
            having: Flags = bucket.having(outcome)[rows]
            for i in best(scores.total, bucket.created[rows], ids, having, k):
                terms = {name: float(values[i]) for name, values in scores.terms.items()}
                ranked.append(_Ranked(ids[i], outcome, float(scores.total[i]), float(scores.similarity[i]), terms))
        return ranked

    def _similarities(self, encoded: Encoded, bucket: Bucket) -> Floats:
        return similarity(
            encoded.question, bucket.questions, encoded.caption, bucket.captions, bucket.captioned, self._config.weights
        )

    def _memories(self, connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, Memory]:
        slots = ", ".join("?" * len(ids))
        rows = connection.execute(f"SELECT {_FIELDS} FROM memories WHERE id IN ({slots})", ids).fetchall()
        return {row[0]: self._memory(row) for row in rows}

    def _memory(self, row: Sequence[object]) -> Memory:
        fields = dict(zip(_FIELDS.split(", "), row, strict=True))
        try:
            fields["provenance"] = json.loads(str(fields["provenance"]))
            return Memory.model_validate(fields)
        except (ValidationError, ValueError) as error:
            raise damaged(self._config.path, f"memory {row[0]} cannot be read ({error})") from error

    # ------------------------------------------------------------------------------------------ writing

    def add(self, drafts: Sequence[tuple[Draft, Encoded]]) -> list[Added]:
        """Store drafts in order, all or none; see `memory_serve.duplicates` for what becomes of each."""
        with self._writing() as connection:
            return [self._add(connection, draft, encoded) for draft, encoded in drafts]

    def credit(self, ids: Sequence[str], success: bool, key: str) -> list[Credited]:
        """Count one use of each distinct memory, and a success or not; once per key, if there is a key."""
        with self._writing() as connection:
            credited = [Credited(id=i, known=i in self._index) for i in dict.fromkeys(ids)]
            if key:
                new = connection.execute("INSERT INTO credits VALUES (?) ON CONFLICT DO NOTHING", (key,)).rowcount
                if not new:
                    return credited
            for known in (c.id for c in credited if c.known):
                connection.execute(
                    "UPDATE memories SET uses = uses + 1, successes = successes + ?, version = ? WHERE id = ?",
                    (int(success), _next_version(connection), known),
                )
            return credited

    def delete(self, ids: Sequence[str]) -> int:
        """Forget memories; returns how many there were."""
        with self._writing() as connection:
            known = [i for i in dict.fromkeys(ids) if i in self._index]
            for memory_id in known:
                connection.execute("DELETE FROM memories WHERE id = ?", (memory_id,))
                connection.execute("INSERT INTO deleted VALUES (?, ?)", (memory_id, _next_version(connection)))
            return len(known)

    def _add(self, connection: sqlite3.Connection, draft: Draft, encoded: Encoded) -> Added:
        known = connection.execute(
            "SELECT memory_id, outcome FROM trajectories WHERE trajectory_id = ?", (draft.trajectory_id,)
        ).fetchone()
        # A run is stored once; only a verdict that came later than the run makes it worth looking at again.
        if known and (known[1] != "unjudged" or draft.outcome == "unjudged"):
            return Added(id=known[0], action="known")
        action, memory_id = decide(
            draft.outcome,
            self._twins(connection, draft, encoded),
            lambda twin: self._is_shorter(connection, draft, twin),
        )
        if action == "stored":
            memory_id = str(uuid.uuid4())
            self._insert(connection, memory_id, draft, encoded)
        elif action == "replaced":
            self._replace(connection, memory_id, draft, encoded)
        if draft.trajectory_id:
            connection.execute(
                "INSERT INTO trajectories VALUES (?, ?, ?) ON CONFLICT (trajectory_id) "
                "DO UPDATE SET memory_id = excluded.memory_id, outcome = excluded.outcome",
                (draft.trajectory_id, memory_id, draft.outcome),
            )
        self._refresh(connection)  # the next draft of the batch may be a twin of this one
        return Added(id=memory_id, action=action)

    def _twins(self, connection: sqlite3.Connection, draft: Draft, encoded: Encoded) -> dict[Outcome, str]:
        bucket = self._index.bucket(encoded.bucket)
        if bucket is None:
            return {}
        similarities = self._similarities(encoded, bucket)
        captioned = encoded.caption is not None
        found = twins(bucket, similarities, self._config.duplicate, encoded.bucket[0], captioned, draft.source_id)
        return {
            outcome: memory_id
            for outcome, memory_id in found.items()
            if same_question(draft.question, self._question(connection, memory_id))
        }

    def _question(self, connection: sqlite3.Connection, memory_id: str) -> str:
        (question,) = connection.execute("SELECT question FROM memories WHERE id = ?", (memory_id,)).fetchone()
        return str(question)

    def _is_shorter(self, connection: sqlite3.Connection, draft: Draft, twin: str) -> bool:
        (workflow,) = connection.execute("SELECT workflow FROM memories WHERE id = ?", (twin,)).fetchone()
        return len(draft.workflow.split()) < len(workflow.split())

    def _insert(self, connection: sqlite3.Connection, memory_id: str, draft: Draft, encoded: Encoded) -> None:
        values = {
            "id": memory_id,
            "modality": encoded.bucket[0],
            "category": encoded.bucket[1],
            "created": now().isoformat(timespec="microseconds"),
            **self._content(connection, draft, encoded),
        }
        slots = ", ".join("?" * len(values))
        connection.execute(f"INSERT INTO memories ({', '.join(values)}) VALUES ({slots})", tuple(values.values()))

    def _replace(self, connection: sqlite3.Connection, memory_id: str, draft: Draft, encoded: Encoded) -> None:
        """New content under the old id; counters and time of creation stay."""
        content = self._content(connection, draft, encoded)
        changes = ", ".join(f"{name} = ?" for name in content)
        connection.execute(f"UPDATE memories SET {changes} WHERE id = ?", (*content.values(), memory_id))

    def _content(
        self, connection: sqlite3.Connection, draft: Draft, encoded: Encoded
    ) -> dict[str, str | int | bytes | None]:
        return {
            "version": _next_version(connection),
            "outcome": draft.outcome,
            "source_id": draft.source_id,
            "trajectory_id": draft.trajectory_id,
            "encoder": self._encoder,
            "vector": _to_blob(encoded.question),
            "caption_vector": None if encoded.caption is None else _to_blob(encoded.caption),
            "question": draft.question,
            "caption": draft.caption,
            "workflow": draft.workflow,
            "plan": draft.plan,
            "provenance": json.dumps(draft.provenance, ensure_ascii=False),
        }

    # ------------------------------------------------------------------------------------------ another encoder

    def encoders(self) -> dict[str, int]:
        """How many memories have vectors of which encoder."""
        with self._database.reading() as connection:
            return dict(connection.execute("SELECT encoder, count(*) FROM memories GROUP BY 1").fetchall())

    def outdated(self, limit: int) -> list[tuple[str, str, str]]:
        """Id, question and caption of some memories whose vectors another encoder made."""
        with self._database.reading() as connection:
            return connection.execute(
                "SELECT id, question, caption FROM memories WHERE encoder != ? LIMIT ?", (self._encoder, limit)
            ).fetchall()

    def set_vectors(self, vectors: Sequence[tuple[str, Vectors, Vectors | None]]) -> None:
        """Put vectors of our encoder in the place of others; (id, question, caption) each."""
        with self._database.writing() as connection:
            for memory_id, question, caption in vectors:
                connection.execute(
                    "UPDATE memories SET encoder = ?, vector = ?, caption_vector = ?, version = ? WHERE id = ?",
                    (
                        self._encoder,
                        _to_blob(question),
                        None if caption is None else _to_blob(caption),
                        _next_version(connection),
                        memory_id,
                    ),
                )

    # ------------------------------------------------------------------------------------------ mirror

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._database.reading() as connection:
            self._refresh(connection)
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction; the mirror is up to date in it, and is read anew if the transaction is undone."""
        try:
            with self._database.writing() as connection:
                self._refresh(connection)
                yield connection
                self._refresh(connection)
        except BaseException:
            self._seen = -1
            raise

    def _refresh(self, connection: sqlite3.Connection) -> None:
        (current,) = connection.execute("SELECT value FROM counters WHERE name = 'version'").fetchone()
        if current == self._seen:
            return
        if self._seen < 0 or current < self._seen:
            self._index.clear()
            self._seen = -1
        changed = connection.execute(f"SELECT {_MIRRORED} FROM memories WHERE version > ?", (self._seen,))
        seen, self._seen = self._seen, -1  # if a row cannot be used, the next call starts from scratch
        for row in changed:
            self._index.put(self._entry(row))
        for (memory_id,) in connection.execute("SELECT id FROM deleted WHERE version > ?", (seen,)):
            self._index.remove(memory_id)
        self._seen = current

    def _entry(self, row: Sequence[str]) -> Entry:
        memory_id, modality, category, outcome, uses, successes, created, source_id, encoder, vector, caption = row
        if encoder != self._encoder:
            raise other_encoder(self._config, {encoder: 1}, self._encoder)
        try:
            age = datetime.fromisoformat(created) - _EPOCH
        except (ValueError, TypeError) as error:
            raise damaged(self._config.path, f"memory {memory_id} was created {created!r}") from error
        return Entry(
            id=memory_id,
            bucket=(modality, category),
            outcome=cast("Outcome", outcome),  # the file has a CHECK on it
            question=self._from_blob(memory_id, vector),
            caption=None if caption is None else self._from_blob(memory_id, caption),
            uses=int(uses),
            successes=int(successes),
            created=age // timedelta(microseconds=1),
            source_id=source_id,
        )

    def _from_blob(self, memory_id: str, blob: object) -> Vectors:
        if not isinstance(blob, bytes) or len(blob) != self._dim * _BLOB.itemsize:
            raise damaged(self._config.path, f"the vector of memory {memory_id} does not have {self._dim} numbers")
        return np.frombuffer(blob, _BLOB).astype(np.float32, copy=False)


def other_encoder(config: MemoryConfig, found: dict[str, int], wanted: str) -> MemoryStoreError:
    """The error for vectors that must not be compared with ours."""
    named = ", ".join(f"{count} by {name}" for name, count in sorted(found.items()))
    return MemoryStoreError(
        f"{config.path} holds vectors of another encoder ({named}); this one is {wanted}",
        remedy="set memory.reencode = true once to encode them anew, or use the former encoder",
        code="other_encoder",
    )


def _next_version(connection: sqlite3.Connection) -> int:
    rows = connection.execute("UPDATE counters SET value = value + 1 WHERE name = 'version' RETURNING value").fetchall()
    return int(rows[0][0])


def _to_blob(vector: Vectors) -> bytes:
    return vector.astype(_BLOB, copy=False).tobytes()
