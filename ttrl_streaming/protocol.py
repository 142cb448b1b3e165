"""What the service that learns offers: the core and the HTTP client both satisfy it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ttrl_streaming.schema import (
    Answer,
    AskRequest,
    Curve,
    EpisodeItem,
    FeedbackItem,
    FlushAnswer,
    Status,
    Taken,
    VersionAnswer,
)


class Streaming(Protocol):
    """Answers questions, and learns from feedback on the answers."""

    async def ask(self, request: AskRequest) -> Answer:
        """Answer a question.

        Raises:
            MiaError: it could not be answered; or there is no room for it now (code `busy`); or its id was used for
                another question (code `id_taken`).
        """
        ...

    async def feedback(self, items: Sequence[FeedbackItem]) -> list[Taken]:
        """Take feedback; it is on disk when this returns. Each item is taken or refused on its own, see `Taken`."""
        ...

    async def episodes(self, items: Sequence[EpisodeItem], namespace: str = "default") -> list[Taken]:
        """Take questions that were answered elsewhere, with what the user said next."""
        ...

    async def status(self, namespace: str = "default") -> Status:
        """Counters, queue, version, alarms."""
        ...

    async def curve(self, namespace: str = "default") -> Curve:
        """All updates."""
        ...

    async def flush(self, namespace: str = "default") -> FlushAnswer:
        """Learn from all feedback that is there now, also if it is less than a batch. Returns when that is done.

        Raises:
            MiaError: something failed; what is left stays in the queue.
        """
        ...

    async def checkpoint(self, namespace: str = "default") -> VersionAnswer:
        """Copy the weights that serve, and the memory, into the folder of the run; made once for each version."""
        ...

    async def rollback(self, namespace: str = "default", version: int | None = None) -> VersionAnswer:
        """Let an earlier version serve: the one before, or the one that is named, if it is kept.

        Raises:
            DataError: there is none (code `no_version`).
        """
        ...

    async def aclose(self) -> None:
        """Free what is held."""
        ...
