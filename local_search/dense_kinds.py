"""Kinds of vector index: what each costs, which is chosen, and the record kept beside an index. Knows no FAISS.

For n unit vectors of d numbers, in c cells (see `cells`):

| kind    | what is searched                             | bytes in memory             | more on disk |
|---------|----------------------------------------------|-----------------------------|--------------|
| flat    | all vectors, exactly                         | 4 n d                       |              |
| ivf-pq  | near cells by 4 bits for 4 numbers; then the | n (d/8 + 8) + 6 c d + 64 d  | n (d + 4)    |
|         | best of them by 8 bits a number, from disk   |                             |              |
| ivf-sq8 | near cells by 8 bits a number                | n (d + 8) + 4 c d           |              |
| hnsw    | a graph of neighbours                        | n (4 d + 276)               |              |

Why `auto` is flat up to FLAT_ROWS and ivf-pq beyond: at a million vectors ivf-pq with its second look is faster than
ivf-sq8 at the same recall and takes a seventh of the memory, and hnsw takes 30 times the memory and far longer to build
(scripts/RESULTS.md). Those two are there for whoever asks: ivf-sq8 reads its disk in long runs, which suits slow ones.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from pydantic import Field

from mia.errors import ConfigError, DataError
from mia.types import Record

Kind = Literal["flat", "ivf-pq", "ivf-sq8", "hnsw"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FLAT_ROWS = 50_000
"""Up to here an exact search takes a few milliseconds at most."""
DEFAULT_MEMORY = 8 * 10**9
"""Bytes an index may take in memory if nothing else is said; not the machine's own, so that builds are alike."""
HNSW_LINKS = 32
MIN_POINTS = 39
"""Training vectors for each cell, at least; FAISS warns of fewer."""


class VectorSpec(Record):
    """How an index was built and is searched; a file beside it. `recall` is measured, None for an exact index.

    `pool` are the rows that get the second look of ivf-pq when ten are wanted; `effort` is hnsw's efSearch.
    """

    kind: Kind
    count: int = Field(ge=1)
    dim: int = Field(ge=1)
    cells: int = 0
    probes: int = 0
    pool: int = 0
    effort: int = 0
    recall: float | None = None
    bytes: int = 0


def cells(kind: Kind, count: int) -> int:
    """Number of cells: a power of two near the root of `count`, or four times that where a cell costs more to scan."""
    wanted = math.sqrt(count) * (4 if kind == "ivf-sq8" else 1)
    bound = max(1, count // MIN_POINTS)
    return int(min(2 ** round(math.log2(max(1.0, wanted))), 16384, 2 ** int(math.log2(bound))))


def subvectors(dim: int) -> int:
    """In how many parts ivf-pq cuts a vector: of 4 numbers each, or about that where `dim` asks so; 0: none fits."""
    for width in (4, 5, 6, 7, 8, 3, 2):
        if dim % width == 0 and (dim // width) % 2 == 0:
            return dim // width
    return 0


def memory_of(kind: Kind, count: int, dim: int) -> int:
    """Bytes that an index holds in memory, or would if all of its mapped file were read."""
    centres = 4 * cells(kind, count) * dim
    if kind == "flat":
        return 4 * count * dim
    if kind == "hnsw":
        return count * (4 * dim + 8 * HNSW_LINKS + 20)
    if kind == "ivf-sq8":
        return count * (dim + 8) + centres
    parts = subvectors(dim)
    padding = cells(kind, count) * 16 * parts // 2  # lists are filled up to blocks of 32
    return count * (parts // 2 + 8) + padding + centres + 4 * 16 * dim


def disk_of(kind: Kind, count: int, dim: int) -> int:
    """Bytes of an index on disk."""
    return memory_of(kind, count, dim) + (count * (dim + 4) if kind == "ivf-pq" else 0)


def choose(count: int, dim: int, memory: int = DEFAULT_MEMORY) -> Kind:
    """The kind that `auto` stands for.

    Args:
        count: number of vectors.
        dim: their length.
        memory: bytes that the index may take.

    Raises:
        ConfigError: no kind fits into `memory` (code `no_memory`).
    """
    small: Kind = "ivf-pq" if subvectors(dim) else "ivf-sq8"
    order: tuple[Kind, ...] = ("flat", small) if count <= FLAT_ROWS else (small,)
    for kind in order:
        if memory_of(kind, count, dim) <= memory:
            return kind
    least = min(memory_of(kind, count, dim) for kind in order)
    raise ConfigError(
        f"{count} vectors of {dim} numbers take {readable(least)} in memory at least, {readable(memory)} are allowed",
        remedy=f"allow more with --memory {math.ceil(least / 1e6)}MB, or use an encoder of fewer dimensions",
        code="no_memory",
    )


def readable(count: int) -> str:
    """`1234567890` to `1.23 GB`."""
    for name, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count} bytes"


def trainable(kind: Kind, count: int, dim: int) -> None:
    """Refuse what FAISS cannot train.

    Raises:
        DataError: too few vectors, or a length that ivf-pq cannot cut.
    """
    if kind == "ivf-pq" and not subvectors(dim):
        raise DataError(
            f"ivf-pq cannot cut vectors of {dim} numbers into parts",
            remedy="choose ivf-sq8",
            code="bad_dimension",
        )
    if kind in ("ivf-pq", "ivf-sq8") and count < MIN_POINTS * 16:
        raise DataError(
            f"{count} vectors are too few to train {kind} on", remedy="choose flat, or auto", code="few_vectors"
        )
