"""The grid that is stored in PostgreSQL: nothing within reach is missed, and cells never change."""

from __future__ import annotations

import numpy as np
import pytest

from memory_serve.postgres_cells import Cells


@pytest.mark.parametrize("dim", [16, 64, 384])
def test_whatever_is_within_reach_is_in_a_reached_cell(dim: int) -> None:
    random = np.random.default_rng(dim)
    cells = Cells(dim, 0.016)
    assert cells.useful
    most = 0
    for _ in range(300):
        one, step = random.standard_normal((2, dim)).astype(np.float32)
        one /= np.linalg.norm(one)
        other = one + step / np.linalg.norm(step) * np.float32(random.uniform(0, 0.0159))
        reached = cells.reached(one)
        assert cells.cell(other) in reached
        assert len(set(reached)) == len(reached)
        most = max(most, len(reached))
    assert most < 4096


def test_strangers_are_rarely_met() -> None:
    random = np.random.default_rng(1)
    vectors = random.standard_normal((500, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cells = Cells(384, 0.016)
    placed = [cells.cell(v) for v in vectors]
    assert sum(cell in cells.reached(vectors[0]) for cell in placed) < 10


def test_a_cell_is_what_it_was_in_the_first_version() -> None:
    """Databases hold cells: a change here needs a migration."""
    vector = np.zeros(64, np.float32)
    vector[3], vector[10] = 0.6, -0.8
    assert Cells(64, 0.016).cell(vector).hex() == "0000ffffff000000ff00ffff"


def test_a_wide_reach_is_not_worth_it() -> None:
    assert not Cells(384, 0.3).useful
