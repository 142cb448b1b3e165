"""The search service: a thin HTTP face of `SearchEngine`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from local_search.engine import SearchEngine
from local_search.schema import (
    MAX_HITS,
    MAX_QUERIES,
    Document,
    Documents,
    QueryResult,
    RetrieveRequest,
    ScoredDocument,
    ScoredDocuments,
    SearchRequest,
    SearchResponse,
)
from mia import __version__
from mia.errors import DataError
from mia.http import create_service

if TYPE_CHECKING:
    from fastapi import FastAPI


def create_app(engine: SearchEngine, k: int = 3) -> FastAPI:
    """The service over an engine, which is closed at its shutdown.

    Args:
        engine: searches; `/health` is ready once it is warm.
        k: passages for each query where a request does not say.
    """
    app = create_service("search", __version__, ready=lambda: engine.ready, on_close=engine.aclose)

    @app.post("/v1/search")
    async def search(request: SearchRequest) -> SearchResponse:
        """The best passages of each query."""
        wanted = k if request.k is None else request.k
        _bounded(request.queries, wanted)
        results = await engine.search(request.queries, wanted, request.mode)
        return SearchResponse(
            backend=engine.name_of(request.mode), results=[QueryResult(hits=hits) for hits in results]
        )

    @app.post("/retrieve")
    async def retrieve(request: RetrieveRequest) -> ScoredDocuments | Documents:
        """The contract of Search-R1's retrieval server; its answer has two shapes, by `return_scores`."""
        wanted = k if request.topk is None else request.topk
        _bounded(request.queries, wanted)
        found = await engine.find(request.queries, wanted)
        scored = [
            [ScoredDocument(document=Document(id=row.id, contents=row.contents), score=score) for row, score in hits]
            for hits in found
        ]
        if request.return_scores:
            return ScoredDocuments(result=scored)
        return Documents(result=[[hit.document for hit in hits] for hits in scored])

    return app


def _bounded(queries: Sequence[str], k: int) -> None:
    if len(queries) > MAX_QUERIES:
        raise DataError(
            f"{len(queries)} queries in one request",
            remedy=f"send at most {MAX_QUERIES} at once",
            code="too_many_queries",
        )
    if len(queries) * k > MAX_HITS:
        raise DataError(
            f"{len(queries)} queries for {k} passages each in one request",
            remedy=f"send fewer at once: queries times k may be {MAX_HITS}",
            code="too_many_hits",
        )
