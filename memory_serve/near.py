"""Finds what is as good as equal to a vector without comparing it with everything.

Unit vectors are projected on a few directions that stand at right angles to each other, and put in the cells of a grid.
A projection never makes a distance longer, so whatever lies within the radius is in one of the few cells that the
radius reaches: nothing is missed. With a radius that is small against the spread of the projections (1/sqrt(d)) a cell
holds few others, and what is in it but too far off in further directions is sorted out by whole numbers. So the cost of
a look-up hardly depends on how many vectors there are.
"""

from __future__ import annotations

import functools
import itertools
import math
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from local_search.protocol import Vectors

_DIRECTIONS = 16
"""Directions of the grid, and as many again to sort out: 4 bits of a 64-bit number each."""
_SHIFTS = 4 * np.arange(_DIRECTIONS, dtype=np.uint64)
_ROUNDING = 1e-4
_MANY = 256
_NONE = -1


def radius(similarity: float) -> float:
    """Distance of two unit vectors whose cosine is `similarity`."""
    return math.sqrt(max(0.0, 2.0 * (1.0 - similarity)))


Place = tuple[int, int]
"""Where a vector stands: its cell, and its mark, which is its cell in the further directions."""


class Spot(NamedTuple):
    """Where a vector stands and what is near.

    `cells` are all cells that its radius reaches. `least` is the lowest mark within its radius; `more` has a 1 for each
    direction in which a mark may be higher by one.
    """

    place: Place
    cells: Sequence[int]
    least: int
    more: int


class Compass:
    """Tells where vectors stand. Lengths are in widths of a cell, which are about two deviations of a projection.

    Args:
        dim: length of the vectors.
        reach: distance up to which one vector is to be found from another.
    """

    def __init__(self, dim: int, reach: float) -> None:
        width = 2.0 / math.sqrt(dim)
        self._reach = (reach + _ROUNDING) / width
        self.useful = self._reach < 0.5 and dim >= 2 * _DIRECTIONS
        """Whether looking there is cheaper than comparing with everything."""
        self._directions: Vectors = (
            directions(dim) / np.float32(width) if self.useful else np.zeros((0, dim), np.float32)
        )

    def places(self, vectors: Vectors) -> list[Place]:
        """Where vectors stand, (n, d) to n."""
        if not self.useful:
            return [_NOWHERE.place] * len(vectors)
        cells, marks = _packed(np.floor(self._projected(vectors)))
        return list(zip(_code(cells), _code(marks), strict=True))

    def spots(self, vectors: Vectors) -> list[Spot]:
        """Where vectors stand and what is near, (n, d) to n."""
        if not self.useful:
            return [_NOWHERE] * len(vectors)
        at = self._projected(vectors)
        whole = np.floor(at)
        cells, marks = _packed(whole)
        least, most = _packed(np.floor(at - self._reach)), _packed(np.floor(at + self._reach))
        # In each direction the radius reaches one border at most, as a cell is wider than twice the radius.
        steps = (least[0] + most[0] - 2 * cells).view(np.int64)  # -1, 0 or 1, (n, 16)
        far = (at - whole)[:, :_DIRECTIONS]
        reached = self._reached_by(cells, steps, np.where(steps < 0, far, 1 - far) ** 2)
        places = zip(_code(cells), _code(marks), strict=True)
        return list(map(Spot, places, reached, _code(least[1]), _code(most[1] - least[1])))

    def _reached_by(self, cells: _Cells, steps: NDArray[np.int64], costs: Vectors) -> list[list[int]]:
        """Codes of the cells that each vector reaches. Borders lie at right angles: distances add up as squares.

        Args:
            cells: where the vectors stand, (n, 16).
            steps: to the cells beside, (n, 16).
            costs: squares of the distances of the borders between, (n, 16).
        """
        codes: NDArray[np.int64] = (cells << _SHIFTS).sum(axis=1, dtype=np.uint64).view(np.int64)
        rows, paid = np.arange(len(cells)), np.zeros(len(cells), np.float32)
        steps = steps << _SHIFTS.view(np.int64)
        for way in np.flatnonzero(steps.any(axis=0)).tolist():
            total = paid + costs[rows, way]
            step = steps[rows, way]
            beside = np.flatnonzero((step != 0) & (total <= self._reach**2))
            rows = np.concatenate([rows, rows[beside]])
            paid = np.concatenate([paid, total[beside]])
            codes = np.concatenate([codes, codes[beside] + step[beside]])
        found: list[int] = codes[np.argsort(rows, kind="stable")].view(np.uint64).tolist()
        ends = np.cumsum(np.bincount(rows)).tolist()
        return [found[start:end] for start, end in itertools.pairwise([0, *ends])]

    def _projected(self, vectors: Vectors) -> Vectors:
        """(n, d) to (n, 32), in widths. A matrix product has threads, which cost more than they do for a few."""
        projected: Vectors
        if len(vectors) > _MANY:
            projected = vectors @ self._directions.T
        else:
            projected = np.vecdot(vectors[:, None, :], self._directions)
        return projected


