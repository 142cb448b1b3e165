"""Chat models: one Protocol, three kinds (OpenAI-compatible endpoint, in-process checkpoint, scripted double)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mia.config import Endpoint
from mia.types import Message, Reply, Sampling, ToolSpec


class ChatModel(Protocol):
    """A model that answers conversations. Safe to call from many tasks at once."""

    @property
    def name(self) -> str:
        """What the model is called in records."""
        ...

    @property
    def context(self) -> int:
        """Context window in tokens."""
        ...

    async def generate(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec] = ()) -> Reply:
        """Answer a conversation.

        Args:
            messages: the whole conversation, oldest first.
            sampling: how to sample.
            tools: tools for native tool calling; empty when tools are described in the prompt.

        Raises:
            ModelError: the model did not answer; nothing was produced.
            DataError: a picture cannot be read (code `bad_picture`).
        """
        ...

    async def aclose(self) -> None:
        """Free what the model holds."""
        ...


def open_chat(endpoint: Endpoint) -> ChatModel:
    """The chat model of an endpoint. Heavy imports happen here, only for the kind that is used."""
    if endpoint.url == "embedded:" or endpoint.url.startswith("local:"):
        from mia.chat.local import LocalChat

        return LocalChat(endpoint)
    from mia.chat.openai import OpenAIChat

    return OpenAIChat(endpoint)
