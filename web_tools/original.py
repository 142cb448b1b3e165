"""The original's route, `GET /search`, also as `/server/search`, for programs that were written for it.

It takes `q` once or several times, `max_results` (1 to 10), `engine` (only `serper` is here) and `deterministic` (from
the cache or not at all), and wraps what it answers in the original's envelope. `results` is one text for a model, as
its clients expect, with markup neutralised; `items` has the results by query. Otherwise than in the original, a query
that fails makes the whole call an error, because in one text a failure would read like a result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse

from mia import __version__
from mia.errors import DataError, MiaError, as_error
from mia.prompts import neutralise
from mia.types import Text
from web_tools.engine import WebEngine
from web_tools.records import SearchResult, WebHit

MAX_CHARS = 400
RETRY_AFTER_MS = 5000


def add_original_routes(app: FastAPI, engine: WebEngine) -> None:
    """Mount the routes on the service."""

    async def search(
        request: Request,
        q: Annotated[list[Text], Query(min_length=1, max_length=10)],
        max_results: Annotated[int, Query(ge=1, le=10)] = 3,
        engine_name: Annotated[Literal["serper"], Query(alias="engine")] = "serper",
        deterministic: bool = False,
    ) -> Any:
        """Search results as one text, in the original's envelope."""
        started = time.perf_counter()
        request_id = request.state.request_id
        try:
            results = await _results(engine, q, max_results, deterministic)
        except MiaError as error:
            status = 404 if error.code == "not_in_cache" else 422 if isinstance(error, DataError) else 500
            body = {"request_id": request_id, "error": str(error), "retry_after": RETRY_AFTER_MS}
            return JSONResponse(body, status_code=status)
        cached = all(result.cached for result in results)
        return {
            "request_id": request_id,
            "tool": {"name": "search", "version": __version__},
            "result": {
                "success": True,
                "engine": engine_name,
                "results": "\n\n".join(as_text(query, result) for query, result in zip(q, results, strict=True)),
                "items": [[_item(hit) for hit in result.hits] for result in results],
                "latency_ms": round((time.perf_counter() - started) * 1000),
            },
            "stat": {"cache": "DISABLED" if engine.config.cache.kind == "off" else "HIT" if cached else "MISS"},
        }

    for path in ("/server/search", "/search"):
        app.get(path, name=f"original {path}")(search)


async def _results(engine: WebEngine, queries: Sequence[str], k: int, deterministic: bool) -> list[SearchResult]:
    for query in queries:
        if len(query) > MAX_CHARS:
            raise DataError(f"a query has {len(query)} characters", remedy=f"at most {MAX_CHARS}", code="long_query")
    results = await engine.results(queries, k, cached_only=deterministic)
    for result in results:
        if result.failure is not None:
            raise as_error(result.failure)
    return results


def as_text(query: str, result: SearchResult) -> str:
    """A result as its clients show it to a model."""
    shown = "\n".join(_formatted(hit) for hit in result.hits) or "Nothing was found."
    return f"Results for {neutralise(query)}:\n{shown}"


def _formatted(hit: WebHit) -> str:
    when = f" ({hit.date})" if hit.date else ""
    return neutralise(f"[{hit.rank}] {hit.title}{when}\n{hit.url}\n{hit.snippet}")


def _item(hit: WebHit) -> dict[str, Any]:
    return {
        "title": hit.title,
        "url": hit.url,
        "snippet": hit.snippet,
        "source": hit.source,
        "date": hit.date,
        "formatted": _formatted(hit),
    }
