"""What a method must offer: recall before a question, learning after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pydantic import JsonValue

from inference.runs import Run
from memory_serve.protocol import Added
from mia.types import Judgement, Question, Recalled


class Method(Protocol):
    """The memory of an agent. Recall is safe to call from many tasks at once; runs are learned one after the other."""

    async def recall(self, question: Question, k: int = 2, skip: int = 0) -> Recalled:
        """What is known that may help, after the `skip` best; never anything that stems from the question itself.

        Raises:
            MiaError: memory, or a model it needs, cannot be asked.
        """
        ...

    async def learn(self, run: Run, judgement: Judgement) -> Added | None:
        """Learn from a run that did not fail. What a run taught is stored once, however often this is called.

        Args:
            run: the whole run; it holds no reference.
            judgement: its outcome, by the feedback the config names; `correct` is None when nothing is known.

        Returns:
            What became of it; None when the method found nothing worth storing.

        Raises:
            MiaError: nothing was stored.
        """
        ...

    async def dump(self) -> list[Mapping[str, JsonValue]]:
        """All that is stored, in the order it came, without what differs between two runs alike (ids, times)."""
        ...

    async def aclose(self) -> None:
        """Free what the method holds."""
        ...