_Cells = NDArray[np.uint64]
"""Numbers of cells, 0 to 15, (n, directions)."""
_NOWHERE = Spot((0, 0), (), 0, 0)


def _packed(whole: Vectors) -> tuple[_Cells, _Cells]:
    """What is too far out goes in the outermost cells. The first and the further directions."""
    cells = (np.clip(whole, -8, 7) + 8).astype(np.uint64)
    return cells[:, :_DIRECTIONS], cells[:, _DIRECTIONS:]


def _code(cells: _Cells) -> list[int]:
    codes: list[int] = (cells << _SHIFTS).sum(axis=1, dtype=np.uint64).tolist()
    return codes


@functools.cache
def directions(dim: int) -> Vectors:
    """Unit vectors at right angles to each other, (32, d), the same for all grids."""
    found = np.random.default_rng(0).standard_normal((2 * _DIRECTIONS, dim))
    for row, one in enumerate(found):  # Gram and Schmidt's, twice for the rounding
        for _ in range(2):
            one -= (found[:row] @ one) @ found[:row]
        one /= np.linalg.norm(one)
    single: Vectors = found.astype(np.float32)
    single.flags.writeable = False
    return single


class Grid:
    """Rows in cells: numbers from 0 upwards without a gap; those of a cell are linked to each other."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._cells, self._marks = array("Q"), array("Q")
        self._next, self._last = array("q"), array("q")

    def append(self, place: Place) -> None:
        """Put the next row where its vector stands."""
        self._cells.append(place[0])
        self._marks.append(place[1])
        self._next.append(_NONE)
        self._last.append(_NONE)
        self._link(len(self._cells) - 1)

    def move(self, row: int, place: Place) -> None:
        """Put a row elsewhere."""
        self._marks[row] = place[1]
        if self._cells[row] != place[0]:
            self._unlink(row)
            self._cells[row] = place[0]
            self._link(row)

    def remove(self, row: int) -> None:
        """Take a row out; the last row gets its number."""
        self._unlink(row)
        last = len(self._cells) - 1
        if row != last:
            self._unlink(last)
            self._cells[row], self._marks[row] = self._cells[last], self._marks[last]
            self._link(row)
        for column in (self._cells, self._marks, self._next, self._last):
            column.pop()

    def near(self, spot: Spot) -> list[int]:
        """All rows within reach of a vector, and some more, rising."""
        found, first = [], self._first
        least, fixed = spot.least, ~spot.more
        for row in [first[cell] for cell in spot.cells if cell in first]:
            while row != _NONE:
                if not (self._marks[row] - least) & fixed:
                    found.append(row)
                row = self._next[row]
        found.sort()
        return found

    def _link(self, row: int) -> None:
        cell = self._cells[row]
        after = self._first.get(cell, _NONE)
        self._next[row], self._last[row] = after, _NONE
        if after != _NONE:
            self._last[after] = row
        self._first[cell] = row

    def _unlink(self, row: int) -> None:
        before, after = self._last[row], self._next[row]
        if after != _NONE:
            self._last[after] = before
        if before != _NONE:
            self._next[before] = after
        elif after != _NONE:
            self._first[self._cells[row]] = after
        else:
            del self._first[self._cells[row]]
