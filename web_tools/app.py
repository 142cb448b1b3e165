"""The web service: a thin HTTP face of `WebEngine`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia import __version__
from mia.http import create_service
from web_tools.engine import WebEngine
from web_tools.original import add_original_routes
from web_tools.records import Stats, Visit
from web_tools.schema import ImageRequest, ImageResponse, SearchRequest, SearchResponse, VisitRequest

if TYPE_CHECKING:
    from fastapi import FastAPI


def create_app(engine: WebEngine) -> FastAPI:
    """The service over an engine, which is closed at its shutdown."""
    app = create_service("web", __version__, ready=lambda: engine.ready, on_close=engine.aclose)
    own_k = engine.config.k

    @app.post("/v1/search")
    async def search(request: SearchRequest) -> SearchResponse:
        """Results of each query; a query that fails has a failure and leaves the others alone."""
        results = await engine.results(request.queries, own_k if request.k is None else request.k)
        return SearchResponse(backend=engine.name, results=results)

    @app.post("/v1/image_search")
    async def image_search(request: ImageRequest) -> ImageResponse:
        """Pictures for each query, by words or by picture."""
        k = own_k if request.k is None else request.k
        return ImageResponse(results=await engine.images(request.queries, k, request.download))

    @app.post("/v1/visit")
    async def visit(request: VisitRequest) -> Visit:
        """The text of a page, or what of it serves a goal. The text is untrusted."""
        return await engine.visit(request.url, request.goal)

    @app.get("/v1/stats")
    async def stats() -> Stats:
        """Counts of calls, and their estimated cost."""
        return await engine.stats()

    add_original_routes(app, engine)
    return app
