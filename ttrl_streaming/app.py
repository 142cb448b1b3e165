"""The service that learns, over HTTP: routes and their bodies; no rule of learning lives here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Header
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from inference.events import Event
from memory_serve.app import check_token
from mia import __version__
from mia.errors import BY_BOUNDARY, DataError, MiaError, to_body
from mia.http import create_service
from ttrl_streaming.schema import (
    MAX_FEEDBACK,
    Answer,
    AskRequest,
    Curve,
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
from ttrl_streaming.service import Service

_FEEDBACK = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "description": "one item, or a batch whose items are taken or refused one by one",
                    "oneOf": [
                        FeedbackItem.model_json_schema(),
                        {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["items"],
                            "properties": {
                                "items": {"type": "array", "maxItems": MAX_FEEDBACK, "items": {"type": "object"}}
                            },
                        },
                    ],
                }
            }
        },
    }
}


def create_app(service: Service, token: str = "") -> FastAPI:
    """The service over HTTP; starts the core with the app, and closes it at shutdown.

    `/health` answers 503 until there are weights to answer with, and when the work on feedback has ended.

    Args:
        service: what is served.
        token: the bearer token that every `/v1` route asks for; empty: none.
    """
    starting: list[asyncio.Task[None]] = []

    async def started() -> None:
        if not starting:
            starting.append(asyncio.create_task(service.start()))

    app = create_service("streaming", __version__, lambda: service.healthy, service.aclose, on_open=started)

    async def guarded(authorization: Annotated[str, Header()] = "") -> Service:
        check_token(token, authorization)
        await started()
        await asyncio.shield(starting[0])
        return service

    _add_use(app, Depends(guarded))
    _add_upkeep(app, Depends(guarded))
    return app


# `= core` in the signatures below is FastAPI's way to say what a route depends on


def _add_use(app: FastAPI, core: Service) -> None:
    @app.post("/v1/ask", response_model=Answer)
    async def ask(request: AskRequest, core: Service = core) -> Any:
        if request.stream:
            return StreamingResponse(_events(core, request), media_type="text/event-stream")
        return await core.ask(request)

    @app.post("/v1/feedback", openapi_extra=_FEEDBACK)
    async def feedback(body: Annotated[dict[str, Any], Body()], core: Service = core) -> FeedbackAnswer:
        if "items" not in body:
            (taken,) = await _given(core, [body])
            if taken.error is not None:
                raise _refusal(taken)
            return FeedbackAnswer(results=(taken,))
        items = body["items"]
        if body.keys() != {"items"} or not isinstance(items, list) or not 1 <= len(items) <= MAX_FEEDBACK:
            raise DataError(
                f"items: a list of 1 to {MAX_FEEDBACK}, and nothing beside it",
                remedy="see /docs for the request body", code="bad_request",
            )  # fmt: skip
        return FeedbackAnswer(results=tuple(await _given(core, items)))

    @app.post("/v1/episodes")
    async def episodes(request: EpisodesRequest, core: Service = core) -> FeedbackAnswer:
        return FeedbackAnswer(results=tuple(await core.episodes(request.episodes, request.namespace)))


def _add_upkeep(app: FastAPI, core: Service) -> None:
    @app.get("/v1/status")
    async def status(namespace: str = "default", core: Service = core) -> Status:
        return await core.status(namespace)

    @app.get("/v1/curve")
    async def curve(namespace: str = "default", core: Service = core) -> Curve:
        return await core.curve(namespace)

    @app.post("/v1/flush")
    async def flush(request: Scoped, core: Service = core) -> FlushAnswer:
        return await core.flush(request.namespace)

    @app.post("/v1/checkpoint")
    async def checkpoint(request: Scoped, core: Service = core) -> VersionAnswer:
        return await core.checkpoint(request.namespace)

    @app.post("/v1/rollback")
    async def rollback(request: RollbackRequest, core: Service = core) -> VersionAnswer:
        return await core.rollback(request.namespace, request.version)


async def _given(core: Service, bodies: list[Any]) -> list[Taken]:
    """Take items one by one: one that cannot be read is refused, and the others are taken."""
    items: list[FeedbackItem | None] = []
    faults: list[str] = []
    for body in bodies:
        try:
            items.append(FeedbackItem.model_validate(body))
            faults.append("")
        except ValidationError as error:
            items.append(None)
            faults.append("; ".join(f"{'.'.join(map(str, e['loc'])) or 'item'}: {e['msg']}" for e in error.errors()))
    taken = await core.feedback(items)
    return [_told(each, fault, body) for each, fault, body in zip(taken, faults, bodies, strict=True)]


def _told(taken: Taken, fault: str, body: Any) -> Taken:
    """A refusal that says which field is wrong."""
    if not fault or taken.error is None:
        return taken
    name = body.get("id") if isinstance(body, dict) else None
    name = name if isinstance(name, str) else ""
    return taken.model_copy(update={"id": name[:64], "error": taken.error.model_copy(update={"message": fault})})


def _refusal(taken: Taken) -> MiaError:
    """The error of one item that was sent alone."""
    assert taken.error is not None
    error = taken.error
    status = {"not_found": 404, "not_answered": 409, "contradicted": 409}.get(error.code, 422)
    return BY_BOUNDARY[error.boundary](error.message, remedy=error.remedy, code=error.code, status=status)


async def _events(core: Service, request: AskRequest) -> AsyncIterator[str]:
    """An answer as server-sent events: what happens, by its name; then `done` with the answer, or `error`."""
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    task = asyncio.create_task(core.ask(request, events.put_nowait))
    task.add_done_callback(lambda _: events.put_nowait(None))
    while (event := await events.get()) is not None:
        yield _sent(event.event, event.model_dump_json())
    try:
        yield _sent("done", (await task).model_dump_json())
    except MiaError as error:
        yield _sent("error", to_body(error).model_dump_json())


def _sent(name: str, data: str) -> str:
    """One event; JSON has no line breaks of its own."""
    return f"event: {name}\ndata: {data}\n\n"
