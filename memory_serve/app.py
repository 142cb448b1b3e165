"""The memory service: any `MemoryStore` over HTTP, route by route; no rule of memory lives here."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Request

from memory_serve.protocol import MAX_BATCH, Change, Compacted, ServedStore, Stats, Stored
from memory_serve.schema import (
    AbsorbRequest,
    AddAnswer,
    AddRequest,
    ClearRequest,
    Count,
    CreditAnswer,
    CreditRequest,
    DeleteAnswer,
    DeleteRequest,
    EditRequest,
    History,
    ImportRequest,
    Page,
    PairsAnswer,
    PairsRequest,
    RecallAnswer,
    RecallRequest,
    Scoped,
    UndoRequest,
)
from mia import __version__
from mia.errors import DataError
from mia.http import Tally, create_service

View = Callable[[str | None], ServedStore]
"""Gives the store of a namespace."""


def create_app(store: ServedStore, token: str = "") -> FastAPI:
    """The service over a store; closes the store at shutdown.

    `/health` answers 503 while the store is closed or its last call met a fault that only a person can mend.

    Args:
        store: what is served.
        token: the bearer token that every `/v1` route asks for; empty: none.
    """
    unnamed = Tally(
        "mia_memory_classify_failures",
        "Questions whose category the rules named, as the Manager model did not",
        lambda: store.classify_failures,
    )
    app = create_service("memory", __version__, lambda: store.healthy, store.aclose, counts=(unnamed,))

    async def view(request: Request, authorization: Annotated[str, Header()] = "") -> View:
        check_token(token, authorization)
        actor = f"http {request.client.host if request.client else '-'}"
        return lambda namespace: store.scoped(namespace, actor)

    _add_reading(app, Depends(view))
    _add_writing(app, Depends(view))
    _add_upkeep(app, Depends(view))
    return app


def check_token(token: str, authorization: str) -> None:
    """Refuse a request that does not bring a service's bearer token; an empty token asks for none.

    Raises:
        DataError: it is missing or wrong (code `unauthorized`).
    """
    # Starlette reads headers as Latin-1; encoded back, they are the bytes that were sent.
    if token and not hmac.compare_digest(f"Bearer {token}".encode(), authorization.encode("latin-1")):
        raise DataError(
            "the bearer token is missing or wrong",
            remedy="send the header `Authorization: Bearer …` with the service's token",
            code="unauthorized",
            status=401,
        )


# `= view` in the signatures below is FastAPI's way to say what a route depends on


def _add_reading(app: FastAPI, view: View) -> None:
    @app.post("/v1/recall")
    async def recall(request: RecallRequest, view: View = view) -> RecallAnswer:
        store = view(request.namespace)
        found = [await store.recall(q, request.k, request.skip, request.own) for q in request.questions]
        return RecallAnswer(results=tuple(found))

    @app.post("/v1/pairs")
    async def pairs(request: PairsRequest, view: View = view) -> PairsAnswer:
        store = view(request.namespace)
        return PairsAnswer(results=tuple([tuple(await store.pairs(q, request.k)) for q in request.questions]))

    @app.get("/v1/memories")
    async def listing(limit: int = 100, offset: int = 0, namespace: str | None = None, view: View = view) -> Page:
        return Page(memories=tuple(await view(namespace).list(limit, offset)))

    @app.get("/v1/memories/{memory_id}")
    async def get(memory_id: str, namespace: str | None = None, view: View = view) -> Stored:
        memory = await view(namespace).get(memory_id)
        if memory is None:
            raise DataError(f"no memory {memory_id!r}", code="not_found", status=404)
        return memory

    @app.get("/v1/export")
    async def export(after: str = "", limit: int = MAX_BATCH, namespace: str | None = None, view: View = view) -> Page:
        return Page(memories=tuple(await view(namespace).export(after, limit)))

    @app.get("/v1/history")
    async def history(limit: int = 100, namespace: str | None = None, view: View = view) -> History:
        return History(changes=tuple(await view(namespace).history(limit)))

    @app.get("/v1/stats")
    async def stats(namespace: str | None = None, view: View = view) -> Stats:
        return await view(namespace).stats()


def _add_writing(app: FastAPI, view: View) -> None:
    @app.post("/v1/memories")
    async def add(request: AddRequest, view: View = view) -> AddAnswer:
        return AddAnswer(results=tuple(await view(request.namespace).add(request.memories)))

    @app.post("/v1/import")
    async def load(request: ImportRequest, view: View = view) -> AddAnswer:
        return AddAnswer(results=tuple(await view(request.namespace).load(request.memories)))

    @app.patch("/v1/memories/{memory_id}")
    async def update(
        memory_id: str, request: EditRequest, if_match: Annotated[str, Header()] = "", view: View = view
    ) -> Stored:
        return await view(request.namespace).update(memory_id, request.edit, _version(request, if_match))

    @app.delete("/v1/memories")
    async def delete(request: DeleteRequest, view: View = view) -> DeleteAnswer:
        return DeleteAnswer(deleted=await view(request.namespace).delete(request.ids))

    @app.post("/v1/credit")
    async def credit(request: CreditRequest, view: View = view) -> CreditAnswer:
        results = await view(request.namespace).credit(request.ids, request.success, request.key)
        return CreditAnswer(results=tuple(results))

    @app.post("/v1/absorb")
    async def absorb(request: AbsorbRequest, view: View = view) -> Count:
        return Count(count=await view(request.namespace).absorb(request.ids, request.checkpoint))


def _add_upkeep(app: FastAPI, view: View) -> None:
    @app.post("/v1/clear")
    async def clear(request: ClearRequest, view: View = view) -> Count:
        if request.all == (request.namespace is not None):
            raise DataError("say what to clear", remedy='send either "namespace" or "all": true', code="bad_request")
        return Count(count=await view(request.namespace).clear(everything=request.all))

    @app.post("/v1/compact")
    async def compact(request: Scoped, view: View = view) -> Compacted:
        return await view(request.namespace).compact()

    @app.post("/v1/undo")
    async def undo(request: UndoRequest, view: View = view) -> Change:
        return await view(request.namespace).undo(request.number)


def _version(request: EditRequest, if_match: str) -> int:
    """The version that a change is meant for: a change that says none is refused, as it could undo another's."""
    given = if_match.strip().strip('"')
    if request.version is not None and given in ("", str(request.version)):
        return request.version
    if request.version is None and given.isascii() and given.isdigit():
        return int(given)
    raise DataError(
        "no version, or two different ones",
        remedy="send the version that the memory had when you read it, as `version` or in the header If-Match",
        code="no_version",
        status=428 if request.version is None and not given else 422,
    )
