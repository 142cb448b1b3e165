"""A chat model that counts what it is asked, for those who must tell the cost of a part of their work."""

from __future__ import annotations

from collections.abc import Sequence

from mia.chat import ChatModel
from mia.types import Message, Reply, Sampling, ToolSpec, Usage


class Metered:
    """Another model with a meter; that model is closed by its owner."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self._usage = Usage()

    @property
    def name(self) -> str:
        """See `ChatModel`."""
        return self._model.name

    @property
    def context(self) -> int:
        """See `ChatModel`."""
        return self._model.context

    async def generate(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec] = ()) -> Reply:
        """See `ChatModel.generate`."""
        reply = await self._model.generate(messages, sampling, tools)
        self._usage += reply.usage
        return reply

    def take(self) -> Usage:
        """What was used since this was last called."""
        used, self._usage = self._usage, Usage()
        return used

    async def aclose(self) -> None:
        """Nothing to free here."""
