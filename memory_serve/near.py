"""Finds what is as good as equal to a vector without comparing it with everything.

Unit vectors are projected on a few random directions and put in the cells of a grid. A projection never makes a
distance longer, so whatever lies within the radius is in one of the few cells that the radius reaches: nothing is
missed. With a radius that is small against the spread of the projections (1/sqrt(d)) a cell holds few others, and the
cost of a look-up hardly depends on how many vectors there are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np

from local_search.protocol import Vectors

Cell = bytes
_DIRECTIONS = 12
_ROUNDING = 1e-4


def radius(similarity: float) -> float:
    """Distance of two unit vectors whose cosine is `similarity`."""
    return math.sqrt(max(0.0, 2.0 * (1.0 - similarity)))


@functools.cache
def _directions(dim: int) -> Vectors:
    """Random unit vectors, (directions, d), the same for all grids; to make them costs as much as many look-ups."""
    drawn = np.random.default_rng(0).standard_normal((_DIRECTIONS, dim))
    directions: Vectors = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    directions.flags.writeable = False
    return directions


class Grid:
    """Names in cells.

    Args:
        dim: length of the vectors.
        reach: distance up to which a vector is found.
    """

    def __init__(self, dim: int, reach: float) -> None:
        self._directions = _directions(dim)
        self._reach = reach + _ROUNDING
        self._width = 2.0 / math.sqrt(dim)  # about two deviations of a projection
        self.useful = 2 * self._reach <= self._width and dim > _DIRECTIONS
        """Whether looking here is cheaper than comparing with everything."""
        self._cells: dict[Cell, set[str]] = {}

    def cells(self, vectors: Vectors) -> list[Cell]:
        """Cells of vectors, (n, d) to n."""
        raw = np.floor(self._projected(vectors) / self._width).astype(np.int8).tobytes()
        return [raw[at : at + _DIRECTIONS] for at in range(0, len(raw), _DIRECTIONS)]

    def _projected(self, vectors: Vectors) -> Vectors:
        """(…, d) to (…, directions); not a matrix product, whose threads cost more than they do here."""
        projected: Vectors = np.vecdot(vectors[..., None, :], self._directions)
        return projected

    def put(self, name: str, cell: Cell) -> None:
        """Add a name to the cell of its vector."""
        self._cells.setdefault(cell, set()).add(name)

    def remove(self, name: str, cell: Cell) -> None:
        """Take it out again."""
        names = self._cells[cell]
        names.discard(name)
        if not names:
            del self._cells[cell]

    def near(self, vector: Vectors) -> Iterator[str]:
        """All names within reach of a vector, (d,), and some more."""
        at = self._projected(vector)
        ends = np.floor(np.stack([at - self._reach, at + self._reach]) / self._width).astype(np.int8)
        cells = [ends[0].tobytes()]
        upper = ends[1].tobytes()
        # The cells are wider than twice the reach, so in each direction it ends in the same cell or in the next.
        for i in np.flatnonzero(ends[0] != ends[1]).tolist():
            cells += [cell[:i] + upper[i : i + 1] + cell[i + 1 :] for cell in cells]
        for cell in cells:
            if cell in self._cells:
                yield from self._cells[cell]
