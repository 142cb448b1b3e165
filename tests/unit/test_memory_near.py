"""The grid against a comparison with everything: nothing that is near may be missed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_serve.near import Compass, Grid, directions, radius

DIM = 48
REACH = radius(0.999)


def units(rng: np.random.Generator, count: int) -> Any:
    vectors = rng.standard_normal((count, DIM)).astype(np.float32)
    unit: Any = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def moved(rng: np.random.Generator, vector: Any, far: float) -> Any:
    """A unit vector at this distance, in a random direction."""
    beside = rng.standard_normal(DIM)
    beside -= (beside @ vector) * vector
    half = 2 * np.arcsin(far / 2)
    return (np.cos(half) * vector + np.sin(half) * beside / np.linalg.norm(beside)).astype(np.float32)


def test_what_is_within_reach_is_found_and_little_else() -> None:
    rng = np.random.default_rng(1)
    compass = Compass(DIM, REACH)
    assert compass.useful
    grid = Grid()
    stored = units(rng, 5000)
    for place in compass.places(stored):
        grid.append(place)
    others = 0
    for row in range(0, 5000, 10):
        asked = moved(rng, stored[row], REACH * rng.random())
        found = grid.near(compass.spots(asked[None])[0])
        assert row in found
        assert found == sorted(found)
        others += len(found) - 1
    assert others < 500


@pytest.mark.parametrize("far", [0.0, 1.0])
def test_a_vector_that_lies_along_a_direction_of_the_grid_is_found(far: float) -> None:
    """Its projection is as long as can be: it lies in the outermost cells."""
    rng = np.random.default_rng(2)
    compass = Compass(1024, radius(0.9999))
    along = directions(1024)[3]
    for vector in (along, -along):
        grid = Grid()
        grid.append(compass.places(vector[None])[0])
        beside = rng.standard_normal(1024)
        beside -= (beside @ vector) * vector
        half = 2 * np.arcsin(far * radius(0.9999) / 2)
        asked = (np.cos(half) * vector + np.sin(half) * beside / np.linalg.norm(beside)).astype(np.float32)
        assert grid.near(compass.spots(asked[None])[0]) == [0]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.booleans()), max_size=80))
def test_any_sequence_of_changes(steps: list[tuple[int, int, bool]]) -> None:
    """Equal vectors in one cell, rows that move, rows that go."""
    compass = Compass(DIM, REACH)
    spots = compass.spots(units(np.random.default_rng(3), 6))
    grid, wanted = Grid(), list[int]()
    for row, kind, removes in steps:
        if removes and row < len(wanted):
            grid.remove(row)
            wanted[row] = wanted[-1]
            wanted.pop()
        elif row < len(wanted):
            grid.move(row, spots[kind].place)
            wanted[row] = kind
        else:
            grid.append(spots[kind].place)
            wanted.append(kind)
    for kind, spot in enumerate(spots):
        assert grid.near(spot) == [row for row, held in enumerate(wanted) if held == kind]


def test_directions_stand_at_right_angles() -> None:
    """Else what is near could be missed."""
    for dim in (32, 384):
        found = directions(dim).astype(np.float64)
        assert np.abs(found @ found.T - np.eye(32)).max() < 1e-6


def test_a_spot_does_not_depend_on_how_many_are_asked_for() -> None:
    compass = Compass(DIM, REACH)
    vectors = units(np.random.default_rng(4), 2000)
    together, alone = compass.spots(vectors), [compass.spots(vector[None])[0] for vector in vectors]
    # Rounding may put one that stands on a border to either side.
    assert sum(a.place == b.place for a, b in zip(together, alone, strict=True)) > 1990
    assert compass.places(vectors) == [spot.place for spot in together]


def test_without_a_small_radius_the_grid_is_of_no_use() -> None:
    assert not Compass(384, radius(0.8)).useful
    assert not Compass(8, radius(0.99999)).useful
