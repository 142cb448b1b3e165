"""A vector index on disk: opened memory-mapped, asked with vectors, answers rows by inner product.

Exact indexes are scanned by FAISS and their best rows scored anew in float64, so that neither a query's neighbours in a
batch nor the number of threads change a score. Approximate ones answer query by query for the same reason.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from local_search.dense_kinds import VectorSpec
from local_search.protocol import Vectors
from local_search.ranking import Ranking, best
from mia.errors import DataError
from mia.extras import need

FILE = "vectors.faiss"
SPEC = "vectors.json"
SECOND_LOOK = "vectors.i8"
DECIMALS = 6
"""Scores are rounded to this: float32 sums of equal texts differ in the 7th decimal and would break ties by chance."""
_SPARE = 16
"""Rows fetched beyond k: rows that share the k-th score must all be seen before they are sorted."""
_MARGIN = 1e-5
"""More than float32 sums over unit vectors can be off."""
_BLOCK_BYTES = 256 * 2**20
"""One query scans this much on one thread, so that many workers behave; larger indexes are scanned by all cores."""

Rows = NDArray[np.int64]


class VectorIndex:
    """An index that `dense_build` wrote, or any FAISS index of inner products.

    Args:
        folder: where it lies.

    Raises:
        DataError: the index or its record cannot be read, or it does not rank by inner product.
        ConfigError: FAISS is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self.spec = read_spec(folder)
        self._faiss = need("faiss", "search")
        self._index = open_faiss(folder / FILE)
        self.count, self.dim = int(self._index.ntotal), int(self._index.d)
        self._search: _Exact | _Approximate
        if isinstance(self._index, self._faiss.IndexFlat):
            self._search = _Exact(self._faiss, self._index)
        else:
            eight = EightBit(folder / SECOND_LOOK, self.dim) if self.spec and self.spec.kind == "ivf-pq" else None
            self._search = _Approximate(self._faiss, self._index, self.spec, eight)

    def top(self, vectors: Vectors, k: int) -> list[Ranking]:
        """The best `k` rows for each of the vectors (n, dim); the ranking of one does not depend on the others."""
        if vectors.shape[1] != self.dim:
            raise DataError(
                f"the query has {vectors.shape[1]} dimensions, the index {self.dim}",
                remedy="search with the encoder that the index was built with",
                code="other_dimension",
            )
        return self._search.top(np.ascontiguousarray(vectors, dtype=np.float32), k)


def read_spec(folder: Path) -> VectorSpec | None:
    """The record beside an index; None if there is none, as with indexes from elsewhere.

    Raises:
        DataError: it cannot be read (code `damaged_index`).
    """
    file = folder / SPEC
    if not file.exists():
        return None
    try:
        return VectorSpec.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise _damaged(file, str(error.errors()[0]["msg"])) from error


def open_faiss(file: Path) -> Any:
    """A FAISS index, its vectors mapped and not read; only the short codes of ivf-pq are read, which FAISS cannot map.

    Raises:
        DataError: the file is no FAISS index, or not one of inner products.
    """
    faiss = need("faiss", "search")
    with file.open("rb") as content:
        form = content.read(4)
    inverted = form in (b"IwFl", b"IwSq", b"IwPQ")
    # There are two ways to map: one knows inverted lists only, the other flat vectors and graphs.
    mapped = faiss.IO_FLAG_MMAP if inverted else 0 if form == b"IwPf" else faiss.IO_FLAG_MMAP_IFC
    try:
        index = faiss.read_index(str(file), mapped)
    except RuntimeError as error:  # FAISS has no other class
        raise _damaged(file, str(error).rpartition("Error: ")[2][:200]) from error
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise DataError(
            f"{file} ranks by distance, not by inner product",
            remedy="build it with METRIC_INNER_PRODUCT over unit vectors (Flat: IndexFlatIP)",
            code="bad_metric",
        )
    if inverted and hasattr(index.invlists, "prefetch_nthread"):
        index.invlists.prefetch_nthread = 0  # else each search starts 32 threads that touch its pages
    return index


def _damaged(file: Path, reason: str) -> DataError:
    return DataError(f"{file} cannot be read: {reason}", remedy="rebuild the index", code="damaged_index")


class EightBit:
    """Vectors of 8 bits a number, each with its own scale (n rows of dim int8 and one float32), read row by row.

    Rows are read and not mapped: a mapped file would come to count as this process's memory, page by page.
    """

    def __init__(self, file: Path, dim: int) -> None:
        self._row = row_type(dim)
        self._handle = os.open(file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._handle)

    def scores(self, rows: Rows, vector: Vectors) -> NDArray[np.float64]:
        """Inner products (m,) of `vector` (dim,) with m rows."""
        width = self._row.itemsize
        read, handle = os.pread, self._handle
        table = np.frombuffer(b"".join([read(handle, width, row * width) for row in rows.tolist()]), dtype=self._row)
        products: NDArray[np.float64] = table["numbers"].astype(np.float64) @ vector.astype(np.float64)
        scores: NDArray[np.float64] = products * table["scale"]
        return scores


