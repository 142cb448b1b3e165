"""Which search the agent uses, by one line of the config: the local index, the live web, or both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.config import RunConfig
from inference.image_tools import ImageSearchTool
from inference.tools import SearchTool, Tool, VisitTool
from local_search.encoder import MiniLM
from local_search.hybrid import RRF_K
from local_search.open import open_search
from local_search.progress import bar
from local_search.protocol import SearchBackend
from mia.chat import ChatModel
from mia.types import Hit

if TYPE_CHECKING:
    from web_tools.protocol import WebTools


class Both:
    """Asks two backends at once and merges their hits by reciprocal rank fusion; each hit keeps the name of its own.

    A query fails when either backend fails on it: half of the evidence is not passed off as the whole.
    """

    def __init__(self, local: SearchBackend, web: SearchBackend, web_k: int) -> None:
        self.name = f"{local.name}+{web.name}"
        self._local, self._web, self._web_k = local, web, web_k

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `SearchBackend`. `k` counts for the local side; the web gives as many as its own setting says."""
        found = await asyncio.gather(self._local.search(queries, k), self._web.search(queries, self._web_k))
        return [_fused(*pair) for pair in zip(*found, strict=True)]

    async def aclose(self) -> None:
        """Close both."""
        await asyncio.gather(self._local.aclose(), self._web.aclose())


def _fused(local: Sequence[Hit], web: Sequence[Hit]) -> list[Hit]:
    """All hits, by falling 1 / (RRF_K + rank); of two with the same rank the local one comes first."""
    ordered = sorted([*local, *web], key=lambda hit: hit.rank)
    return [
        hit.model_copy(update={"rank": rank, "score": 1 / (RRF_K + hit.rank)}) for rank, hit in enumerate(ordered, 1)
    ]


@dataclass(frozen=True)
class Search:
    """The agent's search, the tools that it makes of it, and what has to be closed in the end."""

    backend: SearchBackend
    tools: tuple[Tool, ...]
    pictures: WebTools | None = None
    """Where pictures are searched, unless `backend` does that as well."""

    async def aclose(self) -> None:
        """Close all of it."""
        await self.backend.aclose()
        if self.pictures is not None:
            await self.pictures.aclose()


def open_tools(config: RunConfig, encoder: MiniLM, executor: ChatModel) -> Search:
    """Open the search that `search.backend` names; with the web, pages can be visited too, with `images` also pictures.

    Args:
        config: the run's config.
        encoder: shared with the memory.
        executor: extracts from pages, if `web.visit.extract` is `model`; closed by its owner.

    Raises:
        MiaError: an index, a key or a package is missing.
    """
    web: WebTools | None = None
    if config.search.backend != "local" or config.search.images:
        from web_tools.open import open_web  # half a second of imports, for those who use it

        web = open_web(config.web, executor)
    pictures = (ImageSearchTool(web, config.search.images),) if web is not None and config.search.images else ()
    if config.search.backend == "web" and web is not None:
        return Search(web, (SearchTool(web, config.web.k), VisitTool(web), *pictures))
    with bar() as step:
        local = open_search(config.search, step, encoder)
    if config.search.backend == "local" or web is None:
        return Search(local, (SearchTool(local, config.search.k), *pictures), web)
    both = Both(local, web, config.web.k)
    return Search(both, (SearchTool(both, config.search.k), VisitTool(web), *pictures))
