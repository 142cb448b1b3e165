"""Where a vector stands in a grid that is stored in the database: the idea of `memory_serve.near`, as a file format.

A cell is a column of every row, so it must be the same for all replicas and versions: the directions come from a hash,
not from a random generator. Whoever changes anything here must fill the column anew in a migration.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from local_search.protocol import Vectors

_DIRECTIONS = 12
_ROUNDING = 1e-4


class Cells:
    """Cells of unit vectors.

    Args:
        dim: length of the vectors.
        reach: distance up to which one vector is to be found from another.
    """

    def __init__(self, dim: int, reach: float) -> None:
        bits = [hashlib.shake_256(f"mia cell {n}".encode()).digest(-(-dim // 8)) for n in range(_DIRECTIONS)]
        signs = np.array([np.unpackbits(np.frombuffer(row, np.uint8))[:dim] for row in bits], np.float32)
        self._directions = (2 * signs - 1) / np.float32(math.sqrt(dim))
        self._reach = reach + _ROUNDING
        self._width = 2.0 / math.sqrt(dim)  # about two deviations of a projection
        self.useful = 2 * self._reach <= self._width
        """Whether looking there is cheaper than comparing with everything."""

    def cell(self, vector: Vectors) -> bytes:
        """The cell of a vector, (d,)."""
        return self._floor(self._projected(vector)).tobytes()

    def reached(self, vector: Vectors) -> list[bytes]:
        """All cells in which a vector within reach of this one, (d,), can lie."""
        at = self._projected(vector)
        low, high = self._floor(at - self._reach), self._floor(at + self._reach)
        cells, upper = [low.tobytes()], high.tobytes()
        # The cells are wider than twice the reach, so in each direction it ends in the same cell or in the next.
        for i in np.flatnonzero(low != high).tolist():
            cells += [cell[:i] + upper[i : i + 1] + cell[i + 1 :] for cell in cells]
        return cells

    def _projected(self, vector: Vectors) -> Vectors:
        projected: Vectors = np.vecdot(self._directions, vector)
        return projected

    def _floor(self, at: Vectors) -> NDArray[np.int8]:
        whole: NDArray[np.int8] = np.floor(at / self._width).clip(-128, 127).astype(np.int8)
        return whole