def row_type(dim: int) -> np.dtype[np.void]:
    """One row of an `EightBit` file."""
    return np.dtype([("numbers", np.int8, (dim,)), ("scale", np.float32)])


def eight_bit(vectors: Vectors) -> NDArray[np.void]:
    """Vectors (n, dim) as rows of an `EightBit` file; the largest number of a vector becomes 127 or -127."""
    table = np.zeros(len(vectors), dtype=row_type(vectors.shape[1]))
    table["scale"] = np.maximum(np.abs(vectors).max(axis=1), np.finfo(np.float32).tiny) / 127
    table["numbers"] = np.rint(vectors / table["scale"][:, None])
    return table


class _Approximate:
    """Searches an inverted file or a graph; queries one by one, each on one thread."""

    def __init__(self, faiss: Any, index: Any, spec: VectorSpec | None, eight: EightBit | None) -> None:
        self._faiss, self._index, self._eight = faiss, index, eight
        self._pool, self._probes = (spec.pool, spec.probes) if spec else (0, 0)
        if self._probes:
            index.nprobe = self._probes
        if spec and spec.effort:
            index.hnsw.efSearch = spec.effort

    def top(self, vectors: Vectors, k: int) -> list[Ranking]:
        with one_thread(self._faiss):
            return [self._top(vectors[i : i + 1], k) for i in range(len(vectors))]

    def _top(self, vector: Vectors, k: int) -> Ranking:
        fetch = min(max(k + _SPARE, self._pool, 4 * k if self._eight else 0), self._index.ntotal)
        scores, rows = self._index.search(vector, fetch)
        probes = self._probes
        while 0 < probes < self._index.nlist and (rows[0] >= 0).sum() < min(k, fetch):  # the cells held too few
            probes = min(2 * probes, self._index.nlist)
            params = self._faiss.SearchParametersIVF(nprobe=probes)
            scores, rows = self._index.search(vector, fetch, params=params)
        found = rows[0] >= 0  # FAISS fills up with -1
        kept = rows[0][found]
        exact = self._eight.scores(kept, vector[0]) if self._eight else scores[0][found].astype(np.float64)
        return best(kept, np.round(exact, DECIMALS), k)


class _Fetched(NamedTuple):
    rows: Rows
    scores: NDArray[np.float32]


class _Exact:
    """Scans all vectors of a flat index where they lie in the file."""

    def __init__(self, faiss: Any, index: Any) -> None:
        self._faiss, self._index = faiss, index  # the index owns the memory of the table
        shape = (int(index.ntotal), int(index.d))
        self._table: Vectors = faiss.rev_swig_ptr(index.get_xb(), shape[0] * shape[1]).reshape(shape)

    def top(self, vectors: Vectors, k: int) -> list[Ranking]:
        fetch = min(k + _SPARE, len(self._table))
        return [self._settled(vectors[i], found, k) for i, found in enumerate(self._scan(vectors, fetch))]

    def _settled(self, vector: Vectors, found: _Fetched, k: int) -> Ranking:
        """The best `k`, scored in float64, after fetching more for as long as an unseen row might belong to them."""
        while True:
            exact = np.round(self._table[found.rows].astype(np.float64) @ vector.astype(np.float64), DECIMALS)
            ranking = best(found.rows, exact, k)
            fetch = len(found.rows)
            if fetch == len(self._table) or found.scores[-1] < ranking[-1][1] - _MARGIN:
                return ranking
            [found] = self._scan(vector[None], min(2 * fetch, len(self._table)))

    def _scan(self, vectors: Vectors, fetch: int) -> list[_Fetched]:
        """The best `fetch` rows of each vector, best first."""
        size = max(1, _BLOCK_BYTES // (4 * self._table.shape[1]))
        starts = range(0, len(self._table), size)
        if len(starts) == 1:
            blocks = [self._block(vectors, fetch, 0, size)]
        else:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                blocks = list(pool.map(lambda start: self._block(vectors, fetch, start, size), starts))
        scores = np.concatenate([block[0] for block in blocks], axis=1)
        rows = np.concatenate([block[1] for block in blocks], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :fetch]
        return [_Fetched(rows[i, best_of], scores[i, best_of]) for i, best_of in enumerate(order)]

    def _block(self, vectors: Vectors, fetch: int, start: int, size: int) -> tuple[NDArray[np.float32], Rows]:
        part = self._table[start : start + size]
        with one_thread(self._faiss):
            scores, rows = self._faiss.knn(
                vectors, part, min(fetch, len(part)), metric=self._faiss.METRIC_INNER_PRODUCT
            )
        return scores, rows + start


@contextmanager
def one_thread(faiss: Any) -> Iterator[None]:
    """Keeps the FAISS calls of this Python thread on one core."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
