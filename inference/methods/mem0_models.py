"""What Mem0 calls: our Manager in the place of its language model, our encoder in the place of its embedder.

The package takes a reply that it cannot read for "nothing to remember"; here it is asked for again, three times at
most, and then an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Annotated, Any

from pydantic import ConfigDict, StringConstraints

from inference.methods.notes import TRIES, Manager
from inference.verdicts import Form, read_form
from local_search.protocol import Encoder, Vectors
from mia.errors import ParseError
from mia.prompts import neutralise, prompt
from mia.types import Message


class Fact(Form):
    """One fact; the package knows further fields of it."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    text: Annotated[str, StringConstraints(pattern=r"\S")]


class Facts(Form):
    """What the package wants its language model to reply."""

    memory: list[Fact]


class Extractor:
    """The package's language model: the Manager, on the loop of whoever learns.

    Args:
        manager: is asked.
        loop: where it is asked; the package itself works on another thread.
    """

    def __init__(self, manager: Manager, loop: asyncio.AbstractEventLoop) -> None:
        self._manager = manager
        self._loop = loop
        self._asked: Future[str] | None = None
        self._gone = False

    def generate_response(self, messages: Sequence[Mapping[str, str]], **_: Any) -> str:
        """The reply to a conversation, as JSON that the package can read."""
        self._asked = asyncio.run_coroutine_threadsafe(self._reply(messages), self._loop)
        if self._gone:  # looked at after `_asked` is set, as `cancel` looks at `_asked` after `_gone` is
            self._asked.cancel()
        return self._asked.result()

    def cancel(self) -> None:
        """Stop waiting for the Manager: whoever learned has gone."""
        self._gone = True
        if self._asked is not None:
            self._asked.cancel()

    async def _reply(self, messages: Sequence[Mapping[str, str]]) -> str:
        told = [Message(role=m["role"], text=m["content"]) for m in messages]
        told = [m if m.role == "system" else m.model_copy(update={"text": neutralise(m.text)}) for m in told]
        fault = ""
        for _ in range(TRIES):
            again = [Message(role="user", text=prompt("judge/again").render(fault=fault))] if fault else []
            reply = await self._manager.model.generate([*told, *again], self._manager.sampling)
            try:
                return read_form(reply.text, Facts).model_dump_json()
            except ParseError as error:
                fault = error.message
        raise ParseError(
            f"{self._manager.model.name}: no readable facts in {TRIES} tries ({fault})",
            remedy="use a stronger Manager model; nothing was learned of this run",
            code="no_note",
        )


class Embedder:
    """The package's embedder.

    Args:
        encoder: makes the vectors.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.made: dict[str, Vectors] = {}
        """Vectors (d,) of the texts that were encoded to be stored."""

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        """The vector of a text."""
        return self.embed_batch([text], memory_action)[0]

    def embed_batch(self, texts: Sequence[str], memory_action: str | None = "add") -> list[list[float]]:
        """The vectors of texts."""
        vectors = self._encoder.encode(list(texts), "query")
        if memory_action == "add":
            self.made.update(zip(texts, vectors, strict=True))
        made: list[list[float]] = vectors.tolist()
        return made
