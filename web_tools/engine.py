"""Online search in this process. Knows no HTTP service; `client` is its twin over the network.

A query of a batch that fails, fails alone; every answer is cached, no failure is; equal calls at the same time are made
once. Pages and results are the words of strangers: they come back as they are, and whoever shows them to a model must
render them through `mia.prompts`.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from mia.chat import ChatModel
from mia.errors import DataError, MiaError, ToolError
from mia.pictures import is_data_url
from mia.prompts import prompt
from mia.types import Hit
from web_tools import extract
from web_tools.addresses import checked_url
from web_tools.bounds import MAX_GOAL_CHARS, checked, checked_k
from web_tools.cache import Cache
from web_tools.config import WebConfig
from web_tools.fetch import Fetcher
from web_tools.memo import Memo
from web_tools.pace import patiently
from web_tools.pictures import small
from web_tools.protocol import ImageFinder, hits_of
from web_tools.reading import read
from web_tools.records import ImageHit, ImageQuery, ImageResult, Page, SearchResult, Stats, Visit
from web_tools.rows import Reply, image_hits, table, web_hits
from web_tools.serper import Kind, Serper

_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_KANA = re.compile(r"[\u3040-\u30ff]")


class WebEngine:
    """The core of online search (see `protocol.WebTools`). `open.open_web` makes one of a config.

    Args:
        config: the section `[web]`.
        cache: keeps answers; closed with the engine.
        fetcher: gets pages and pictures; closed with the engine.
        finder: finds pictures like a given one; None: Serper Lens does.
        chat: extracts from pages what serves a goal; None: the passages that match it. Closed with the engine.

    Make it and use it in one event loop.
    """

    name = "serper"

    def __init__(
        self,
        config: WebConfig,
        cache: Cache,
        fetcher: Fetcher,
        finder: ImageFinder | None = None,
        chat: ChatModel | None = None,
    ) -> None:
        self.config = config
        self._memo = Memo(cache, replay=config.mode == "replay")
        self._serper = Serper(config)
        self._fetcher = fetcher
        self._finder = finder
        self._chat = chat
        self._visits = 0
        self._failures = 0
        self._closed = False

    @property
    def ready(self) -> bool:
        """Whether it answers calls."""
        return not self._closed

    # ---------------------------------------------------------------------------------------------- text

    async def results(self, queries: Sequence[str], k: int, cached_only: bool = False) -> list[SearchResult]:
        """See `WebTools.results`; `cached_only` answers from the cache or not at all, as in a replay."""
        clean = checked(queries, k)
        return list(await asyncio.gather(*(self._result(query, k, cached_only) for query in clean)))

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `WebTools.search`."""
        return hits_of(await self.results(queries, k), self.name)

    async def _result(self, query: str, k: int, cached_only: bool) -> SearchResult:
        # Ten cost as much as one, so asking for tens lets the same answer serve other k.
        body = {"q": query, "num": -(-k // 10) * 10, **self._locale(query)}
        try:
            reply, cached = await self._ask("search", body, cached_only)
        except MiaError as error:
            self._failures += 1
            return SearchResult(failure=error.failure())
        return SearchResult(
            hits=web_hits(reply, self.name)[:k],
            answer_box=table(reply, "answerBox"),
            knowledge_graph=table(reply, "knowledgeGraph"),
            cached=cached,
        )

    async def _ask(self, kind: Kind, body: dict[str, Any], cached_only: bool = False) -> tuple[Reply, bool]:
        self._open()

        async def make() -> Reply:
            reply = await self._serper.call(kind, body)
            (web_hits if kind == "search" else image_hits)(reply, self.name)  # what cannot be read is not kept
            return reply

        return await self._memo.answer(kind, make, cached_only=cached_only, server=self.config.base_url, body=body)

    def _locale(self, query: str) -> dict[str, str]:
        """Country and language of a search; as in the original, Chinese queries are searched in China."""
        chinese = bool(_CHINESE.search(query)) and not _KANA.search(query)
        country = self.config.country or ("cn" if chinese else "us")
        return {"gl": country, "hl": self.config.language or ("zh-cn" if chinese else "en")}

    # ---------------------------------------------------------------------------------------------- pictures

    async def images(self, queries: Sequence[ImageQuery], k: int, download: bool = False) -> list[ImageResult]:
        """See `WebTools.images`."""
        checked_k(k)
        return list(await asyncio.gather(*(self._image_result(query, k, download) for query in queries)))

    async def _image_result(self, query: ImageQuery, k: int, download: bool) -> ImageResult:
        try:
            self._open()
            if self._finder is not None and (self._finder.by_words or not query.query):
                return ImageResult(hits=tuple(await self._finder.find(query, k)), cached=True)
            reply, cached = await self._live_images(query, k)
        except MiaError as error:
            self._failures += 1
            return ImageResult(failure=error.failure())
        hits = image_hits(reply, self.name)[:k]
        if download:
            hits = tuple(await asyncio.gather(*(self._with_picture(hit) for hit in hits)))
        return ImageResult(hits=hits, cached=cached)

    async def _live_images(self, query: ImageQuery, k: int) -> tuple[Reply, bool]:
        if query.query:
            (words,) = checked([query.query], k)
            return await self._ask("images", {"q": words, "num": -(-k // 10) * 10, **self._locale(words)})
        if not query.image or is_data_url(query.image):
            raise ToolError(
                "Serper Lens searches by the public URL of a picture",
                remedy="give an http(s) URL, or set web.images.kind = cache or index",
                code="needs_url",
            )
        url, _ = checked_url(query.image, self.config.allow_hosts)
        return await self._ask("lens", {"url": str(url), **self._locale(query.caption)})

    async def _with_picture(self, hit: ImageHit) -> ImageHit:
        """The hit with its picture, or else its thumbnail, as a data URL; or with the reason why there is none."""
        failure = ToolError("the result names no picture", code="missing").failure()
        for url in filter(None, (hit.image_url, hit.thumbnail_url)):
            try:
                image, _ = await self._memo.answer("picture", partial(self._picture, url), url=url)
            except MiaError as error:
                failure = error.failure()
            else:
                return hit.model_copy(update={"image": image})
        return hit.model_copy(update={"failure": failure})

    async def _picture(self, url: str) -> str:
        fetched = await self._fetcher.get(url, accept="image/webp, image/png, image/jpeg, image/*;q=0.5")
        return await asyncio.to_thread(small, fetched.body)

    # ---------------------------------------------------------------------------------------------- pages

    async def visit(self, url: str, goal: str = "") -> Visit:
        """See `WebTools.visit`."""
        self._open()
        if len(goal) > MAX_GOAL_CHARS:
            raise DataError(
                f"the goal has {len(goal)} characters", remedy=f"at most {MAX_GOAL_CHARS}", code="long_goal"
            )
        self._visits += 1
        try:
            address, _ = checked_url(url, self.config.allow_hosts)
            kept, cached = await self._memo.answer("page", lambda: self._page(str(address)), url=str(address))
            page = Page.model_validate(kept)
            return await self._shown(page, goal.strip(), cached)
        except MiaError:
            self._failures += 1
            raise

    async def _page(self, url: str) -> dict[str, Any]:
        limits = self.config.visit
        fetched = await patiently(lambda: self._fetcher.get(url), self.config.retries, self.config.max_wait_s)
        return (await read(fetched, limits.max_pages, limits.read_s)).model_dump(mode="json")

    async def _shown(self, page: Page, goal: str, cached: bool) -> Visit:
        limits = self.config.visit
        head: dict[str, Any] = {"method": "page", "cached": cached}
        if not goal:
            shown = extract.Extract(page.text[: limits.max_chars], len(page.text) > limits.max_chars)
        elif self._chat is None:
            head["method"] = "passages"
            shown = await asyncio.to_thread(extract.matching, page.text, goal, limits.passages, limits.max_chars)
        else:
            shown, also_cached = await self._extracted(page, goal, self._chat)
            head = {
                "method": "model",
                "cached": cached and also_cached,
                "model": self._chat.name,
                "prompt_hash": prompt(extract.PROMPT).hash,
            }
        return Visit(
            url=page.url,
            title=page.title,
            date=page.date,
            content_type=page.content_type,
            text=shown.text,
            truncated=shown.truncated or page.cut,
            **head,
        )

    async def _extracted(self, page: Page, goal: str, chat: ChatModel) -> tuple[extract.Extract, bool]:
        limits = self.config.visit

        async def make() -> list[Any]:
            made = await extract.extracted(page.url, page.text, goal, chat, limits.extract_tokens, limits.max_chars)
            return list(made)

        kept, cached = await self._memo.answer(
            "extract",
            make,
            page=hashlib.sha256(page.text.encode()).hexdigest(),
            url=page.url,
            goal=goal,
            model=chat.name,
            prompt=prompt(extract.PROMPT).hash,
            limits=[limits.extract_tokens, limits.max_chars],
        )
        return extract.Extract(*kept), cached

    # ---------------------------------------------------------------------------------------------- the rest

    async def stats(self) -> Stats:
        """See `WebTools.stats`. Each engine counts for itself."""
        return Stats(
            requests=self._serper.requests,
            visits=self._visits,
            cache_hits=self._memo.hits,
            cache_misses=self._memo.misses,
            failures=self._failures,
            credits=self._serper.credits,
            cost_usd=round(self._serper.credits * self.config.cost_per_credit, 6),
        )

    def _open(self) -> None:
        if self._closed:
            raise ToolError("online search is closed", remedy="open it anew", code="closed")

    async def aclose(self) -> None:
        """Close the cache and all connections. Calls that come later fail with a ToolError."""
        if self._closed:
            return
        self._closed = True
        await self._memo.aclose()
        await self._serper.aclose()
        await self._fetcher.aclose()
        for held in (self._finder, self._chat):
            if held is not None:
                await held.aclose()
