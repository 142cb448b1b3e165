"""The memory itself, upkeep: clearing, undoing, encoding anew; see `memory_serve.core`."""

from __future__ import annotations

from collections.abc import Sequence

from local_search.protocol import Vectors
from memory_serve.core import EVERYWHERE, change
from memory_serve.log import Image, Write, read_images
from memory_serve.protocol import Change
from memory_serve.rows import STATE, State, to_blob
from memory_serve.rules import check_undo, nothing_to_undo
from memory_serve.writing import MemoryWriter


class MemoryCore(MemoryWriter):
    """The whole memory over one file; see `MemoryReader`."""

    def clear(self, write: Write, everything: bool) -> int:
        """Forget all memories of the namespace, or of all."""
        where, given = ("", ()) if everything else ("WHERE namespace = ?", (write.namespace,))
        rows = write.connection.execute(f"SELECT id FROM memories {where}", given).fetchall()
        if not rows:
            return 0
        write.namespace = EVERYWHERE if everything else write.namespace
        write.connection.execute(
            f"INSERT INTO images SELECT ?, id, {STATE}, NULL, vector, caption_vector FROM memories {where}",
            (write.enter(), *given),
        )
        write.connection.execute(
            f"INSERT INTO deleted SELECT id, ? FROM memories {where or 'WHERE true'} "
            "ON CONFLICT (id) DO UPDATE SET version = excluded.version",
            (write.version, *given),
        )
        write.connection.execute(f"DELETE FROM memories {where}", given)
        for (memory_id,) in rows:
            self._index.remove(memory_id)
        return len(rows)

    # ------------------------------------------------------------------------------------------ undoing

    def undo(self, write: Write, number: int | None) -> Change:
        """Take back a change; the taking back is a change itself, which can be taken back in its turn."""
        where = "number = ?" if number is not None else "? IS NULL AND action != 'undo' AND coalesce(undone, 0) <= 0"
        row = write.connection.execute(
            f"SELECT * FROM changes WHERE namespace IN (?, ?) AND {where} ORDER BY number DESC LIMIT 1",
            (write.namespace, EVERYWHERE, number),
        ).fetchone()
        if row is None or (row[5] or 0) > 0:
            raise nothing_to_undo(number)
        target, write.namespace = row[0], row[3]
        images = list(read_images(write.connection, target))
        current = {memory_id: write.state(memory_id) for memory_id, _ in images}
        for memory_id, image in images:
            check_undo(current[memory_id], target, memory_id, image, self._encoder)
        # What was new goes first: its runs may come back to another. What was there is taken as it was before all this.
        for memory_id, image in sorted(images, key=lambda pair: pair[1].before is not None):
            self._revert(write, current[memory_id], memory_id, image)
        self._mirror(write.connection, "version = ?", (write.version,))
        write.connection.execute("UPDATE changes SET undone = ? WHERE number = ?", (write.enter(), target))
        flipped: tuple[int] | None = (target,)
        while flipped:  # what an undo took back is in effect when the undo is not, and so on down to the first change
            query = "UPDATE changes SET undone = -undone WHERE abs(undone) = ? RETURNING number"
            flipped = write.connection.execute(query, flipped).fetchone()
        write.finish()
        write.images = {}
        row = write.connection.execute("SELECT * FROM changes WHERE number = ?", (target,)).fetchone()
        return change(write.connection, row)

    def _revert(self, write: Write, current: State | None, memory_id: str, image: Image) -> None:
        if image.before is None:
            self._drop(write, [memory_id] if current is not None else [])
            return
        if current is None:
            assert image.vector is not None
            self._put_back(write, image.before, image.vector, image.caption_vector)
            write.connection.execute("DELETE FROM deleted WHERE id = ?", (memory_id,))
            self._set_runs(write, memory_id, image.before["namespace"], image.before["runs"])
            return
        self._restore(write, current, image, image.before)

    def _restore(self, write: Write, current: State, image: Image, before: State) -> None:
        """Former values of some columns."""
        memory_id = str(current["id"])
        columns = {name: value for name, value in before.items() if name != "runs"}
        if "revision" in columns:
            columns["revision"] = current["revision"] + 1
        after = {**columns, **({"runs": before["runs"]} if "runs" in before else {})}
        vectors: tuple[bytes | None, bytes | None] = (None, None)
        changes: State = {**columns, "version": write.version}
        if image.vector is not None:
            vectors = write.vectors(memory_id)
            changes |= {"vector": image.vector, "caption_vector": image.caption_vector}
        if "runs" in before:
            self._set_runs(write, memory_id, current["namespace"], before["runs"])
        self._update(write, memory_id, changes)
        write.image(memory_id, Image({name: current[name] for name in after}, after, *vectors))

    # ------------------------------------------------------------------------------------------ another encoder

    def outdated(self, limit: int) -> list[tuple[str, str, str]]:
        """Id, question and caption of some memories whose vectors another encoder made."""
        with self._database.reading() as connection:
            return connection.execute(
                "SELECT id, question, caption FROM memories WHERE encoder != ? LIMIT ?", (self._encoder, limit)
            ).fetchall()

    def set_vectors(self, vectors: Sequence[tuple[str, Vectors, Vectors | None]]) -> None:
        """Put vectors of our encoder in the place of others; (id, question, caption) each."""
        with self._database.writing() as connection:
            query = "UPDATE counters SET value = value + 1 WHERE name = 'version' RETURNING value"
            ((version,),) = connection.execute(query).fetchall()
            connection.executemany(
                "UPDATE memories SET encoder = ?, vector = ?, caption_vector = ?, version = ? WHERE id = ?",
                [(self._encoder, to_blob(q), None if c is None else to_blob(c), version, i) for i, q, c in vectors],
            )
