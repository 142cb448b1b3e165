"""Dense search: texts become unit vectors, the nearest passages by inner product (the cosine) are found.

`dense_kinds` says which index is chosen, `dense_build` writes it and `dense_index` asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from local_search.dense_build import build_from
from local_search.dense_index import FILE, VectorIndex
from local_search.protocol import Encoder
from local_search.ranking import Ranking

__all__ = ["FILE", "Dense", "build", "build_from"]

_CHUNK = 256


def build(texts: Iterable[str], folder: Path, encoder: Encoder, step: Callable[[int], None]) -> None:
    """Encode texts and index them into `folder`; `step` is told how many are done. Holds all vectors in memory."""
    chunks = [np.zeros((0, encoder.dim), dtype=np.float32)]
    done = 0
    rest = iter(texts)
    while chunk := list(islice(rest, _CHUNK)):
        chunks.append(encoder.encode(chunk, "passage"))
        done += len(chunk)
        step(done)
    build_from(np.concatenate(chunks), folder)


class Dense:
    """A ranker over an index that `build` or `build_from` wrote, memory-mapped.

    Args:
        folder: where it was written.
        encoder: the one that encoded the passages.
    """

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        self._index = VectorIndex(folder)
        self._encoder = encoder

    def top(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """See `Ranker`.

        Queries are encoded one by one: in a batch, padding and matrix shapes change the last bits of a vector, and a
        query's ranking would depend on its neighbours.
        """
        if not queries:
            return []
        return self._index.top(np.concatenate([self._encoder.encode([query], "query") for query in queries]), k)
