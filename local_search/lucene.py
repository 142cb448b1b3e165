"""BM25 by Lucene, through Anserini, pyserini's Java side, with pyserini's defaults: k1 0.9, b 0.4, English stems.

The index in `lucene/` is a plain Lucene index with the corpus' own ids, which pyserini reads too; a ready one of
pyserini's can be taken over. Rankings are those of pyserini's `LuceneSearcher`, so ties are broken by id as text.
Left out: other analysers, RM3, positions and stored texts (passages are in the index folder anyway).
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from local_search.corpus import Row
from local_search.java import java_classes
from local_search.ranking import Ranking
from mia.errors import DataError
from mia.extras import need

K1, B = 0.9, 0.4
FOLDER = "segments"
ROWS = "rows.npy"
_CHUNK = 1000
_BUFFER_MB = 256
"""Java memory that fills before Lucene writes a segment: what a build needs beside the corpus it reads."""


def build(rows: Iterable[Row], folder: Path, step: Callable[[int], None]) -> None:
    """Index rows into `folder`, by as many threads as there are cores; `step` is told how many are done.

    Raises:
        ConfigError: Java or pyserini is missing.
        DataError: Lucene did not take a row, or could not write.
    """
    classes = java_classes()
    (folder / FOLDER).mkdir()
    seen = _Ids()
    with _java_faults(folder):
        words = ["-index", str(folder / FOLDER), "-input", "", "-collection", "JsonCollection"]
        words += ["-threads", str(os.cpu_count() or 1), "-memoryBuffer", str(_BUFFER_MB)]
        indexer = classes("io.anserini.index.SimpleIndexer")(words)
        rest, done = iter(rows), 0
        while chunk := list(islice(rest, _CHUNK)):
            # ASCII alone crosses the bridge to Java: it would mangle what lies beyond 16 bits.
            texts = [json.dumps({"id": row.id, "contents": row.contents}) for row in chunk]
            taken = indexer.addRawDocuments(texts)
            if taken != len(chunk):
                raise DataError(
                    f"Lucene took {taken} of the rows {chunk[0].id!r} to {chunk[-1].id!r}",
                    remedy="look for odd rows among them; an id has at most 32766 bytes",
                    code="broken_row",
                )
            seen.add(row.id for row in chunk)
            step(done := done + len(chunk))
        indexer.close()
    (folder / FOLDER / "write.lock").unlink(missing_ok=True)
    _write_numbers(folder, seen)


def take_over(ready: Path, folder: Path, ids: Iterable[str]) -> None:
    """Copy a ready Lucene index, of pyserini's or Anserini's making, into `folder`.

    Args:
        ready: folder of the Lucene index.
        folder: where `Lucene` will read it.
        ids: of the corpus it was made of, in corpus order.

    Raises:
        ConfigError: Java or pyserini is missing.
        DataError: `ready` is no Lucene index that can be read, or holds other ids than `ids`.
    """
    if not any(ready.glob("segments_*")):
        raise DataError(
            f"{ready} is no Lucene index (no segments_N)",
            remedy="give the folder that pyserini wrote",
            code="not_an_index",
        )
    shutil.copytree(ready, folder / FOLDER, ignore=shutil.ignore_patterns("write.lock"))
    seen = _Ids()
    seen.add(ids)
    _write_numbers(folder, seen)


class Lucene:
    """A ranker over an index that `build` or `take_over` wrote.

    Raises:
        ConfigError: Java or pyserini is missing.
        DataError: Lucene cannot read the index.
    """

    def __init__(self, folder: Path) -> None:
        self._rows: NDArray[np.int64] = np.load(folder / ROWS, mmap_mode="r")
        self._searcher = _searcher(folder)

    def top(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """See `Ranker`, but ties are broken by id. Rows that share no word with the query are no hits."""
        try:
            return [self._top(query, k) for query in queries]
        finally:
            if threading.current_thread() is not threading.main_thread():
                need("jnius", "lucene").detach()  # else Java keeps the thread's record after its end

    def _top(self, query: str, k: int) -> Ranking:
        # Beyond 16 bits nothing is a word to Lucene's English analyser, and the bridge would mangle it.
        plain = "".join(char if char <= "\uffff" else " " for char in query)
        hits = self._searcher.search(plain, k)
        return [(int(self._rows[hit.lucene_docid]), float(hit.score)) for hit in hits]


def _searcher(folder: Path) -> Any:
    classes = java_classes()
    with _java_faults(folder):
        searcher = classes("io.anserini.search.SimpleSearcher")(str(folder / FOLDER))
        searcher.set_bm25(K1, B)
        searcher.search("warm", 1)  # makes what it makes at the first search, which is not safe to do twice at once
    return searcher


class _Ids:
    """Digests of ids in the order they came: 8 bytes for each, so that a whole Wikipedia's fit into memory."""

    def __init__(self) -> None:
        self._digests = bytearray()

    def add(self, ids: Iterable[str]) -> None:
        for text in ids:
            self._digests += blake2b(text.encode("utf-8"), digest_size=8).digest()

    def array(self) -> NDArray[np.uint64]:
        return np.frombuffer(self._digests, dtype=np.uint64)


def _write_numbers(folder: Path, corpus: _Ids) -> None:
    """Write the corpus row of each of Lucene's document numbers (int64), which merges have put in another order."""
    ids = _Ids()
    ids.add(_lucene_ids(folder))
    wanted, found = corpus.array(), ids.array()
    order = np.argsort(wanted, kind="stable")
    wanted = wanted[order]
    places = np.searchsorted(wanted, found)
    fits = len(wanted) == len(found) and bool((wanted[np.minimum(places, len(wanted) - 1)] == found).all())
    if not fits or len(np.unique(found)) != len(found):
        raise DataError(
            f"the Lucene index has {len(found)} documents, which are not the {len(wanted)} rows of the corpus",
            remedy="give the corpus it was made of, with an id of its own for each row",
            code="other_corpus",
        )
    np.save(folder / ROWS, order[places].astype(np.int64))


def _lucene_ids(folder: Path) -> Iterator[str]:
    classes = java_classes()
    with _java_faults(folder):
        tools = classes("io.anserini.index.IndexReaderUtils")
        reader = tools.getReader(str(folder / FOLDER))
        try:
            for number in range(reader.maxDoc()):
                name = tools.convertLuceneDocidToDocid(reader, number)
                yield name
        finally:
            reader.close()


@contextmanager
def _java_faults(folder: Path) -> Iterator[None]:
    try:
        yield
    except need("jnius", "lucene").JavaException as error:
        raise DataError(
            f"Lucene cannot use {folder}: {str(error).splitlines()[0]}",
            remedy="rebuild the index; check the permissions and the space left",
            code="damaged_index",
        ) from error
