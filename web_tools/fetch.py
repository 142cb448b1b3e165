"""Gets pages and pictures of the public Internet within bounds of time, size and redirects; see `addresses` for where.

Redirects are followed here, one by one, each target checked like the first URL. Nothing is kept between visits: no
cookies, no DNS answers. Proxies of the environment are not used, since a proxy would connect where we cannot look.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from mia.errors import DataError, ToolError
from web_tools.addresses import GuardedResolver, checked_url, guarded_socket
from web_tools.config import VisitConfig
from web_tools.pace import Passing, retry_after

_HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; mia-agent; +https://arxiv.org/abs/2604.04503)",
    "Accept-Language": "en, *;q=0.5",
}
_MOVED = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_LASTING = (aiohttp.ClientConnectorDNSError, aiohttp.ClientSSLError, aiohttp.InvalidURL)
"""Faults on the way that trying again does not mend."""
_CHUNK = 64 * 1024


@dataclass(frozen=True)
class Fetched:
    """A body as it came, unpacked. `content_type` has no parameters; `charset` is None where none was declared."""

    url: str
    content_type: str
    charset: str | None
    body: bytes


class Fetcher:
    """Gets public URLs. Make it and use it in one event loop.

    Args:
        limits: bounds of a visit.
        allow_hosts: hosts visited although not public, as in `WebConfig.allow_hosts`.
        resolver: resolves names; the system's if not given.
    """

    def __init__(
        self, limits: VisitConfig, allow_hosts: tuple[str, ...] = (), resolver: AbstractResolver | None = None
    ) -> None:
        self._limits = limits
        self._allow_hosts = allow_hosts
        self._resolver = resolver
        self._places = asyncio.Semaphore(limits.concurrency)
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def get(self, url: str, accept: str = "text/html, application/pdf, text/*;q=0.9, */*;q=0.5") -> Fetched:
        """Get a URL.

        Raises:
            DataError: the URL may not be visited.
            ToolError: the page cannot be had: unreachable, refused, too slow, too large, redirected too often or to
                where it may not be visited.
        """
        checked_url(url, self._allow_hosts)  # refused before it waits for a place
        async with self._places:
            try:
                async with asyncio.timeout(self._limits.timeout_s):
                    return await self._follow(url, {**_HEADERS, "Accept": accept})
            except TimeoutError as error:
                raise Passing(
                    f"{_short(url)} did not answer within {self._limits.timeout_s:g} s",
                    code="timeout",
                    remedy="try later, or raise web.visit.timeout_s",
                ) from error
            except (aiohttp.ClientError, OSError) as error:
                words = f"{_short(url)} cannot be reached: {(str(error) or type(error).__name__)[:200]}"
                if isinstance(error, _LASTING):
                    raise ToolError(words, code="unreachable", remedy="check the URL") from error
                raise Passing(words, code="unreachable", remedy="check the URL, or try later") from error

    async def _follow(self, text: str, headers: dict[str, str]) -> Fetched:
        for _ in range(self._limits.max_redirects + 1):
            url, allowed = checked_url(text, self._allow_hosts)
            async with self._session(allowed).get(url, headers=headers, allow_redirects=False) as response:
                if response.status not in _MOVED or "Location" not in response.headers:
                    return await self._read(response)
                text = self._target(url, response.headers["Location"])
        raise ToolError(
            f"more than {self._limits.max_redirects} redirects", remedy="check the URL", code="too_many_redirects"
        )

    def _target(self, url: URL, location: str) -> str:
        """Where a redirect leads, checked like the first URL; but a wrong target is no fault of who asked."""
        try:
            if "\\" in location:  # read as a slash by some programs and not by others
                raise ValueError("a backslash")
            target = str(url.join(URL(location)))
            checked_url(target, self._allow_hosts)
        except (ValueError, DataError) as error:
            reason = error.message if isinstance(error, DataError) else "the target is no URL"
            raise ToolError(
                f"{_short(str(url))} redirects to where nothing is visited: {reason}",
                remedy="visit another page",
                code="forbidden_url",
            ) from error
        return target

    async def _read(self, response: aiohttp.ClientResponse) -> Fetched:
        if response.status >= 300:
            raise _status_error(response)
        limit = self._limits.max_bytes
        if (response.content_length or 0) > limit:
            raise _too_large(response, limit)
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_chunked(_CHUNK):  # unpacked: a small body may unpack to gigabytes
            size += len(part)
            if size > limit:
                raise _too_large(response, limit)
            parts.append(part)
        return Fetched(
            url=str(response.url),
            content_type=response.content_type.lower(),
            charset=response.charset,
            body=b"".join(parts),
        )

    def _session(self, allowed: bool) -> aiohttp.ClientSession:
        """One for public hosts, behind the walls, and one for the hosts of the allow-list."""
        if allowed not in self._sessions:
            resolver = self._resolver or aiohttp.ThreadedResolver()
            connector = aiohttp.TCPConnector(
                resolver=resolver if allowed else GuardedResolver(resolver),
                use_dns_cache=False,
                socket_factory=None if allowed else guarded_socket,
            )
            self._sessions[allowed] = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        return self._sessions[allowed]

    async def aclose(self) -> None:
        """Close all connections."""
        for session in self._sessions.values():
            await session.close()


def _short(url: str) -> str:
    return url if len(url) <= 200 else url[:200] + "…"


def _too_large(response: aiohttp.ClientResponse, limit: int) -> ToolError:
    return ToolError(
        f"{_short(str(response.url))} is larger than {limit} bytes",
        remedy="visit another page, or raise web.visit.max_bytes",
        code="too_large",
    )


def _status_error(response: aiohttp.ClientResponse) -> ToolError:
    words = f"{_short(str(response.url))} answered {response.status} {response.reason or ''}".rstrip()
    code = f"http_{response.status}"
    if response.status in _PASSING:
        throttled = response.status == 429
        return Passing(words, code, "try later", throttled, retry_after(response.headers))
    return ToolError(words, remedy="check the URL, or visit another page", code=code)
