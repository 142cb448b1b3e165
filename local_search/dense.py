"""Dense search by FAISS: exact inner product over unit vectors, which is the cosine. Left out: approximate indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from local_search.protocol import Encoder, Vectors
from local_search.ranking import Ranking, best
from mia.extras import need

FILE = "vectors.faiss"
_CHUNK = 256
_DECIMALS = 6
"""Scores are rounded to this: float32 sums of equal texts differ in the 7th decimal and would break ties by chance."""


def build(texts: Iterable[str], folder: Path, encoder: Encoder, step: Callable[[int], None]) -> None:
    """Encode texts and index them into `folder`; `step` is told how many texts are done."""
    faiss = need("faiss", "search")
    index = faiss.IndexFlatIP(encoder.dim)
    rest = iter(texts)
    while chunk := list(islice(rest, _CHUNK)):
        index.add(encoder.encode(chunk, "passage"))
        step(index.ntotal)
    faiss.write_index(index, str(folder / FILE))


class Dense:
    """A ranker over an index that `build` wrote, memory-mapped.

    Args:
        folder: where `build` wrote.
        encoder: the one that encoded the passages.
    """

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        faiss = need("faiss", "search")
        self._index: Any = faiss.read_index(str(folder / FILE), faiss.IO_FLAG_MMAP_IFC)
        self._encoder = encoder

    def top(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """See `Ranker`.

        Queries are encoded one by one: in a batch, padding and matrix shapes change the last bits of a vector, and a
        query's ranking would depend on its neighbours.
        """
        return [self._top(self._encoder.encode([query], "query"), k) for query in queries]

    def _top(self, vector: Vectors, k: int) -> Ranking:
        total = self._index.ntotal
        fetch = min(k + 1, total)
        while True:
            scores, rows = self._index.search(vector, fetch)
            found = rows[0] >= 0  # FAISS fills up with -1
            rounded = np.round(scores[0][found].astype(np.float64), _DECIMALS)
            if fetch == total or len(rounded) < fetch or rounded[-1] < rounded[k - 1]:
                return best(rows[0][found], rounded, k)
            fetch = min(fetch * 2, total)  # the k-th score is shared by rows not fetched yet
