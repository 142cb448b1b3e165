"""Similarities to many vectors by a copy of them in a quarter of the bytes, without changing any result.

A recall over many memories takes its time for reading their vectors. So, where there are many, each is also kept as
whole numbers from -127 to 127 times a scale of its own. What such a product may be off is known (Cauchy and Schwarz:
|q·v - q'·v'| is at most |q - q'| |v'| + |q| |v - v'|), so the few vectors that can decide are known too, and only these
are read in full.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from local_search.protocol import Vectors
from memory_serve.ranking import Flags, Ints, Rough, Span
from mia.extras import need

COARSE_FROM = 16384
"""Vectors from which a copy is kept: loading the compiler takes as long as many recalls over fewer."""
_TOP = 127
_TOP_ASKED = 32767
_Number = TypeVar("_Number", np.float32, np.int8)

# Compiled code: plain loops over arrays, no objects.


def _shrink(vectors: Vectors, codes: NDArray[np.int8], scales: Vectors) -> float:
    """Write vectors, (n, d), to `codes`, (n, d), times `scales`, (n,); returns the longest difference."""
    longest = 0.0
    for row in range(vectors.shape[0]):
        top = np.float32(0)
        for i in range(vectors.shape[1]):
            top = max(top, abs(vectors[row, i]))
        scale = np.float32(top / _TOP)
        scales[row] = scale
        off = 0.0
        for i in range(vectors.shape[1]):
            code = np.rint(vectors[row, i] / scale) if scale > 0 else np.float32(0)
            codes[row, i] = np.int8(code)
            off += (float(vectors[row, i]) - float(scale) * float(code)) ** 2
        longest = max(longest, off)
    return float(np.sqrt(longest))


def _dots(codes: NDArray[np.int8], scales: Vectors, asked: NDArray[np.int16], scale: float, found: Vectors) -> None:
    """Products of `asked` times `scale`, (d,), with all rows, to `found`, (n,)."""
    for row in range(codes.shape[0]):
        total = np.int32(0)
        for i in range(codes.shape[1]):
            total += np.int32(codes[row, i]) * np.int32(asked[i])
        # Numba adds up in 64 bits; taking 32 of them lets the machine do so as well, which is three times as fast.
        found[row] = np.float32(np.int32(total)) * scales[row] * np.float32(scale)


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None


@functools.cache
def _compiled() -> tuple[Any, Any]:
    """`_shrink` and `_dots` as machine code, kept on disk once it is compiled."""
    compiler = need("numba", "search").njit
    try:
        kept = compiler(nogil=True, cache=True)
        return kept(_shrink), kept(_dots)
    except RuntimeError:  # there is no folder that may be written to keep the machine code in
        return compiler(nogil=True)(_shrink), compiler(nogil=True)(_dots)


class Matrix:
    """Vectors of length 1 or 0 in a growing array.

    The copy is made when many are asked for, if numba is installed, and follows from then on: whoever only writes pays
    nothing for it.

    Args:
        rows: how many it begins with, all 0.
        dim: their length d.
    """

    def __init__(self, rows: int, dim: int) -> None:
        self.values: Vectors = np.zeros((rows, dim), np.float32)
        self._codes: NDArray[np.int8] = np.zeros((0, dim), np.int8)
        self._scales: Vectors = np.zeros(0, np.float32)
        self._copied = 0
        """So many rows, from the first on, have their copy."""
        self._off = 0.0
        # So that a sum of d products is less than 2^31.
        self._levels = min(_TOP_ASKED, (2**31 - 1) // (_TOP * dim))
        self._rounding = max(dim, 16) * 2.0**-23  # of the exact products, and of ours

    def write(self, rows: slice, vectors: Sequence[Vectors]) -> None:
        """Overwrite rows, which must be there."""
        self.values[rows] = vectors
        self._copy(rows.start, min(rows.stop, self._copied))

    def move(self, row: int, other: int) -> None:
        """Overwrite a row by another one."""
        self.values[row] = self.values[other]
        self._copy(row, min(row + 1, self._copied))

    def grow(self, more: int) -> None:
        """Add rows of zeros, which take no memory before something is written to them."""
        self.values = _grown(self.values, more)

    def rough(self, asked: Vectors, count: int) -> tuple[Vectors, float] | None:
        """Products with the first rows, and how far each may be off; None if they are too few for a copy.

        Args:
            asked: a vector of length 1, (d,).
            count: how many rows.
        """
        if count < COARSE_FROM or not _installed():
            return None
        if count > len(self._codes):
            more = len(self.values) - len(self._codes)
            self._codes = _grown(self._codes, more)
            self._scales = np.concatenate([self._scales, np.zeros(more, np.float32)])
        self._copy(self._copied, count)
        self._copied = max(self._copied, count)
        scale = float(np.abs(asked).max()) / self._levels
        whole = np.rint(asked.astype(np.float64) / scale)
        found: Vectors = np.empty(count, np.float32)
        _compiled()[1](self._codes[:count], self._scales[:count], whole.astype(np.int16), scale, found)
        off = float(np.linalg.norm(asked - whole * scale))
        return found, off * (1.0 + self._off) + self._off + self._rounding

    def _copy(self, start: int, stop: int) -> None:
        if start < stop:
            rows = slice(start, stop)
            self._off = max(self._off, _compiled()[0](self.values[rows], self._codes[rows], self._scales[rows]))


def _grown(rows: NDArray[_Number], more: int) -> NDArray[_Number]:
    grown: NDArray[_Number] = np.zeros((len(rows) + more, rows.shape[1]), rows.dtype)
    grown[: len(rows)] = rows
    return grown


class Similar:
    """Similarities to the n memories of a bucket; where they are rough, those that decide are got exactly.

    Args:
        values: the similarities, (n,).
        error: how far each of them may be off; 0: they are exact.
        exact: gives those of some rows exactly, (m,) to (m,).
    """

    def __init__(self, values: Rough, error: float, exact: Callable[[Ints], Rough]) -> None:
        self.values = values
        self.error = error
        self._exact = exact

    def at(self, rows: Ints) -> Rough:
        """The exact similarities of some rows."""
        return self._exact(rows) if self.error else self.values[rows]

    def span(self, among: Flags) -> Span:
        """The least and the greatest of some, of which there must be one, exactly."""
        counted = self.values if among.all() else self.values[among]
        low, high = float(counted.min()), float(counted.max())
        if not self.error:
            return low, high
        reach = 2.0 * self.error
        lowest = np.flatnonzero(among & (self.values <= np.float64(low + reach)))
        highest = np.flatnonzero(among & (self.values >= np.float64(high - reach)))
        return float(self._exact(lowest).min()), float(self._exact(highest).max())

    def at_least(self, floor: float) -> Flags:
        """Which are not less than the floor, exactly, (n,)."""
        flags: Flags = self.values >= np.float64(floor)
        if self.error:
            doubtful = np.flatnonzero(np.abs(self.values - np.float64(floor)) <= self.error)
            flags[doubtful] = self._exact(doubtful) >= np.float64(floor)
        return flags
