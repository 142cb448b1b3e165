"""The memory itself, writing: adding, crediting, editing, forgetting; see `memory_serve.core`.

Calls that wait are done in one transaction, each in a savepoint of its own: together they wait for the disk once, and
one that fails takes nothing with it. Nothing is acknowledged before the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from memory_serve.keeping import MemoryKeeper
from memory_serve.log import Image, Pending, Write, prune
from memory_serve.near import Place, Spot
from memory_serve.protocol import Action, Added, Credited, Draft, Edit, Stored
from memory_serve.ranking import win_rate
from memory_serve.rows import SELECT, Encoded, new_id, stored, values
from memory_serve.rules import KEPT, check_edited, check_namespaces, decide_on, edited, is_known, new_state
from mia.errors import DataError, MemoryStoreError

_PRUNED = 1000
"""Changes after which the log is cut to its length."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that waits: a method of the core, what it is given, and, if it writes, what the log says of it."""

    work: Callable[..., Any]
    args: tuple[Any, ...]
    namespace: str
    actor: str = ""
    action: Action | None = None


class MemoryWriter(MemoryKeeper):
    """Adds what changes a memory file; see `MemoryReader`. Methods that take a `Write` are called through `run`."""

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Do calls in order; a result or an exception for each. Writes that follow each other share a transaction."""
        results: list[Any] = []
        while len(results) < len(calls):
            rest = calls[len(results) :]
            if rest[0].action is None:
                results.append(self._one(rest[0]))
                continue
            size = next((n for n, call in enumerate(rest) if call.action is None), len(rest))
            results += self._together(rest[:size])
        return results

    def _one(self, call: Call) -> Any:
        try:
            return call.work(call.namespace, *call.args)
        except (MemoryStoreError, DataError) as error:
            return error

    def _together(self, calls: Sequence[Call]) -> list[Any]:
        try:
            with self._database.writing() as connection:
                pending = Pending(connection, self._refresh(connection) + 1)
                before = pending.last
                writes = [Write(pending, call.namespace, call.actor, call.action or "add") for call in calls]
                self._find_spots(calls, writes)
                results = [self._within(call, write) for call, write in zip(calls, writes, strict=True)]
                if pending.last > before:
                    pending.flush()
                    connection.execute("UPDATE counters SET value = ? WHERE name = 'version'", (pending.version,))
                    self._seen = pending.version
                if pending.last // _PRUNED > before // _PRUNED:
                    prune(connection, self._config.history)
                return results
        except MemoryStoreError as error:
            self._seen = -1
            return [error] * len(calls)
        except BaseException:
            self._seen = -1
            raise

    def _find_spots(self, calls: Sequence[Call], writes: Sequence[Write]) -> None:
        """Where all drafts of all calls stand, at once: for one alone it costs as much as for many."""
        adding = [(write, call.args[1]) for call, write in zip(calls, writes, strict=True) if call.action == "add"]
        spots = iter(self._index.spots([e.question for _, encoded in adding for e in encoded]))
        for write, encoded in adding:
            write.spots = [next(spots) for _ in encoded]

    def _within(self, call: Call, write: Write) -> Any:
        """One call, which takes nothing with it when it fails."""
        if call.action in ("clear", "undo"):  # these write to the log themselves; what is before them must stay
            write.pending.flush()
        write.begin()
        try:
            result = call.work(write, *call.args)
            write.finish()
        except (DataError, MemoryStoreError) as error:
            write.undo()
            if write.images or write.number:
                write.number = None
                self._seen = -1  # the mirror has what was just taken back
                write.pending.flush()
                self._refresh(write.pending.connection)
            return error
        write.end()
        return result

    # ------------------------------------------------------------------------------------------ adding

    def add(self, write: Write, drafts: Sequence[Draft], encoded: Sequence[Encoded]) -> list[Added]:
        """Store drafts in order; see `memory_serve.duplicates` and `memory_serve.keep` for what becomes of each."""
        runs = self._known_runs(write, [draft.trajectory_id for draft in drafts if draft.trajectory_id])
        added = [self._add(write, *given, runs) for given in zip(drafts, encoded, write.spots, strict=True)]
        if not self._config.keep.limits:
            return added
        fresh = {
            a.id: (write.namespace, *e.bucket) for a, e in zip(added, encoded, strict=True) if a.action == "stored"
        }
        if not fresh:
            return added
        into = self._keep_small(write, fresh)
        return [Added(id=into[a.id], action="kept") if a.id in into else a for a in added]

    def _known_runs(self, write: Write, runs: Sequence[str]) -> dict[str, tuple[str, str]]:
        """The memory and the outcome of the runs that are stored already."""
        if not runs:
            return {}
        known = {run: held for (where, run), held in write.pending.runs.items() if where == write.namespace}
        query = f"SELECT * FROM runs WHERE namespace = ? AND trajectory_id IN ({', '.join('?' * len(runs))})"
        # Not through `write.connection`: what waits need not be written for this.
        for _, run, memory_id, outcome in write.pending.connection.execute(query, (write.namespace, *runs)):
            known[run] = memory_id, outcome
        return known

    def _add(self, write: Write, draft: Draft, encoded: Encoded, spot: Spot, runs: dict[str, tuple[str, str]]) -> Added:
        run, known = draft.trajectory_id, runs.get(draft.trajectory_id)
        if known and is_known(known, draft.outcome):
            return Added(id=known[0], action="known")
        bucket = self._index.bucket((write.namespace, *encoded.bucket))
        action, memory_id = decide_on(
            draft,
            encoded,
            bucket,
            spot,
            self._config.duplicate,
            lambda of, rows: self._similarities(encoded, of, rows),
            lambda twin: _look(write, twin),
        )
        if action == "stored":
            memory_id = new_id()
            row = new_state(write.namespace, memory_id, draft, encoded.bucket)
            self._insert(write, row, encoded, spot.place, {run: draft.outcome} if run and not known else {})
        elif action == "replaced":
            self._replace(write, memory_id, draft, encoded)
        if run:
            if known or action != "stored":
                self._assign(write, memory_id, run, draft.outcome, known[0] if known else None)
            runs[run] = memory_id, draft.outcome
        return Added(id=memory_id, action=action)

    def _replace(self, write: Write, memory_id: str, draft: Draft, encoded: Encoded) -> None:
        """New content under the old id; counters and time of creation stay."""
        row = new_state(write.namespace, memory_id, draft, encoded.bucket)
        for kept in (*KEPT, "revision"):
            del row[kept]
        self._change(write, memory_id, row, encoded)

    def load_memories(self, write: Write, memories: Sequence[Stored], encoded: Sequence[Encoded]) -> list[Added]:
        """Store exported memories as they are."""
        places = self._index.places([e.question for e in encoded])
        return [self._load_one(write, *given) for given in zip(memories, encoded, places, strict=True)]

    def _load_one(self, write: Write, memory: Stored, encoded: Encoded, place: Place) -> Added:
        memory = memory.model_copy(update={"namespace": write.namespace})
        row = write.connection.execute(f"{SELECT} WHERE id = ?", (memory.id,)).fetchone()
        if row is not None:
            mine = stored(self._config.path, row)
            check_namespaces(memory.id, mine.namespace, write.namespace)
            return Added(id=memory.id, action="known" if mine == memory else "kept")
        write.connection.execute("DELETE FROM deleted WHERE id = ?", (memory.id,))
        self._insert(write, values(memory), encoded, place, {})
        if memory.trajectory_id:
            write.connection.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (write.namespace, memory.trajectory_id, memory.id, memory.outcome),
            )
            image = write.images[memory.id]
            assert image.after is not None
            image.after["runs"] = self._read_runs(write, memory.id)
        return Added(id=memory.id, action="stored")

    # ------------------------------------------------------------------------------------------ changing

    def credit(self, write: Write, ids: Sequence[str], success: bool, key: str) -> list[Credited]:
        """Count one use of each distinct memory, and a success or not; once per key, if there is a key."""
        credited = [Credited(id=i, known=self._has(write.namespace, i)) for i in dict.fromkeys(ids)]
        if key:
            row = (write.namespace, key)
            if not write.connection.execute("INSERT INTO credited VALUES (?, ?) ON CONFLICT DO NOTHING", row).rowcount:
                return credited
        for known in (c.id for c in credited if c.known):
            query = "SELECT uses, successes, win_rate FROM memories WHERE id = ?"
            uses, successes, given = write.connection.execute(query, (known,)).fetchone()
            write.connection.execute(
                "UPDATE memories SET uses = uses + 1, successes = successes + ?, win_rate = NULL, version = ? "
                "WHERE id = ?",
                (int(success), write.version, known),
            )
            before = {"uses": uses, "successes": successes, "win_rate": given}
            after = {"uses": uses + 1, "successes": successes + int(success), "win_rate": None}
            write.image(known, Image(before, after))
            rate = win_rate(uses + 1, successes + int(success))
            self._index.count(known, uses + 1, successes + int(success), rate)
        return credited

    def update(self, write: Write, memory_id: str, edit: Edit, encoded: Encoded | None, version: int) -> Stored:
        """Change the content of a memory that has the expected version."""
        row = write.connection.execute(
            f"{SELECT} WHERE id = ? AND namespace = ?", (memory_id, write.namespace)
        ).fetchone()
        check_edited(memory_id, None if row is None else stored(self._config.path, row).version, version)
        self._change(write, memory_id, edited(edit, encoded), encoded)
        return stored(self._config.path, write.connection.execute(f"{SELECT} WHERE id = ?", (memory_id,)).fetchone())

    def absorb(self, write: Write, ids: Sequence[str], checkpoint: str) -> int:
        """Mark memories as learned by a checkpoint."""
        known = [i for i in dict.fromkeys(ids) if self._has(write.namespace, i)]
        for memory_id in known:
            self._change(write, memory_id, {"absorbed": checkpoint})
        return len(known)

    def delete(self, write: Write, ids: Sequence[str]) -> int:
        """Forget memories; returns how many there were."""
        known = [i for i in dict.fromkeys(ids) if self._has(write.namespace, i)]
        self._drop(write, known)
        return len(known)


def _look(write: Write, memory_id: str) -> dict[str, str]:
    names = ("question", "workflow", "trust")
    row = write.connection.execute(f"SELECT {', '.join(names)} FROM memories WHERE id = ?", (memory_id,)).fetchone()
    return dict(zip(names, row, strict=True))
