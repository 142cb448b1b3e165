"""Searches through a running search service; the same methods as the engine in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from local_search.bounds import checked
from local_search.config import Mode
from local_search.schema import MAX_HITS, SearchRequest, SearchResponse
from mia.errors import ToolError
from mia.http import ServiceClient
from mia.types import Hit

if TYPE_CHECKING:
    import httpx

_CHUNK = 256
"""Queries in one request: well under the service's bounds on their number and on the size of a body."""


class SearchClient:
    """A `SearchBackend` over HTTP.

    Args:
        url: base URL of the service.
        mode: ranking to ask for; the service's own if not given.
        transport: another httpx transport, e.g. `httpx.ASGITransport(app)` in tests.

    `name` is the service's own name once it has answered, its URL before.
    """

    def __init__(self, url: str, mode: Mode | None = None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.name = url
        self.mode = mode
        self._service = ServiceClient(url, error=ToolError, transport=transport)

    async def search(self, queries: Sequence[str], k: int, mode: Mode | None = None) -> list[list[Hit]]:
        """See `SearchBackend` and `SearchEngine.search`. Long batches go out in several requests, in order.

        Raises:
            ToolError: the service cannot be reached or does not answer as it should.
        """
        clean = checked(queries, k)
        hits: list[list[Hit]] = []
        size = min(_CHUNK, MAX_HITS // k)
        for start in range(0, len(clean), size):
            chunk = clean[start : start + size]
            request = SearchRequest(queries=chunk, k=k, mode=mode or self.mode)
            answer = await self._service.call("POST", "/v1/search", SearchResponse, request)
            if len(answer.results) != len(chunk):
                raise ToolError(
                    f"{self._service.url} answered {len(chunk)} queries with {len(answer.results)} results",
                    remedy="check that url and version of the service are right",
                    code="bad_answer",
                )
            self.name = answer.backend
            hits.extend(result.hits for result in answer.results)
        return hits

    async def aclose(self) -> None:
        """Close all connections."""
        await self._service.aclose()
