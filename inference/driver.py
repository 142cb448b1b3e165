"""The async driver: answers an episode's effects with chat models, tools and memory.

Thousands of episodes may run at once on one driver; it keeps no state of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from inference.effects import Announce, CallTools, Effect, Episode, Generate, Recall
from inference.events import Event
from inference.tools import ToolBox
from mia.chat import ChatModel
from mia.errors import MemoryStoreError, MiaError
from mia.types import Question, Recalled, Role

T = TypeVar("T")
Watch = Callable[[Event], None]


class Recaller(Protocol):
    """What answers `Recall`; a `MemoryStore` and a `Method` do."""

    async def recall(self, question: Question, k: int = 2, skip: int = 0) -> Recalled:
        """See `MemoryStore.recall`."""
        ...


class Driver:
    """Runs episodes.

    Args:
        models: the chat model of each role.
        toolbox: the tools.
        memory: what `Recall` asks, a store or a method; None refuses it.
        memory_k: memories of each outcome, or notes, to recall.
    """

    def __init__(
        self, models: Mapping[Role, ChatModel], toolbox: ToolBox, memory: Recaller | None = None, memory_k: int = 2
    ) -> None:
        self.models = models
        self.toolbox = toolbox
        self.memory = memory
        self._memory_k = memory_k

    async def run(self, episode: Episode[T], watch: Watch | None = None) -> T:
        """Drive an episode to its end.

        Raises:
            MiaError: the episode could not go on.
        """
        answer: Any = None
        error: MiaError | None = None
        try:
            while True:
                effect = episode.send(answer) if error is None else episode.throw(error)
                answer, error = None, None
                if isinstance(effect, Announce):
                    if watch is not None:
                        watch(effect.event)
                    continue
                try:
                    answer = await self._answer(effect)
                except MiaError as raised:
                    error = raised
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            episode.close()

    async def _answer(self, effect: Effect) -> Any:
        if isinstance(effect, Generate):
            return await self.models[effect.role].generate(effect.messages, effect.sampling, effect.tools)
        if isinstance(effect, CallTools):
            return await self.toolbox.run(effect.calls, effect.question)
        if isinstance(effect, Recall):
            if self.memory is None:
                raise MemoryStoreError("this run has no memory", remedy="set memory.enabled = true", code="no_memory")
            return await self.memory.recall(effect.question, self._memory_k, effect.page * self._memory_k)
        raise TypeError(f"no answer to {effect!r}")
