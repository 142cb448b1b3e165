"""The memory service: any `MemoryStore` over HTTP, route by route; no rule of memory lives here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memory_serve.protocol import ServedStore, Stats
from memory_serve.schema import (
    AddAnswer,
    AddRequest,
    CreditAnswer,
    CreditRequest,
    DeleteAnswer,
    DeleteRequest,
    Page,
    RecallAnswer,
    RecallRequest,
)
from mia import __version__
from mia.errors import DataError
from mia.http import create_service
from mia.types import Memory

if TYPE_CHECKING:
    from fastapi import FastAPI


def create_app(store: ServedStore) -> FastAPI:
    """The service over a store; closes the store at shutdown.

    `/health` answers 503 while the store is closed or its last call met a fault that only a person can mend.
    """
    app = create_service("memory", __version__, ready=lambda: store.healthy, on_close=store.aclose)

    @app.post("/v1/recall")
    async def recall(request: RecallRequest) -> RecallAnswer:
        return RecallAnswer(results=tuple([await store.recall(q, request.k) for q in request.questions]))

    @app.post("/v1/memories")
    async def add(request: AddRequest) -> AddAnswer:
        return AddAnswer(results=tuple(await store.add(request.memories)))

    @app.get("/v1/memories")
    async def listing(limit: int = 100, offset: int = 0) -> Page:
        return Page(memories=tuple(await store.list(limit, offset)))

    @app.get("/v1/memories/{memory_id}")
    async def get(memory_id: str) -> Memory:
        memory = await store.get(memory_id)
        if memory is None:
            raise DataError(f"no memory {memory_id!r}", code="not_found", status=404)
        return memory

    @app.delete("/v1/memories")
    async def delete(request: DeleteRequest) -> DeleteAnswer:
        return DeleteAnswer(deleted=await store.delete(request.ids))

    @app.post("/v1/credit")
    async def credit(request: CreditRequest) -> CreditAnswer:
        return CreditAnswer(results=tuple(await store.credit(request.ids, request.success, request.key)))

    @app.get("/v1/stats")
    async def stats() -> Stats:
        return await store.stats()

    return app
