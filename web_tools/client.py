"""Online search through a running web service; the same methods as the engine in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mia.errors import ToolError
from mia.http import ServiceClient
from mia.types import Hit
from web_tools.bounds import MAX_QUERIES, checked, checked_k
from web_tools.protocol import hits_of
from web_tools.records import ImageQuery, ImageResult, SearchResult, Stats, Visit
from web_tools.schema import ImageRequest, ImageResponse, SearchRequest, SearchResponse, VisitRequest

if TYPE_CHECKING:
    import httpx

_BODY_CHARS = 12 * 1024 * 1024
"""Pictures in one request: under the service's bound on the size of a body."""


class WebClient:
    """`WebTools` over HTTP.

    Args:
        url: base URL of the service.
        transport: another httpx transport, e.g. `httpx.ASGITransport(app)` in tests.
        timeout_s: limit of one call, in seconds; long, since the service waits where Serper asks it to.

    `name` is the service's own name once it has answered, its URL before. Nothing is repeated here: the service does
    that, and would be paid for it twice.
    """

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None, timeout_s: float = 600.0) -> None:
        self.name = url
        self._service = ServiceClient(url, error=ToolError, transport=transport, timeout_s=timeout_s, retries=0)

    async def results(self, queries: Sequence[str], k: int) -> list[SearchResult]:
        """See `WebTools.results`. Long batches go out in several requests, in order."""
        clean = checked(queries, k)
        results: list[SearchResult] = []
        for start in range(0, len(clean), MAX_QUERIES):
            chunk = clean[start : start + MAX_QUERIES]
            answer = await self._service.call("POST", "/v1/search", SearchResponse, SearchRequest(queries=chunk, k=k))
            self._same_length(chunk, answer.results)
            self.name = answer.backend
            results.extend(answer.results)
        return results

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `WebTools.search`."""
        results = await self.results(queries, k)
        return hits_of(results, self.name)

    async def images(self, queries: Sequence[ImageQuery], k: int, download: bool = False) -> list[ImageResult]:
        """See `WebTools.images`. Long batches go out in several requests, in order."""
        checked_k(k)
        results: list[ImageResult] = []
        for chunk in _chunks(queries):
            body = ImageRequest(queries=chunk, k=k, download=download)
            answer = await self._service.call("POST", "/v1/image_search", ImageResponse, body)
            self._same_length(chunk, answer.results)
            results.extend(answer.results)
        return results

    async def visit(self, url: str, goal: str = "") -> Visit:
        """See `WebTools.visit`."""
        return await self._service.call("POST", "/v1/visit", Visit, VisitRequest(url=url, goal=goal))

    async def stats(self) -> Stats:
        """See `WebTools.stats`: the counts of the service."""
        return await self._service.call("GET", "/v1/stats", Stats)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._service.aclose()

    def _same_length(self, asked: Sequence[Any], answered: Sequence[Any]) -> None:
        if len(answered) != len(asked):
            raise ToolError(
                f"{self._service.url} answered {len(asked)} queries with {len(answered)} results",
                remedy="check that url and version of the service are right",
                code="bad_answer",
            )


def _chunks(queries: Sequence[ImageQuery]) -> Iterator[list[ImageQuery]]:
    chunk: list[ImageQuery] = []
    size = 0
    for query in queries:
        if chunk and (len(chunk) == MAX_QUERIES or size + len(query.image) > _BODY_CHARS):
            yield chunk
            chunk, size = [], 0
        chunk.append(query)
        size += len(query.image)
    if chunk:
        yield chunk
