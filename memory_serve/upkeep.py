"""The memory itself, upkeep: clearing, compacting, undoing, encoding anew; see `memory_serve.core`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from local_search.protocol import Vectors
from memory_serve.core import EVERYWHERE, change
from memory_serve.duplicates import same_question
from memory_serve.keep import alike, surplus
from memory_serve.log import Image, Write, read_images
from memory_serve.protocol import TRUSTS, Change, Compacted
from memory_serve.ranking import best
from memory_serve.rows import STATE, Encoded, State, to_blob
from memory_serve.vectors import OUTCOMES, Bucket, Key
from memory_serve.writing import MemoryWriter
from mia.errors import DataError
from mia.types import Outcome


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

    # ------------------------------------------------------------------------------------------ staying small

    def compact(self, write: Write) -> Compacted:
        """Drop what weights have absorbed, merge what is nearly the same, evict what is too much."""
        keep = self._config.keep
        before = self._count(write)
        absorbed = []
        if keep.absorbed_uses:
            query = "SELECT id FROM memories WHERE namespace = ? AND absorbed != '' AND uses >= ? ORDER BY id"
            absorbed = [row[0] for row in write.connection.execute(query, (write.namespace, keep.absorbed_uses))]
            self._drop(write, absorbed)
        merged = evicted = 0
        for key in list(self._index.buckets(write.namespace)):
            merged += self._merge_all(write, key) if keep.merge else 0
            evicted += self._evict(write, [key], {}, keep.capacity)
        evicted += self._evict(write, list(self._index.buckets(write.namespace)), {}, keep.total)
        after = self._count(write)
        return Compacted(before=before, after=after, absorbed=len(absorbed), merged=merged, evicted=evicted)

    def _count(self, write: Write) -> int:
        query = "SELECT count(*) FROM memories WHERE namespace = ?"
        return int(write.connection.execute(query, (write.namespace,)).fetchone()[0])

    def _keep_small(self, write: Write, fresh: dict[str, Key]) -> dict[str, str]:
        into: dict[str, str] = {}
        for memory_id, key in fresh.items() if self._config.keep.merge else ():
            other = self._alike(memory_id, key)
            if other is None or not _believable(write, memory_id, other):
                continue
            if self._merge(write, memory_id, other) == other:
                into[memory_id] = other
        for key in sorted(set(fresh.values())):
            self._evict(write, [key], fresh, self._config.keep.capacity)
        if self._config.keep.total:
            self._evict(write, list(self._index.buckets(write.namespace)), fresh, self._config.keep.total)
        return into

    def _alike(self, memory_id: str, key: Key) -> str | None:
        """The most similar memory of the same outcome that a memory should be merged with."""
        bucket = self._index.bucket(key)
        if bucket is None or memory_id not in bucket.rows:
            return None  # merged before
        row = bucket.rows[memory_id]
        captioned = bool(bucket.captioned[row])
        caption = bucket.captions[row] if bucket.captions is not None and captioned else None
        similar = self._similarities(Encoded(key[1:], bucket.questions[row], caption), bucket)
        same = similar >= self._config.keep.merge
        same &= (bucket.captioned == captioned) & _mergeable(bucket, key) & bucket.having(_outcome(bucket, row))
        same[row] = False
        found = best(similar, bucket.created, bucket.ids, same, 1)
        return bucket.ids[found[0]] if found else None

    def _merge_all(self, write: Write, key: Key) -> int:
        bucket = self._index.bucket(key)
        if bucket is None:
            return 0
        weights = (self._config.weights.question, self._config.weights.caption)
        merged = 0
        for one, other in list(alike(bucket, self._config.keep.merge, weights, _mergeable(bucket, key))):
            if one in bucket.rows and other in bucket.rows and _believable(write, one, other):
                self._merge(write, one, other)
                merged += 1
        return merged

    def _merge(self, write: Write, one: str, other: str) -> str:
        """Make one memory of two; returns the id of the one that stays, which keeps its content."""
        a, b = write.state(one), write.state(other)
        assert a is not None
        assert b is not None
        stays, goes = (a, b) if _stays(a, b) else (b, a)
        self._drop(write, [goes["id"]])
        names = [*_ids(stays), goes["id"], *_ids(goes)]
        counters = {name: stays[name] + goes[name] for name in ("uses", "successes")}
        self._change(write, stays["id"], {**counters, "win_rate": None, "merged_from": _listed(names)})
        runs = {**goes["runs"], **stays["runs"]}
        if runs != stays["runs"]:
            self._set_runs(write, stays["id"], stays["namespace"], runs)
            write.image(stays["id"], Image({"runs": stays["runs"]}, {"runs": runs}))
        return str(stays["id"])

    def _evict(self, write: Write, keys: Sequence[Key], fresh: Mapping[str, object], capacity: int) -> int:
        """Drop what some buckets hold beyond a capacity that they share."""
        buckets = [bucket for key in keys if (bucket := self._index.bucket(key)) is not None]
        weights = (self._config.weights.question, self._config.weights.caption)
        dropped = surplus(buckets, capacity, self._config.keep, weights, fresh)
        self._drop(write, dropped)
        return len(dropped)

    # ------------------------------------------------------------------------------------------ undoing

    def undo(self, write: Write, number: int | None) -> Change:
        """Take back a change; the taking back is a change itself, which can be taken back in its turn."""
        where = "number = ?" if number is not None else "? IS NULL AND action != 'undo' AND coalesce(undone, 0) <= 0"
        row = write.connection.execute(
            f"SELECT * FROM changes WHERE namespace IN (?, ?) AND {where} ORDER BY number DESC LIMIT 1",
            (write.namespace, EVERYWHERE, number),
        ).fetchone()
        if row is None or (row[5] or 0) > 0:
            what = "nothing to undo" if number is None else f"no change {number} that is not undone already"
            raise DataError(what, remedy="`mia memory undo --list` shows the changes", code="not_found", status=404)
        target, write.namespace = row[0], row[3]
        images = list(read_images(write.connection, target))
        current = {memory_id: write.state(memory_id) for memory_id, _ in images}
        for memory_id, image in images:
            self._may_revert(current[memory_id], target, memory_id, image)
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

    def _may_revert(self, current: State | None, number: int, memory_id: str, image: Image) -> None:
        if not _is_as_left(current, image):
            raise DataError(
                f"memory {memory_id} has changed since change {number}",
                remedy="undo the later changes first (`mia memory undo --list` shows them)",
                code="conflict",
                status=409,
            )
        if image.before is not None and image.vector is not None and image.before["encoder"] != self._encoder:
            raise DataError(
                f"change {number} is from before the memories were encoded anew by {self._encoder}",
                remedy=f"open the memory with {image.before['encoder']}, or restore a backup",
                code="conflict",
                status=409,
            )

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

    def _set_runs(self, write: Write, memory_id: str, namespace: str, runs: Mapping[str, str]) -> None:
        write.connection.execute("DELETE FROM runs WHERE memory_id = ?", (memory_id,))
        write.connection.executemany(
            "INSERT INTO runs VALUES (?, ?, ?, ?) ON CONFLICT (namespace, trajectory_id) "
            "DO UPDATE SET memory_id = excluded.memory_id, outcome = excluded.outcome",
            [(namespace, run, memory_id, outcome) for run, outcome in runs.items()],
        )

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


def _believable(write: Write, one: str, other: str) -> bool:
    """Whether the vectors of two memories say what their whole questions say; see `same_question`."""
    a, b = write.state(one), write.state(other)
    return a is not None and b is not None and same_question(a["question"], b["question"])


def _mergeable(bucket: Bucket, key: Key) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """`Who is this?` asked of two pictures is not one question; without captions nothing tells them apart."""
    return bucket.captioned.copy() if key[1] == "text-image" else np.ones(len(bucket), np.bool_)


def _outcome(bucket: Bucket, row: int) -> Outcome:
    return next(outcome for outcome in OUTCOMES if bucket.having(outcome)[row])


def _stays(a: State, b: State) -> bool:
    """Whether a stays when a and b are merged: what rests on more; of successes the shorter, of others the newer."""
    if a["trust"] != b["trust"]:
        return TRUSTS.index(a["trust"]) < TRUSTS.index(b["trust"])
    older = (a["created"], a["id"]) < (b["created"], b["id"])
    if a["outcome"] != "correct":
        return not older
    words = len(a["workflow"].split()), len(b["workflow"].split())
    return words[0] < words[1] or (words[0] == words[1] and older)


def _is_as_left(current: State | None, image: Image) -> bool:
    """Whether a memory is as a change left it; its version may have gone up and down again since."""
    if current is None or image.after is None:
        return current is None and image.after is None
    ignored = {"revision"} | ({"encoder"} if image.before is None else set())
    return all(current[name] == value for name, value in image.after.items() if name not in ignored)


def _ids(state: State) -> list[str]:
    found: list[str] = json.loads(state["merged_from"])
    return found


def _listed(ids: Sequence[str]) -> str:
    return json.dumps(list(dict.fromkeys(ids)))
