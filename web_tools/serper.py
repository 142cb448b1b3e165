"""Serper over HTTP: one call, its faults told apart, its key and its price. Knows no cache and reads no rows.

Faults (all ToolErrors): `bad_key` and `no_credits` are for the user to mend, `rejected` is a query that Serper will not
take, `rate_limited`, `unreachable`, `timeout` and `http_5xx` may pass and are repeated, `bad_answer` is no answer of
Serper's. The server's own words are kept. An answer with status 200 may be a fault, too: it is one if it has no results
field but words of a fault or a status code from 400.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Literal

import aiohttp

from mia.errors import ConfigError, ToolError
from web_tools.config import WebConfig
from web_tools.pace import Pace, Passing, patiently, retry_after
from web_tools.rows import Reply, parsed, server_words

Kind = Literal["search", "images", "lens"]

_CREDITS: dict[Kind, int] = {"search": 1, "images": 1, "lens": 3}
"""Price where an answer does not say it."""
_RESULTS = ("organic", "images")
_MAX_BYTES = 16 * 1024 * 1024
_KEY_REMEDY = "set the key, from https://serper.dev, in the environment variable"


class Serper:
    """Calls Serper. Use it in one event loop.

    Args:
        config: `base_url`, key, pace, retries and price.
    """

    def __init__(self, config: WebConfig) -> None:
        self._config = config
        self._base = config.base_url.rstrip("/")
        self._pace = Pace(config.rate)
        self._places = asyncio.Semaphore(config.concurrency)
        self._session: aiohttp.ClientSession | None = None
        self.requests = 0
        self.credits = 0

    async def call(self, kind: Kind, body: dict[str, Any]) -> Reply:
        """Ask Serper, again if the fault may pass.

        Raises:
            ConfigError: no key is set (code `no_key`).
            ToolError: Serper did not answer; see above.
        """
        key = api_key(self._config)
        config = self._config

        async def once() -> Reply:
            async with self._places:
                return await self._once(kind, body, key)

        reply = await patiently(once, config.retries, config.max_wait_s, self._pace)
        stated = reply.get("credits")
        self.credits += stated if isinstance(stated, int) and stated >= 0 else _CREDITS[kind]
        return reply

    async def _once(self, kind: Kind, body: dict[str, Any], key: str) -> Reply:
        if self._session is None:
            # A proxy of the environment is fine here: the host is the user's choice.
            self._session = aiohttp.ClientSession(
                trust_env=True,
                timeout=aiohttp.ClientTimeout(total=self._config.timeout_s),
                connector=aiohttp.TCPConnector(limit=0),  # bounded before its time runs
            )
        url = f"{self._base}/{kind}"
        self.requests += 1
        try:
            # Redirects are not followed: they would carry the key elsewhere.
            async with self._session.post(
                url, json=body, headers={"X-API-KEY": key}, allow_redirects=False
            ) as response:
                content = await response.content.read(_MAX_BYTES + 1)
                while len(content) <= _MAX_BYTES and (more := await response.content.read(_MAX_BYTES)):
                    content += more
        except TimeoutError as error:
            raise Passing(
                f"{self._base} did not answer within {self._config.timeout_s:g} s",
                code="timeout",
                remedy="try later, or raise web.timeout_s",
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Passing(
                f"{self._base} cannot be reached: {error or type(error).__name__}",
                code="unreachable",
                remedy="check the network and web.base_url",
            ) from error
        return self._judged(response, content)

    def _judged(self, response: aiohttp.ClientResponse, content: bytes) -> Reply:
        if len(content) > _MAX_BYTES:
            raise ToolError(f"{self._base} answered more than {_MAX_BYTES} bytes", code="too_large")
        status = response.status
        if status >= 300:
            try:
                words = server_words(parsed(content, self._base))
            except ToolError:
                words = content[:200].decode("utf-8", "replace").strip()
            raise self._refusal(status, words, response)
        reply = parsed(content, self._base)
        stated = reply.get("statusCode")
        code = stated if isinstance(stated, int) and stated >= 400 else 0
        words = server_words(reply)
        if code or (words and not any(name in reply for name in _RESULTS)):
            raise self._refusal(code or 400, words, response)
        return reply

    def _refusal(self, status: int, words: str, response: aiohttp.ClientResponse) -> ToolError:
        said = f"{self._base} answered {status}: {words or response.reason or 'no reason'}"
        names = " or ".join(self._config.api_key_env)
        if "credit" in words.lower():
            return ToolError(said, remedy=f"buy credits, or {_KEY_REMEDY} {names}", code="no_credits")
        if status in (401, 403):
            return ToolError(said, remedy=f"{_KEY_REMEDY} {names}", code="bad_key")
        if status == 429:
            wait = retry_after(response.headers)
            asked = "" if wait is None else f" (it asks to wait {wait:g} s)"
            return Passing(said + asked, "rate_limited", "lower web.rate, or raise web.max_wait_s", True, wait)
        if status == 408 or status >= 500:
            return Passing(said, f"http_{status}", "try later", retry_after=retry_after(response.headers))
        if status < 400:
            return ToolError(said, remedy="check web.base_url: redirects are not followed", code="bad_answer")
        return ToolError(said, remedy="change the query", code="rejected")

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


def api_key(config: WebConfig) -> str:
    """The key, from the first environment variable that is set.

    Raises:
        ConfigError: none is (code `no_key`).
    """
    for name in config.api_key_env:
        if key := os.environ.get(name, "").strip():
            return key
    raise ConfigError(
        f"online search needs a key, but {' and '.join(config.api_key_env)} are not set",
        remedy=f"{_KEY_REMEDY} {config.api_key_env[0] if config.api_key_env else 'that web.api_key_env names'}, "
        "search offline, or answer from the cache alone: web.mode = replay",
        code="no_key",
    )
