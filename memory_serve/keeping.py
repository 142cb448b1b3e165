"""The memory itself, staying small: merging and dropping; see `memory_serve.keep` for the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memory_serve.changing import MemoryChanger
from memory_serve.keep import alike, surplus
from memory_serve.log import Image, Write
from memory_serve.protocol import Compacted
from memory_serve.ranking import best
from memory_serve.rows import Encoded
from memory_serve.rules import believable, mergeable, merged
from memory_serve.vectors import OUTCOMES, Bucket, Key
from mia.types import Outcome


class MemoryKeeper(MemoryChanger):
    """Keeps a memory small; see `MemoryReader`."""

    def compact(self, write: Write) -> Compacted:
        """Drop what weights have absorbed, merge what is nearly the same, evict what is too much."""
        keep = self._config.keep
        before = self._count(write)
        absorbed = []
        if keep.absorbed_uses:
            query = "SELECT id FROM memories WHERE namespace = ? AND absorbed != '' AND uses >= ? ORDER BY id"
            absorbed = [row[0] for row in write.connection.execute(query, (write.namespace, keep.absorbed_uses))]
            self._drop(write, absorbed)
        joined = evicted = 0
        for key in list(self._index.buckets(write.namespace)):
            joined += self._merge_all(write, key) if keep.merge else 0
            evicted += self._evict(write, [key], {}, keep.capacity)
        evicted += self._evict(write, list(self._index.buckets(write.namespace)), {}, keep.total)
        after = self._count(write)
        return Compacted(before=before, after=after, absorbed=len(absorbed), merged=joined, evicted=evicted)

    def _count(self, write: Write) -> int:
        query = "SELECT count(*) FROM memories WHERE namespace = ?"
        return int(write.connection.execute(query, (write.namespace,)).fetchone()[0])

    def _keep_small(self, write: Write, fresh: dict[str, Key]) -> dict[str, str]:
        """Apply the rules of `memory.keep` after memories came to buckets; which of them were merged into which."""
        into: dict[str, str] = {}
        for memory_id, key in fresh.items() if self._config.keep.merge else ():
            other = self._alike(memory_id, key)
            if other is None or not believable(write.state(memory_id), write.state(other)):
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
        same &= (bucket.captioned == captioned) & mergeable(bucket, key) & bucket.having(_outcome(bucket, row))
        same[row] = False
        found = best(similar, bucket.created, bucket.ids, same, 1)
        return bucket.ids[found[0]] if found else None

    def _merge_all(self, write: Write, key: Key) -> int:
        bucket = self._index.bucket(key)
        if bucket is None:
            return 0
        weights = (self._config.weights.question, self._config.weights.caption)
        count = 0
        for one, other in list(alike(bucket, self._config.keep.merge, weights, mergeable(bucket, key))):
            there = one in bucket.rows and other in bucket.rows
            if there and believable(write.state(one), write.state(other)):
                self._merge(write, one, other)
                count += 1
        return count

    def _merge(self, write: Write, one: str, other: str) -> str:
        """Make one memory of two; returns the id of the one that stays, which keeps its content."""
        a, b = write.state(one), write.state(other)
        assert a is not None
        assert b is not None
        stays, goes, new, runs = merged(a, b)
        self._drop(write, [goes["id"]])
        self._change(write, stays["id"], new)
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


def _outcome(bucket: Bucket, row: int) -> Outcome:
    return next(outcome for outcome in OUTCOMES if bucket.having(outcome)[row])
