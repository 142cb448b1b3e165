"""Builds the files of a bm25s index in bounded memory, shard by shard; the same scores to the last bit as bm25s itself.

bm25s holds a number for every word of the corpus in memory while it builds. Here a shard's words become postings on
disk (`write_postings`), sorted by word and passage. `merge` then numbers the words of all shards in alphabetical order
and works out the scores of a range of words at a time, shard after shard, in just the layout that `BM25.load` maps.
In memory are one shard's words, or one range's scores, and 20 bytes for each word of the vocabulary.
"""

from __future__ import annotations

import heapq
import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from local_search.bm25 import K1, B, Words
from local_search.passages import npy_header

Ints = NDArray[np.int32]

_WORDS, _COUNTS, _ROWS, _TIMES, _LENGTHS = "words.txt", "words.count", "postings.row", "postings.times", "rows.length"
"""Of a shard: its words in alphabetical order, a line each; in how many rows each occurs; for each word and row that
has it, in that order, the row's number within the shard and how often it occurs; the number of words of each row."""
_NUMBERS = "words.number"
"""The number of each of a shard's words in the whole corpus."""
_POSTING_BYTES = 64
"""Memory for a posting while scores are worked out, measured."""


class Vocabulary:
    """Numbers words in the order of their first occurrence."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, word: str) -> int:
        return self.numbers.setdefault(word, len(self.numbers))


def write_postings(texts: Iterable[str], folder: Path) -> int:
    """Write the postings of a shard's texts into `folder`; returns how many words the texts have."""
    vocabulary = Vocabulary()
    words = Words(vocabulary)
    flat, lengths = array("i"), array("i")
    for text in texts:
        found = words.of(text)
        flat.extend(found)
        lengths.append(len(found))
    by_name = sorted(vocabulary.numbers)
    (folder / _WORDS).write_text("".join(f"{word}\n" for word in by_name), encoding="utf-8", newline="\n")
    rank = np.empty(len(by_name), dtype=np.int64)
    rank[[vocabulary.numbers[word] for word in by_name]] = np.arange(len(by_name))
    rows = max(len(lengths), 1)
    keys = rank[np.frombuffer(flat, dtype=np.int32)] if flat else np.empty(0, dtype=np.int64)
    keys *= rows
    keys += np.repeat(np.arange(len(lengths)), np.frombuffer(lengths, dtype=np.int32)) if lengths else 0
    keys, times = np.unique(keys, return_counts=True)
    (keys % rows).astype(np.int32).tofile(folder / _ROWS)
    times.astype(np.int32).tofile(folder / _TIMES)
    np.bincount(keys // rows, minlength=len(by_name)).astype(np.int32).tofile(folder / _COUNTS)
    (folder / _LENGTHS).write_bytes(lengths.tobytes())
    return len(flat)


class Totals(NamedTuple):
    """Counts over the whole corpus."""

    words: int
    vocabulary: int
    postings: int


def merge(shards: Sequence[Path], folder: Path, memory: int, step: Callable[[int, int], None]) -> Totals:
    """Make the index of the shards that `write_postings` wrote, in `folder`.

    Args:
        shards: folders of the shards, in corpus order.
        folder: an empty folder.
        memory: bytes that may be used, beside 20 for each word of the vocabulary.
        step: told how many scores are done of how many.
    """
    lengths = [_size(shard / _LENGTHS) for shard in shards]
    words = sum(int(_ints(shard / _LENGTHS).sum()) for shard in shards)
    frequencies = _number_words(shards, folder, memory)
    corpus = _Corpus(shards, np.cumsum([0, *lengths]), words / max(sum(lengths), 1), frequencies)
    ends = np.zeros(len(frequencies) + 1, dtype=np.int64)
    np.cumsum(frequencies, out=ends[1:])
    np.save(folder / "indptr.csc.index.npy", ends)
    total = int(ends[-1])
    cuts = _cuts(ends, max(memory // _POSTING_BYTES, 1))
    with (folder / "data.csc.index.npy").open("wb") as data, (folder / "indices.csc.index.npy").open("wb") as indices:
        npy_header(data, np.dtype(np.float32), total)
        npy_header(indices, np.dtype(np.int32), total)
        done = 0
        for scores, rows in corpus.columns(cuts, ends):
            scores.tofile(data)
            rows.tofile(indices)
            done += len(rows)
            step(done, total)
    _write_params(folder, sum(lengths))
    return Totals(words, len(frequencies), total)


def _number_words(shards: Sequence[Path], folder: Path, memory: int) -> NDArray[np.int64]:
    """Number the words of all shards from 0 in alphabetical order, in the shards and in bm25s' vocabulary.

    Returns:
        In how many rows each word occurs.
    """
    chunk = min(max(memory // (16 * len(shards)), 1 << 12), 1 << 18)
    numbers = [array("i") for _ in shards]
    for shard in shards:
        (shard / _NUMBERS).write_bytes(b"")
    last, count = "", 0
    with (folder / "vocab.index.json").open("w", encoding="utf-8", newline="\n") as vocabulary:
        vocabulary.write("{")
        for word, i in heapq.merge(*(_named(shard / _WORDS, i, chunk) for i, shard in enumerate(shards))):
            if word != last:
                vocabulary.write(f'{"," if count else ""}"{word}":{count}')  # word characters need no escapes
                last, count = word, count + 1
            numbers[i].append(count - 1)
            if len(numbers[i]) * 4 >= chunk:
                _flush(numbers[i], shards[i] / _NUMBERS)
        vocabulary.write("}")
    frequencies = np.zeros(count, dtype=np.int64)
    for shard, rest in zip(shards, numbers, strict=True):
        _flush(rest, shard / _NUMBERS)
        frequencies[_ints(shard / _NUMBERS)] += _ints(shard / _COUNTS)
    return frequencies


def _flush(numbers: array[int], file: Path) -> None:
    with file.open("ab") as end:
        end.write(numbers.tobytes())
    del numbers[:]


def _named(file: Path, shard: int, chunk: int) -> Iterator[tuple[str, int]]:
    """The words of a file, each with the number of its shard. The file is open only while a chunk of it is read."""
    offset, rest = 0, b""
    while True:
        with file.open("rb") as words:
            words.seek(offset)
            read = words.read(chunk)
        if not read:
            return
        offset += len(read)
        *whole, rest = (rest + read).split(b"\n")
        for word in whole:
            yield word.decode("utf-8"), shard


def _cuts(ends: NDArray[np.int64], most: int) -> list[int]:
    """Cuts the words into ranges that have at most so many postings, or one word."""
    cuts = [0]
    while cuts[-1] < len(ends) - 1:
        reach = int(np.searchsorted(ends, ends[cuts[-1]] + most, side="right")) - 1
        cuts.append(max(reach, cuts[-1] + 1))
    return cuts


class _Corpus(NamedTuple):
    """All shards, with what scores depend on beside a single posting."""

    shards: Sequence[Path]
    starts: NDArray[np.int64]
    """Number of each shard's first row."""
    mean: float
    """Mean number of words of a row."""
    frequencies: NDArray[np.int64]

    def columns(
        self, cuts: Sequence[int], ends: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int32]]]:
        """Scores and row numbers of each range of words, by word and row."""
        weights = _weights(self.frequencies, int(self.starts[-1]))
        slices = [_slices(shard, cuts) for shard in self.shards]
        for part, (first, end) in enumerate(pairwise(cuts)):
            heads = ends[first:end] - ends[first]
            size = int(ends[end] - ends[first])
            scores, rows = np.empty(size, dtype=np.float32), np.empty(size, dtype=np.int32)
            for number, shard in enumerate(self.shards):
                words, postings = slices[number]
                if words[part] == words[part + 1]:
                    continue
                terms = _ints(shard / _NUMBERS, words[part], words[part + 1])
                counts = _ints(shard / _COUNTS, words[part], words[part + 1])
                span = (postings[part], postings[part + 1])
                places = np.repeat(heads[terms - first] - np.cumsum(counts) + counts, counts)
                places += np.arange(len(places))
                heads[terms - first] += counts
                local = _ints(shard / _ROWS, *span)
                scores[places] = self._scores(shard, local, _ints(shard / _TIMES, *span), weights[terms], counts)
                rows[places] = local + np.int32(self.starts[number])
            yield scores, rows

    def _scores(
        self, shard: Path, rows: Ints, times: Ints, weights: NDArray[np.float32], counts: Ints
    ) -> NDArray[np.floating[Any]]:
        """Lucene's BM25 (Kamphuis et al. 2020, table 1), with bm25s' own order of operations and roundings."""
        lengths = _ints(shard / _LENGTHS)
        divisors = K1 * ((1 - B) + B * lengths / self.mean)
        frequency = times.astype(np.float32)
        return np.repeat(weights, counts) * (frequency / (divisors[rows] + frequency))


def _weights(frequencies: NDArray[np.int64], rows: int) -> NDArray[np.float32]:
    """The inverse document frequency of each word."""
    distinct, which = np.unique(frequencies, return_inverse=True)
    logs = [math.log(1 + (rows - count + 0.5) / (count + 0.5)) for count in distinct.tolist()]
    return np.array(logs, dtype=np.float32)[which]


def _slices(shard: Path, cuts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Where each range of words begins, and ends, among a shard's words and its postings."""
    words = np.searchsorted(_ints(shard / _NUMBERS), cuts)
    ends = np.concatenate([[0], np.cumsum(_ints(shard / _COUNTS), dtype=np.int64)])
    return words.tolist(), ends[words].tolist()


def _size(file: Path) -> int:
    return file.stat().st_size // 4


def _ints(file: Path, start: int = 0, end: int = -1) -> Ints:
    """The 32-bit numbers of a file, or those from `start` on and before `end`."""
    return np.fromfile(file, dtype=np.int32, count=end - start if end >= 0 else -1, offset=4 * start)


def _write_params(folder: Path, rows: int) -> None:
    """The parameters that `BM25.load` reads."""
    params: dict[str, Any] = {
        "k1": K1,
        "b": B,
        "delta": 0.5,
        "method": "lucene",
        "idf_method": "lucene",
        "dtype": "float32",
        "int_dtype": "int32",
        "num_docs": rows,
        "version": version("bm25s"),
        "backend": "numpy",
    }
    (folder / "params.index.json").write_text(json.dumps(params, indent=4), encoding="utf-8")
