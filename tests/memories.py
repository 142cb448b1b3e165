"""Drafts of memories that tests store."""

from __future__ import annotations

from typing import Any

from memory_serve.protocol import Draft


def draft(town: str, **fields: Any) -> Draft:
    """A success on the river of a town."""
    given = {"question": f"Which river flows through {town}?", "workflow": f"1. Search: {town}", "outcome": "correct",
             "source_id": f"q-{town}", "trajectory_id": f"t-{town}"}  # fmt: skip
    return Draft.model_validate({**given, **fields})


def drafts(count: int, start: int = 0) -> list[Draft]:
    """Drafts of different questions, of the three outcomes in turn."""
    return [
        Draft(
            question=f"Which river flows through town{n} of region{n % 7}?",
            workflow=f"1. Search: town{n}",
            outcome=("correct", "incorrect", "unjudged")[n % 3],
            source_id=f"q{n}",
            trajectory_id=f"t{n}",
        )
        for n in range(start, start + count)
    ]
