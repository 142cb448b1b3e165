"""Requests made up from the web service's own OpenAPI: none of them makes it stumble."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import uvicorn
from aiohttp.abc import AbstractResolver, ResolveResult

from tests.fuzzing import fuzz
from web_tools.app import create_app
from web_tools.cache import DiskCache
from web_tools.config import WebConfig
from web_tools.engine import WebEngine
from web_tools.fetch import Fetcher
from web_tools.stub import Answer, Seen, found, pictured, serving

OPERATIONS = {
    "POST /v1/search",
    "POST /v1/image_search",
    "POST /v1/visit",
    "GET /v1/stats",
    "GET /search",
    "GET /server/search",
    "GET /health",
}


class NoNames(AbstractResolver):
    """Knows no name, so that made-up URLs lead nowhere."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        raise OSError(f"no such name: {host}")

    async def close(self) -> None:
        """Nothing to free."""


def upstream(request: Seen) -> Answer:
    if request.path == "/search":
        return Answer(found(request.json["q"], 2))
    return Answer(pictured("x", "https://example.org", 2, lens=request.path == "/lens"))


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The service on a real socket."""
    monkeypatch.setenv("SERPER_API_KEY", "the-key")
    with serving(upstream) as serper, socket.socket() as listener:
        config = WebConfig(base_url=serper.url, rate=100_000.0, retries=0)
        engine = WebEngine(config, DiskCache(tmp_path), Fetcher(config.visit, resolver=NoNames()))
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(engine), log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)
    assert any(request.path == "/search" for request in serper.seen)  # some made it through


@pytest.mark.parametrize("examples", [pytest.param(12), pytest.param(500, marks=pytest.mark.long)])
def test_no_request_makes_it_stumble(service: str, examples: int) -> None:
    schema = schemathesis.openapi.from_url(f"{service}/openapi.json")
    statuses: dict[str, Counter[int]] = {}
    made: list[Any] = list(schema.get_all_operations())
    for operation in (result.ok() for result in made):
        statuses[operation.label] = Counter()
        _fuzz(operation, examples, statuses[operation.label])
    assert set(statuses) == OPERATIONS
    for label in ("POST /v1/search", "GET /search"):
        assert statuses[label][200] > 0, label
        assert statuses[label][422] > 0, label


def _fuzz(operation: Any, examples: int, statuses: Counter[int]) -> None:
    def check(case: Any, response: Any) -> None:
        statuses[response.status_code] += 1
        assert response.status_code in (200, 404, 422, 502)
        if response.status_code == 502:
            # A page that cannot be had is the web's fault: 502, and told as such.
            assert operation.label == "POST /v1/visit"
            assert response.json()["error"]["boundary"] == "tool"

    fuzz(operation, examples, check)
