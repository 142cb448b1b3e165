"""The memory itself, the single changes: rows, runs, images for the log, and the mirror; see `memory_serve.core`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from memory_serve.core import MemoryReader
from memory_serve.log import Image, Write, differences
from memory_serve.near import Place
from memory_serve.rows import Encoded, State, fresh_entry, inserted, to_blob


class MemoryChanger(MemoryReader):
    """Changes memories one by one inside a call; see `MemoryReader`."""

    def _has(self, namespace: str, memory_id: str) -> bool:
        place = self._index.place(memory_id)
        return place is not None and place[0] == namespace

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

    def _drop(self, write: Write, ids: Iterable[str]) -> None:
        for memory_id in ids:
            write.image(memory_id, Image(write.state(memory_id), None, *write.vectors(memory_id)))
            write.connection.execute("DELETE FROM memories WHERE id = ?", (memory_id,))
            write.connection.execute(
                "INSERT INTO deleted VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET version = excluded.version",
                (memory_id, write.version),
            )
            self._index.remove(memory_id)

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
        return self._read_runs(write, memory_id)

    def _read_runs(self, write: Write, memory_id: str) -> dict[str, str]:
        query = "SELECT trajectory_id, outcome FROM runs WHERE memory_id = ?"
        return dict(write.connection.execute(query, (memory_id,)).fetchall())

    def _set_runs(self, write: Write, memory_id: str, namespace: str, runs: Mapping[str, str]) -> None:
        write.connection.execute("DELETE FROM runs WHERE memory_id = ?", (memory_id,))
        write.connection.executemany(
            "INSERT INTO runs VALUES (?, ?, ?, ?) ON CONFLICT (namespace, trajectory_id) "
            "DO UPDATE SET memory_id = excluded.memory_id, outcome = excluded.outcome",
            [(namespace, run, memory_id, outcome) for run, outcome in runs.items()],
        )
