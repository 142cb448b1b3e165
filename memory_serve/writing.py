"""The memory itself, writing: adding, crediting, editing, forgetting, compacting; see `memory_serve.core`.

Calls that wait are done in one transaction, each in a savepoint of its own: together they wait for the disk once, and
one that fails takes nothing with it. Nothing is acknowledged before the commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory_serve.core import MemoryReader
from memory_serve.duplicates import decide, same_question, twins
from memory_serve.log import Image, Pending, Write, differences, prune
from memory_serve.near import Place, Spot
from memory_serve.protocol import TRUSTS, Action, Added, Credited, Draft, Edit, Stored
from memory_serve.ranking import win_rate
from memory_serve.rows import SELECT, Encoded, State, fresh_entry, inserted, new_id, stored, to_blob, values
from memory_serve.vectors import Key
from mia.errors import DataError, MemoryStoreError
from mia.types import Outcome, now

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


class MemoryWriter(MemoryReader):
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

    def _keep_small(self, write: Write, fresh: dict[str, Key]) -> dict[str, str]:
        """Apply the rules of `memory.keep` after memories came to buckets; which of them were merged into which."""
        raise NotImplementedError

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
        # A run is stored once; only a verdict that came later than the run makes it worth looking at again.
        if known and (known[1] != "unjudged" or draft.outcome == "unjudged"):
            return Added(id=known[0], action="known")
        action, memory_id = self._decide(write, draft, encoded, spot)
        if action == "stored":
            memory_id = new_id()
            row = self._row(write.namespace, memory_id, draft, encoded.bucket)
            self._insert(write, row, encoded, spot.place, {run: draft.outcome} if run and not known else {})
        elif action == "replaced":
            self._replace(write, memory_id, draft, encoded)
        if run:
            if known or action != "stored":
                self._assign(write, memory_id, run, draft.outcome, known[0] if known else None)
            runs[run] = memory_id, draft.outcome
        return Added(id=memory_id, action=action)

    def _decide(self, write: Write, draft: Draft, encoded: Encoded, spot: Spot) -> tuple[Any, str]:
        bucket = self._index.bucket((write.namespace, *encoded.bucket))
        found: dict[Outcome, str] = {}
        if bucket is not None:
            rows = bucket.near(encoded.question, spot)
            if len(rows):
                similar = self._similarities(encoded, bucket, rows)
                captioned = encoded.caption is not None
                threshold = self._config.duplicate
                found = twins(bucket, rows, similar, threshold, encoded.bucket[0], captioned, draft.source_id)
        if not found:
            return "stored", ""

        def question(memory_id: str) -> str:
            row = write.connection.execute("SELECT question FROM memories WHERE id = ?", (memory_id,)).fetchone()
            return str(row[0])

        found = {o: i for o, i in found.items() if same_question(draft.question, question(i))}

        def twin(memory_id: str) -> tuple[str, Any]:
            row = write.connection.execute("SELECT workflow, trust FROM memories WHERE id = ?", (memory_id,)).fetchone()
            return str(row[0]), row[1]

        return decide(
            draft.outcome,
            found,
            lambda i: len(draft.workflow.split()) < len(twin(i)[0].split()),
            lambda i: TRUSTS.index(draft.trust) > TRUSTS.index(twin(i)[1]),
        )

    def _row(self, namespace: str, memory_id: str, draft: Draft, bucket: tuple[str, str]) -> State:
        return {
            "id": memory_id,
            "question": draft.question,
            "caption": draft.caption,
            "workflow": draft.workflow,
            "plan": draft.plan,
            "outcome": draft.outcome,
            "uses": 0,
            "successes": 0,
            "modality": bucket[0],
            "category": bucket[1],
            "created": now().isoformat(timespec="microseconds"),
            "source_id": draft.source_id,
            "trajectory_id": draft.trajectory_id,
            "provenance": json.dumps(draft.provenance, ensure_ascii=False) if draft.provenance else "{}",
            "namespace": namespace,
            "revision": 1,
            "trust": draft.trust,
            "absorbed": "",
            "merged_from": "[]",
            "win_rate": None,
            "original": "{}",
        }

    def _insert(self, write: Write, row: State, encoded: Encoded, place: Place, runs: Mapping[str, str]) -> None:
        """A new memory and runs that nobody had stored."""
        caption = None if encoded.caption is None else to_blob(encoded.caption)
        state = {**row, "encoder": self._encoder, "runs": runs}
        self._put_back(write, state, to_blob(encoded.question), caption)
        for run, outcome in runs.items():
            write.pending.runs[write.namespace, run] = row["id"], outcome
        self._index.append(fresh_entry(row, encoded), place)

    def _put_back(self, write: Write, state: State, vector: bytes, caption: bytes | None) -> None:
        """Insert a memory whose whole state is known; the mirror does not learn of it here."""
        write.pending.memories.append(inserted(state, write.version, vector, caption))
        write.image(state["id"], Image(None, state))

    def _replace(self, write: Write, memory_id: str, draft: Draft, encoded: Encoded) -> None:
        """New content under the old id; counters and time of creation stay."""
        row = self._row(write.namespace, memory_id, draft, encoded.bucket)
        for kept in ("id", "created", "uses", "successes", "merged_from", "win_rate", "revision"):
            del row[kept]
        self._change(write, memory_id, row, encoded)

    def _assign(self, write: Write, memory_id: str, run: str, outcome: str, former: str | None) -> None:
        """Let a run count as stored in a memory; it may have counted as stored in another."""
        holders = dict.fromkeys([memory_id, *([former] if former else [])])
        before = {holder: self._runs(write, holder) for holder in holders}
        write.connection.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?) ON CONFLICT (namespace, trajectory_id) "
            "DO UPDATE SET memory_id = excluded.memory_id, outcome = excluded.outcome",
            (write.namespace, run, memory_id, outcome),
        )
        for holder in holders:
            after = {name: o for name, o in before[holder].items() if name != run}
            if holder == memory_id:
                after[run] = outcome
            write.image(holder, Image({"runs": before[holder]}, {"runs": after}))

    def _runs(self, write: Write, memory_id: str) -> dict[str, str]:
        image = write.images.get(memory_id)
        if image is not None and image.after is not None and "runs" in image.after:
            return dict(image.after["runs"])
        query = "SELECT trajectory_id, outcome FROM runs WHERE memory_id = ?"
        return dict(write.connection.execute(query, (memory_id,)).fetchall())

    def _change(self, write: Write, memory_id: str, new: State, encoded: Encoded | None = None) -> None:
        """New values of some columns of a memory, and new vectors, if its texts changed."""
        before = write.state(memory_id)
        assert before is not None
        after = {**new, "revision": before["revision"] + 1}
        columns: State = {**after, "version": write.version}
        old, old_caption = None, None
        if encoded is not None:
            old, old_caption = write.vectors(memory_id)
            columns |= {
                "encoder": self._encoder,
                "vector": to_blob(encoded.question),
                "caption_vector": None if encoded.caption is None else to_blob(encoded.caption),
            }
        self._update(write, memory_id, columns)
        image = Image(*differences(before, after), old, old_caption)
        if encoded is not None and image.before is not None and image.after is not None:
            image.before["encoder"], image.after["encoder"] = before["encoder"], self._encoder
        write.image(memory_id, image)

    def _update(self, write: Write, memory_id: str, columns: State) -> None:
        changes = ", ".join(f"{name} = ?" for name in columns)
        write.connection.execute(f"UPDATE memories SET {changes} WHERE id = ?", (*columns.values(), memory_id))
        self._mirror(write.connection, "id = ?", (memory_id,))

    def load_memories(self, write: Write, memories: Sequence[Stored], encoded: Sequence[Encoded]) -> list[Added]:
        """Store exported memories as they are."""
        places = self._index.places([e.question for e in encoded])
        return [self._load_one(write, *given) for given in zip(memories, encoded, places, strict=True)]

    def _load_one(self, write: Write, memory: Stored, encoded: Encoded, place: Place) -> Added:
        memory = memory.model_copy(update={"namespace": write.namespace})
        row = write.connection.execute(f"{SELECT} WHERE id = ?", (memory.id,)).fetchone()
        if row is not None:
            mine = stored(self._config.path, row)
            if mine.namespace != write.namespace:
                raise DataError(f"memory {memory.id!r} belongs to another namespace", code="conflict", status=409)
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

    def _read_runs(self, write: Write, memory_id: str) -> dict[str, str]:
        query = "SELECT trajectory_id, outcome FROM runs WHERE memory_id = ?"
        return dict(write.connection.execute(query, (memory_id,)).fetchall())

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
        if row is None:
            raise DataError(f"no memory {memory_id!r}", code="not_found", status=404)
        mine = stored(self._config.path, row)
        if mine.version != version:
            raise DataError(
                f"memory {memory_id} has version {mine.version}, not {version}",
                remedy="read it again and repeat the change",
                code="conflict",
                status=409,
            )
        new: State = {**edit.model_dump(exclude_none=True), "absorbed": ""}
        if encoded is not None:
            new |= {"modality": encoded.bucket[0], "category": encoded.bucket[1]}
        self._change(write, memory_id, new, encoded)
        return stored(self._config.path, write.connection.execute(f"{SELECT} WHERE id = ?", (memory_id,)).fetchone())

    def absorb(self, write: Write, ids: Sequence[str], checkpoint: str) -> int:
        """Mark memories as learned by a checkpoint."""
        known = [i for i in dict.fromkeys(ids) if self._has(write.namespace, i)]
        for memory_id in known:
            self._change(write, memory_id, {"absorbed": checkpoint})
        return len(known)

    def _has(self, namespace: str, memory_id: str) -> bool:
        place = self._index.place(memory_id)
        return place is not None and place[0] == namespace

    # ------------------------------------------------------------------------------------------ forgetting

    def delete(self, write: Write, ids: Sequence[str]) -> int:
        """Forget memories; returns how many there were."""
        known = [i for i in dict.fromkeys(ids) if self._has(write.namespace, i)]
        self._drop(write, known)
        return len(known)

    def _drop(self, write: Write, ids: Iterable[str]) -> None:
        for memory_id in ids:
            write.image(memory_id, Image(write.state(memory_id), None, *write.vectors(memory_id)))
            write.connection.execute("DELETE FROM memories WHERE id = ?", (memory_id,))
            write.connection.execute(
                "INSERT INTO deleted VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET version = excluded.version",
                (memory_id, write.version),
            )
            self._index.remove(memory_id)
