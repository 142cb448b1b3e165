"""Coarse vectors: what they say is within the error that they state, and what decides is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memory_serve.coarse import COARSE_FROM, Matrix, Similar

COUNT = COARSE_FROM + 100


def units(rng: np.random.Generator, count: int, dim: int) -> Any:
    vectors = rng.standard_normal((count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def rough(matrix: Matrix, asked: Any, count: int) -> tuple[Any, float]:
    found = matrix.rough(asked, count)
    assert found is not None
    return found


@pytest.mark.parametrize("dim", [2, 32, 384, 1024])
def test_no_product_is_further_off_than_stated(dim: int) -> None:
    rng = np.random.default_rng(dim)
    vectors = units(rng, COUNT, dim)
    vectors[0], vectors[1], vectors[2] = 0, np.eye(dim)[0], -np.eye(dim)[1]  # nothing at all, and all in one number
    matrix = Matrix(COUNT, dim)
    matrix.write(slice(0, COUNT), vectors)
    for asked in (*units(rng, 3, dim), vectors[1], vectors[2], vectors[77]):
        values, error = rough(matrix, asked, COUNT)
        assert np.abs(values - vectors.astype(np.float64) @ asked.astype(np.float64)).max() <= error < 0.02


def test_it_begins_when_there_are_many_and_follows_every_change() -> None:
    rng = np.random.default_rng(0)
    few = units(rng, 100, 48)
    matrix = Matrix(64, 48)
    matrix.write(slice(0, 64), few[:64])
    assert matrix.rough(few[0], 64) is None
    matrix.grow(COUNT)
    vectors = units(rng, COUNT - 64, 48)
    matrix.write(slice(64, COUNT), vectors)
    assert rough(matrix, few[0], COUNT - 30)
    matrix.write(slice(3, 5), few[64:66])
    matrix.move(9, COUNT - 1)
    matrix.move(11, 12)
    matrix.grow(8)
    matrix.write(slice(COUNT, COUNT + 8), few[80:88])
    wanted = np.concatenate([few[:64], vectors, few[80:88]])
    wanted[3:5], wanted[9] = few[64:66], wanted[COUNT - 1]
    wanted[11] = wanted[12]
    assert np.array_equal(matrix.values[: COUNT + 8], wanted)
    values, error = rough(matrix, few[70], COUNT + 8)
    assert np.abs(values - wanted @ few[70]).max() <= error < 0.02


@pytest.mark.parametrize("spread", [1.0, 0.01, 1e-7])
def test_spans_and_floors_are_exact(spread: float) -> None:
    """Also where similarities lie so close to each other that rough ones tell nothing."""
    rng = np.random.default_rng(3)
    true = (0.4 + spread * rng.uniform(-0.5, 0.5, COUNT)).astype(np.float32)
    off = 0.004
    values = (true + rng.uniform(-off, off, COUNT)).astype(np.float32)
    similar = Similar(values, off * 1.001, lambda rows: true[rows])
    among = rng.random(COUNT) < 0.5
    assert similar.span(among) == (float(true[among].min()), float(true[among].max()))
    assert similar.span(np.ones(COUNT, np.bool_)) == (float(true.min()), float(true.max()))
    for floor in (0.1, 0.4, float(true[5]), 0.7):
        assert np.array_equal(similar.at_least(floor), true >= floor)
    assert similar.at(np.array([7, 9])).tolist() == true[[7, 9]].tolist()
