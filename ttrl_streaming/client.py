"""The service that learns, from afar: the same methods and the same errors as in-process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import BaseModel

from memory_serve.client import with_token
from mia.errors import DataError, ErrorBody, ModelError, from_body
from mia.http import B, ServiceClient
from mia.types import Record
from ttrl_streaming.schema import (
    MAX_FEEDBACK,
    Answer,
    AskRequest,
    Curve,
    EpisodeItem,
    EpisodesRequest,
    FeedbackAnswer,
    FeedbackItem,
    FlushAnswer,
    RollbackRequest,
    Scoped,
    Status,
    Taken,
    VersionAnswer,
)

if TYPE_CHECKING:
    import httpx


class FeedbackBatch(Record):
    """Several items, taken or refused one by one."""

    items: tuple[FeedbackItem, ...]


class StreamingClient:
    """See `ttrl_streaming.protocol.Streaming`.

    Args:
        url: base URL of the service.
        transport: another httpx transport, e.g. `httpx.ASGITransport(app)` in tests.
        timeout_s: limit of one call, in seconds; a flush takes as long as its updates.
        retries: repetitions after a passing fault. Questions are sent with an id, so that none is answered twice.
        token: the service's bearer token; empty: none is sent.
    """

    def __init__(
        self,
        url: str,
        transport: httpx.AsyncBaseTransport | None = None,
        timeout_s: float = 600.0,
        retries: int = 2,
        token: str = "",
    ) -> None:
        transport = with_token(transport, token) if token else transport
        self._service = ServiceClient(url, ModelError, transport, timeout_s, retries)
        self._timeout_s = timeout_s
        self._transport = transport

    async def ask(self, request: AskRequest) -> Answer:
        """See `Streaming.ask`."""
        return await self._service.call("POST", "/v1/ask", Answer, _named(request))

    async def events(self, request: AskRequest) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """The events of an answer as they happen, by name; the last one is `done`, with the answer.

        Raises:
            MiaError: see `Streaming.ask`.
        """
        import httpx

        body = _named(request).model_copy(update={"stream": True}).model_dump_json()
        headers = {"content-type": "application/json"}
        async with (
            httpx.AsyncClient(base_url=self._service.url, transport=self._transport, timeout=self._timeout_s) as client,
            client.stream("POST", "/v1/ask", content=body, headers=headers) as response,
        ):
            if response.is_error:
                await response.aread()
                raise from_body(ErrorBody.model_validate(response.json()["error"]), response.status_code)
            name = ""
            async for line in response.aiter_lines():
                kind, _, value = line.partition(": ")
                if kind == "event":
                    name = value
                elif kind == "data":
                    if name == "error":
                        raise from_body(ErrorBody.model_validate_json(value), 502)
                    yield name, json.loads(value)

    async def feedback(self, items: Sequence[FeedbackItem]) -> list[Taken]:
        """See `Streaming.feedback`."""
        taken: list[Taken] = []
        for start in range(0, len(items), MAX_FEEDBACK):
            body = FeedbackBatch(items=tuple(items[start : start + MAX_FEEDBACK]))
            taken += (await self._service.call("POST", "/v1/feedback", FeedbackAnswer, body)).results
        return taken

    async def episodes(self, items: Sequence[EpisodeItem], namespace: str = "default") -> list[Taken]:
        """See `Streaming.episodes`."""
        body = EpisodesRequest(episodes=tuple(items), namespace=namespace)
        return list((await self._service.call("POST", "/v1/episodes", FeedbackAnswer, body)).results)

    async def status(self, namespace: str = "default") -> Status:
        """See `Streaming.status`."""
        return await self._service.call("GET", f"/v1/status?namespace={quote(namespace)}", Status)

    async def curve(self, namespace: str = "default") -> Curve:
        """See `Streaming.curve`."""
        return await self._service.call("GET", f"/v1/curve?namespace={quote(namespace)}", Curve)

    async def flush(self, namespace: str = "default") -> FlushAnswer:
        """See `Streaming.flush`."""
        return await self._post("/v1/flush", FlushAnswer, Scoped(namespace=namespace))

    async def checkpoint(self, namespace: str = "default") -> VersionAnswer:
        """See `Streaming.checkpoint`."""
        return await self._post("/v1/checkpoint", VersionAnswer, Scoped(namespace=namespace))

    async def rollback(self, namespace: str = "default", version: int | None = None) -> VersionAnswer:
        """See `Streaming.rollback`. The version is named, so that a repeated request goes back no further."""
        if version is None:
            now = await self.status(namespace)
            points = (await self.curve(namespace)).points
            version = next((point.parent for point in points if point.version == now.version), None)
            if version is None:
                raise DataError(
                    f"there is no version before {now.version}", remedy="nothing was learned yet", code="no_version",
                    status=409,
                )  # fmt: skip
        return await self._post("/v1/rollback", VersionAnswer, RollbackRequest(namespace=namespace, version=version))

    async def aclose(self) -> None:
        """Close all connections; the service goes on."""
        await self._service.aclose()

    async def _post(self, path: str, answer: type[B], body: BaseModel) -> B:
        return await self._service.call("POST", path, answer, body)


def _named(request: AskRequest) -> AskRequest:
    """A question with an id, which makes it safe to repeat."""
    import uuid

    return request if request.id is not None else request.model_copy(update={"id": uuid.uuid4().hex})
