"""What online search must offer; the engine and its HTTP client satisfy it, and both are search backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mia.errors import as_error
from mia.types import Hit
from web_tools.records import ImageHit, ImageQuery, ImageResult, SearchResult, Stats, Visit


class WebTools(Protocol):
    """Searches and reads the web. Safe to call from many tasks of one event loop at once."""

    name: str
    """What answered, written in every `Hit.backend`."""

    async def results(self, queries: Sequence[str], k: int) -> list[SearchResult]:
        """One result per query, in their order; a query that fails has a `failure` and leaves the others alone.

        Raises:
            DataError: a query is blank or too long, or k is out of bounds.
        """
        ...

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `results`, in the form of a search backend: hits alone.

        Raises:
            DataError: a query is blank or too long, or k is out of bounds.
            MiaError: the failure of the first query that failed (a ToolError, or a ConfigError where no key is set).
        """
        ...

    async def images(self, queries: Sequence[ImageQuery], k: int, download: bool = False) -> list[ImageResult]:
        """Pictures for each query, in their order; a query that fails has a `failure`.

        Args:
            queries: by words or by picture.
            k: pictures for each.
            download: also fetch the pictures that a live search found, as data URLs; one that cannot be had has a
                `failure` and no picture.
        """
        ...

    async def visit(self, url: str, goal: str = "") -> Visit:
        """The text of a page, or what of it serves a goal.

        Raises:
            DataError: the URL may not be visited.
            ToolError: the page cannot be had or read.
            ModelError: the model that should extract did not answer.
        """
        ...

    async def stats(self) -> Stats:
        """Counts of calls and their estimated cost."""
        ...

    async def aclose(self) -> None:
        """Free what is held."""
        ...


class ImageFinder(Protocol):
    """Finds pictures like a given one, in this process, without any call over a network."""

    by_words: bool
    """Whether it also finds pictures by words; if not, these are searched by Serper."""

    async def find(self, query: ImageQuery, k: int) -> list[ImageHit]:
        """The best pictures, best first.

        Raises:
            DataError: the query does not say what this finder needs.
            ToolError: nothing is known of it, or what is kept is damaged.
        """
        ...

    async def aclose(self) -> None:
        """Free what is held."""
        ...


def hits_of(results: Sequence[SearchResult], backend: str) -> list[list[Hit]]:
    """The hits of results, none of which may have failed.

    Raises:
        MiaError: the failure of the first one that did.
    """
    for result in results:
        if result.failure is not None:
            raise as_error(result.failure)
    return [[hit.as_hit(backend) for hit in result.hits] for result in results]
