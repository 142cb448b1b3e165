"""MIA's own method: the Manager's memory of workflows (see `memory_serve`), shown to the Planner.

Writes after each run: credit for the memories that were shown, if the outcome is known; then the run's workflow, by the
label-aware duplicate rule. Reads before each plan: the best successes, failures and unjudged workflows of the
question's bucket. Source: arXiv 2604.04503, §3 and Appendix 10.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from inference.runs import Run
from memory_serve.portable import walk
from memory_serve.protocol import Added, MemoryStore
from memory_serve.workflow import Summary, prepare
from mia.chat import ChatModel
from mia.types import Judgement, Question, Recalled

_VOLATILE = {"id", "created", "merged_from", "trajectory_id"}


class MiaMethod:
    """See `Method`.

    Args:
        store: the memory.
        summary: how workflows are made of runs.
        manager: the Manager model, for `summary = "model"`.
    """

    def __init__(self, store: MemoryStore, summary: Summary = "extractive", manager: ChatModel | None = None) -> None:
        self.store = store
        self._summary = summary
        self._manager = manager

    async def recall(self, question: Question, k: int = 2, skip: int = 0) -> Recalled:
        """See `Method.recall`."""
        return await self.store.recall(question, k, skip)

    async def learn(self, run: Run, judgement: Judgement) -> Added:
        """See `Method.learn`."""
        if judgement.correct is not None and run.recalled_ids:
            await self.store.credit(run.recalled_ids, judgement.correct, key=run.id)
        drafted = await prepare(run, judgement, self._summary, self._manager)
        (added,) = await self.store.add([drafted])
        return added

    async def dump(self) -> list[Mapping[str, JsonValue]]:
        """See `Method.dump`."""
        memories = sorted([m async for m in walk(self.store)], key=lambda m: (m.created, m.id))
        places = {m.id: place for place, m in enumerate(memories)}
        return [
            {
                **m.model_dump(mode="json", exclude=_VOLATILE),
                "merged_from": [places.get(source, -1) for source in m.merged_from],
            }
            for m in memories
        ]

    async def aclose(self) -> None:
        """Close the store."""
        await self.store.aclose()
