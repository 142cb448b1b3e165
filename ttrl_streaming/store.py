"""The queue on disk: questions, answers, feedback, versions of the weights; one SQLite file, in WAL mode.

What a method has returned is on disk: a `kill -9` at any moment loses nothing that was acknowledged. Left out: what is
decided (`ttrl_streaming.service`), and the weights, which are folders that `versions` names. Safe from many threads.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from mia.errors import DataError
from mia.types import Failure
from ttrl_streaming.records import Ask, Entry, Settling, State, Stepped
from ttrl_streaming.schema import FeedbackItem, Outcome
from ttrl_streaming.tables import ASK, ENTRY, SCHEMA, ask_of, entry_of

Taking = Outcome | Literal["unknown", "unanswered", "contradicted", "malformed"]
"""What became of an item: an outcome, or why it is refused."""
EVERYWHERE = ""
"""The namespace of counters for what could not be told whose it is."""


class Store:
    """See the module.

    Args:
        path: the file; made if there is none. Questions that an earlier process left unanswered are marked so.

    Raises:
        DataError: the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.learning: set[int] = set()
        """Numbers of feedback that a running update learns from: what is said later comes too late."""
        self._path = path
        self._lock = threading.RLock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise DataError(f"cannot use {path}: {error}", remedy="free space, or give another --out") from error
        broken = Failure(boundary="model", code="interrupted", message="the service was ended", retryable=True)
        with self._writing():
            self._db.execute(
                "UPDATE asks SET state = 'failed', failure = ? WHERE state = 'asked'", (broken.model_dump_json(),)
            )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it, or nothing."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise DataError(
                    f"cannot write {self._path}: {error}", remedy="free space, then send it again", code="unwritable",
                    retryable=True, status=503,
                ) from error  # fmt: skip

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def _one(self, sql: str, *values: Any) -> Any:
        rows = self._rows(sql, *values)
        return rows[0][0] if rows else None

    # ------------------------------------------------------------------------------------------ questions

    def begin(self, ask: Ask) -> Ask | None:
        """Keep a question before it is worked on; gives what is there already under its id, unless that failed."""
        with self._writing() as db:
            known = self.ask(ask.id)
            if known is not None and known.state != "failed":
                return known
            if known is not None and (known.namespace, known.question) != (ask.namespace, ask.question):
                return known
            values = (ask.id, ask.namespace, ask.question.model_dump_json(), ask.seed, ask.state, ask.elsewhere)
            db.execute(
                "INSERT INTO asks (id, namespace, question, seed, state, elsewhere, created) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET state = 'asked', seed = excluded.seed, failure = NULL",
                (*values, time.time()),
            )
        return None

    def answered(self, ask: Ask) -> None:
        """Keep how a question ended."""
        left = {"run": {"steps": {"__all__": {"reply": {"tokens"}}}}}
        rolled = ask.rolled.model_dump_json(exclude=left) if ask.rolled is not None else None
        failure = ask.failure.model_dump_json() if ask.failure is not None else None
        with self._writing() as db:
            db.execute(
                "UPDATE asks SET state = ?, version = ?, rolled = ?, failure = ?, seconds = ? WHERE id = ?",
                (ask.state, ask.version, rolled, failure, ask.seconds, ask.id),
            )

    def ask(self, name: str) -> Ask | None:
        """A question by its id."""
        rows = self._rows(f"SELECT {ASK} FROM asks WHERE id = ?", name)
        return ask_of(rows[0]) if rows else None

    def asked(self, other_than: str) -> int:
        """How many questions were asked here, a given one not counted."""
        return int(self._one("SELECT COUNT(*) FROM asks WHERE state <> 'elsewhere' AND id <> ?", other_than))

    # ------------------------------------------------------------------------------------------ feedback

    def take(self, items: Sequence[FeedbackItem | None]) -> list[Taking]:
        """Keep feedback, in one transaction.

        Args:
            items: None for one that could not be read, so that it is counted.

        Returns:
            For each item what became of it.
        """
        with self._writing():
            return [self._take(item) for item in items]

    def _take(self, item: FeedbackItem | None) -> Taking:
        if item is None:
            self._count(EVERYWHERE, "malformed")
            return "malformed"
        rows = self._rows("SELECT namespace, state FROM asks WHERE id = ?", item.id)
        if not rows:
            self._count(EVERYWHERE, "unknown")
            return "unknown"
        namespace, state = rows[0]
        if state == "asked":
            return "unanswered"
        text = item.model_dump_json()
        known = self._rows("SELECT number, item, state, held, amended, memory FROM feedback WHERE id = ?", item.id)
        if not known:
            self._db.execute(
                "INSERT INTO feedback (id, namespace, item, state, received) VALUES (?, ?, ?, 'waiting', ?)",
                (item.id, namespace, text, time.time()),
            )
            return "queued"
        number, before, stands, held, amended, memory = known[0]
        if text == (amended or before):
            self._count(namespace, "known")
            return "known"
        if (stands in ("waiting", "scored") and number not in self.learning) or held:
            self._count(namespace, "replaced")
            self._db.execute(
                "UPDATE feedback SET item = ?, state = 'waiting', reason = '', reward = NULL, reference = NULL, "
                "held = 0 WHERE number = ?",
                (text, number),
            )
            self._db.execute("DELETE FROM held WHERE id = ?", (item.id,))
            return "replaced"
        self._count(namespace, "contradicted")
        if not memory:
            return "contradicted"
        self._db.execute("UPDATE feedback SET amended = ? WHERE number = ?", (text, number))
        return "remembered"

    def count(self, namespace: str, name: str, by: int = 1) -> None:
        """Add to a counter."""
        with self._writing():
            self._count(namespace, name, by)

    def _count(self, namespace: str, name: str, by: int = 1) -> None:
        self._db.execute(
            "INSERT INTO counters VALUES (?, ?, ?) ON CONFLICT (namespace, name) DO UPDATE SET value = value + ?",
            (namespace, name, by, by),
        )

    def waiting(self, limit: int, after: int = 0) -> list[Entry]:
        """Feedback behind a number that was not looked at yet, the oldest first."""
        return self._entries("f.state = 'waiting' AND f.number > ? LIMIT ?", after, limit)

    def amended(self) -> list[tuple[Entry, FeedbackItem]]:
        """Feedback that was learned from, with what was said later."""
        found = self._entries("f.amended IS NOT NULL")
        texts = dict(self._rows("SELECT number, amended FROM feedback WHERE amended IS NOT NULL"))
        return [(e, FeedbackItem.model_validate_json(texts[e.number])) for e in found if e.number in texts]

    def amend(self, number: int, item: FeedbackItem) -> None:
        """Note that memory has what was said later."""
        text = item.model_dump_json()
        with self._writing() as db:
            db.execute(
                "UPDATE feedback SET item = ?, amended = NULL, "
                "state = CASE state WHEN 'scored' THEN 'waiting' ELSE state END WHERE number = ? AND amended = ?",
                (text, number, text),
            )

    def scored(self, namespace: str, limit: int) -> list[Entry]:
        """Feedback in the queue for an update, the oldest first."""
        return self._entries("f.namespace = ? AND f.state = 'scored' LIMIT ?", namespace, limit)

    def held(self, namespace: str) -> list[Entry]:
        """Questions that are held back for the gate."""
        return self._entries("f.namespace = ? AND f.held = 1", namespace)

    def _entries(self, where: str, *values: Any) -> list[Entry]:
        condition, limit, rest = where.partition(" LIMIT")
        columns = ", ".join(f"a.{name}" for name in ASK.split(", "))
        rows = self._rows(
            f"SELECT {ENTRY}, {columns} FROM feedback f JOIN asks a USING (id) WHERE {condition} "
            f"ORDER BY f.number{limit}{rest}",
            *values,
        )
        return [entry_of(row) for row in rows]

    def remembered(self, number: int, memory: str) -> None:
        """Note which memory came of feedback."""
        with self._writing() as db:
            db.execute("UPDATE feedback SET memory = ? WHERE number = ?", (memory, number))

    def score(self, entry: Entry, reward: float | None, reference: Sequence[str] | None) -> bool:
        """Put feedback in the queue for an update; False if it was replaced meanwhile."""
        kept = json.dumps(list(reference)) if reference is not None else None
        with self._writing() as db:
            done = db.execute(
                "UPDATE feedback SET state = 'scored', reward = ?, reference = ? "
                "WHERE number = ? AND state = 'waiting' AND item = ?",
                (reward, kept, entry.number, entry.item.model_dump_json()),
            )
            return done.rowcount == 1

    def end(self, entry: Entry, reason: str, reward: float | None, memory: str, held: bool = False) -> None:
        """Take feedback that waits out of the queue, unless it was replaced meanwhile; held: it is for the gate."""
        state: State = "remembered" if memory else "refused"
        with self._writing() as db:
            db.execute(
                "UPDATE feedback SET state = ?, reason = ?, reward = ?, held = ? "
                "WHERE number = ? AND state = 'waiting' AND item = ?",
                (state, reason, reward, int(held), entry.number, entry.item.model_dump_json()),
            )

    def settle(self, ends: Iterable[Settling]) -> None:
        """Take feedback out of the queue."""
        with self._writing():
            self._settle(ends)

    def _settle(self, ends: Iterable[Settling]) -> None:
        self._db.executemany(
            "UPDATE feedback SET state = ?, reason = ? WHERE number = ?", [(e.state, e.reason, e.number) for e in ends]
        )

    def due(self) -> list[tuple[str, int, float]]:
        """Namespaces with feedback in the queue for an update: how much, and when the oldest came."""
        return self._rows(
            "SELECT namespace, COUNT(*), MIN(received) FROM feedback WHERE state = 'scored' GROUP BY namespace"
        )

    # ------------------------------------------------------------------------------------------ versions

    def version(self, namespace: str) -> int:
        """The version that serves."""
        return int(self._one("SELECT version FROM serving WHERE namespace = ?", namespace) or 0)

    def parent(self, namespace: str, version: int) -> int | None:
        """The version that one was made from; None for the first one, and for one that never was."""
        found = self._one("SELECT parent FROM versions WHERE namespace = ? AND number = ?", namespace, version)
        return None if found is None else int(found)

    def next_version(self, namespace: str) -> int:
        """A number that no version has had."""
        return int(self._one("SELECT MAX(number) FROM versions WHERE namespace = ?", namespace) or 0) + 1

    def stepped(
        self, namespace: str, parent: int, version: int | None, step: Stepped, ends: Sequence[Settling]
    ) -> None:
        """Keep an update, and settle its feedback with it; a version makes it the one that serves."""
        with self._writing() as db:
            if version is not None:
                db.execute("INSERT INTO versions VALUES (?, ?, ?)", (namespace, version, parent))
                self._serve(namespace, version)
            db.execute(
                "INSERT INTO updates (namespace, parent, version, body, at) VALUES (?, ?, ?, ?, ?)",
                (namespace, parent, version, step.model_dump_json(), time.time()),
            )
            self._settle(ends)

    def serve(self, namespace: str, version: int) -> None:
        """Let a version serve."""
        with self._writing():
            self._serve(namespace, version)

    def _serve(self, namespace: str, version: int) -> None:
        self._db.execute(
            "INSERT INTO serving VALUES (?, ?) ON CONFLICT (namespace) DO UPDATE SET version = excluded.version",
            (namespace, version),
        )

    def lineage(self, namespace: str, limit: int) -> list[int]:
        """The version that serves and those before it, from which it was made; the newest first."""
        found = [self.version(namespace)]
        while len(found) < limit and (parent := self.parent(namespace, found[-1])) is not None:
            found.append(parent)
        return found

    def updates(self, namespace: str) -> list[tuple[int, float, int, int | None, Stepped]]:
        """All updates: number, time, version before and after, and what they did."""
        rows = self._rows("SELECT number, at, parent, version, body FROM updates WHERE namespace = ? ORDER BY number",
                          namespace)  # fmt: skip
        return [(number, at, old, new, Stepped.model_validate_json(body)) for number, at, old, new, body in rows]

    def gate_rewards(self, namespace: str, version: int) -> dict[str, float]:
        """Rewards of held-back questions under a version, by their ids."""
        rows = self._rows("SELECT id, reward FROM held WHERE namespace = ? AND version = ?", namespace, version)
        return dict(rows)

    def keep_gate_rewards(self, namespace: str, version: int, rewards: dict[str, float]) -> None:
        """Keep rewards of held-back questions under a version."""
        with self._writing() as db:
            db.executemany(
                "INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?)",
                [(name, namespace, version, reward) for name, reward in rewards.items()],
            )

    # ------------------------------------------------------------------------------------------ what is told

    def recent(self, namespace: str, limit: int, version: int | None = None) -> list[tuple[Ask, float]]:
        """The last official answers with a reward, the newest first; those of one version if one is given."""
        columns = ", ".join(f"a.{name}" for name in ASK.split(", "))
        chosen = "" if version is None else "AND a.version = ? "
        given = () if version is None else (version,)
        rows = self._rows(
            f"SELECT f.reward, {columns} FROM feedback f JOIN asks a USING (id) WHERE f.namespace = ? AND "
            f"a.state = 'answered' AND f.reward IS NOT NULL {chosen}ORDER BY f.number DESC LIMIT ?",
            namespace, *given, limit,
        )  # fmt: skip
        return [(ask_of(row[1:]), row[0]) for row in rows]

    def rewards(self, namespace: str, limit: int, before: int | None = None) -> list[float]:
        """Rewards of the last official answers, up to a number of feedback, the newest first."""
        rows = self._rows(
            "SELECT f.reward FROM feedback f JOIN asks a USING (id) WHERE f.namespace = ? AND a.state = 'answered' AND "
            "f.reward IS NOT NULL AND f.number <= ? ORDER BY f.number DESC LIMIT ?",
            namespace, before if before is not None else 2**62, limit,
        )  # fmt: skip
        return [row[0] for row in rows]

    def counts(self, namespace: str) -> tuple[dict[str, int], dict[str, int], dict[str, int], dict[str, int]]:
        """Questions by state, feedback by state, reasons, and counters."""
        asks = self._rows("SELECT state, COUNT(*) FROM asks WHERE namespace = ? GROUP BY state", namespace)
        told = self._rows("SELECT state, COUNT(*) FROM feedback WHERE namespace = ? GROUP BY state", namespace)
        why = self._rows(
            "SELECT reason, COUNT(*) FROM feedback WHERE namespace = ? AND reason <> '' GROUP BY reason", namespace
        )
        kept = self._rows("SELECT name, value FROM counters WHERE namespace IN (?, ?)", namespace, EVERYWHERE)
        return dict(asks), dict(told), dict(why), dict(kept)
