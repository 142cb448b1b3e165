"""What memory has to say to rows of training data, read once before training, so that it is the same in each epoch."""

from __future__ import annotations

from collections.abc import Sequence

from executor_train.game import Row
from memory_serve.protocol import MemoryStore
from mia.types import Question, Recalled


async def recalled_rows(rows: Sequence[Row], memory: MemoryStore, k: int) -> list[Row]:
    """Rows with what they recall for the first plan and for a second one.

    Args:
        rows: the rows.
        memory: what is asked; what stems from a row's own question it leaves out.
        k: memories of each outcome for each plan.

    Raises:
        MemoryStoreError: memory did not answer.
    """
    made = []
    for row in rows:
        first, second = [await memory.recall(row.example.question, k, skip) for skip in (0, k)]
        made.append(row.model_copy(update={"recalled": first, "recalled_again": second}))
    return made


class Prepared:
    """Answers `Recall` with what a row brings (see `inference.driver.Recaller`)."""

    def __init__(self, row: Row) -> None:
        self._row = row

    async def recall(self, question: Question, k: int = 2, skip: int = 0) -> Recalled:
        """What was recalled for the first plan, or, behind it, for the second."""
        return self._row.recalled_again if skip else self._row.recalled
