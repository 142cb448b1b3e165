"""One suite for all that answers searches: the engine, its client over ASGI, its client over a socket."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import uvicorn

from local_search.app import create_app
from local_search.build import build_index
from local_search.client import SearchClient
from local_search.config import SearchConfig
from local_search.encoder import MiniLM
from local_search.engine import SearchEngine
from local_search.open import open_search
from local_search.protocol import SearchBackend
from mia.errors import DataError, MiaError, ToolError

CONTENTS = [
    '"Danube"\nThe Danube flows through Vienna, Budapest and Belgrade.',
    '"Thames"\nThe Thames flows through London.',
    '"Vistula"\nThe Vistula flows through Warsaw.\u2028It ends in the Baltic.',
    "a row without a title, about bridges",
]
BACKENDS = ["core", "asgi", "socket"]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rivers")
    rows = (json.dumps({"id": f"r{n}", "contents": contents}) for n, contents in enumerate(CONTENTS))
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    build_index(folder / "corpus.jsonl", folder / "index")
    return folder / "index"


@pytest.fixture(scope="module")
def engine(index: Path) -> SearchEngine:
    engine = SearchEngine.open(index, "hybrid", MiniLM())
    engine.warm()
    return engine


@pytest.fixture(scope="module")
def url(index: Path) -> Iterator[str]:
    """A service on a real socket, with an engine of its own."""
    own = SearchEngine.open(index, "hybrid", MiniLM())
    own.warm()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(own), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)
    assert not own.ready  # closed at shutdown


@pytest_asyncio.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest, engine: SearchEngine) -> AsyncIterator[SearchBackend]:
    if request.param == "core":
        yield engine
        return
    if request.param == "asgi":
        client = SearchClient("http://search", transport=httpx.ASGITransport(create_app(engine)))
    else:
        client = SearchClient(request.getfixturevalue("url"))
    yield client
    await client.aclose()


async def test_hits_are_those_of_the_engine(backend: SearchBackend, engine: SearchEngine) -> None:
    queries = ["Which river flows through Warsaw?", "bridges", "London"]
    hits = await backend.search(queries, 3)
    assert hits == await engine.search(queries, 3)
    assert [results[0].passage.id for results in hits] == ["r2", "r3", "r1"]
    assert hits[0][0].passage.text == "The Vistula flows through Warsaw.\u2028It ends in the Baltic."
    assert {hit.backend for results in hits for hit in results} == {backend.name} == {"local/hybrid"}


async def test_long_batches_keep_their_order(backend: SearchBackend) -> None:
    rivers = [["Danube", "Thames", "Vistula"][n % 3] for n in range(270)]
    hits = await backend.search(rivers, 1)
    assert [results[0].passage.title for results in hits] == rivers


async def test_no_query_no_result(backend: SearchBackend) -> None:
    assert await backend.search([], 3) == []


async def test_k_beyond_the_corpus(backend: SearchBackend) -> None:
    [hits] = await backend.search(["river"], 1000)
    assert sorted(hit.passage.id for hit in hits) == ["r0", "r1", "r2", "r3"]
    assert [hit.rank for hit in hits] == [1, 2, 3, 4]


async def test_odd_queries_arrive_whole(backend: SearchBackend) -> None:
    hits = await backend.search(["\ud800 Warsaw", "War\u2028saw \x00 🦉", "𝔘𝔫𝔦"], 2)
    assert [len(results) for results in hits] == [2, 2, 2]
    assert hits[0][0].passage.id == "r2"


@pytest.mark.parametrize(
    ("queries", "k", "code", "words"),
    [
        (["river", " "], 3, "blank_query", "queries[1] is blank"),
        (["river"] * 300 + [""], 3, "blank_query", "queries[300] is blank"),
        (["river"], 0, "bad_k", "k is 0"),
        (["river"], 1001, "bad_k", "k is 1001"),
        (["x" * 4001], 3, "long_query", "queries[0] has 4001 characters"),
    ],
)
async def test_refusals_are_the_same(backend: SearchBackend, queries: list[str], k: int, code: str, words: str) -> None:
    with pytest.raises(DataError) as caught:
        await backend.search(queries, k)
    assert caught.value.code == code
    assert words in caught.value.message
    assert caught.value.remedy


async def test_many_tasks_at_once(backend: SearchBackend) -> None:
    rivers = ["Danube", "Thames", "Vistula"] * 4
    results = await asyncio.gather(*(backend.search([river], 1) for river in rivers))
    assert [result[0][0].passage.title for result in results] == rivers


# ------------------------------------------------------------------------------------------ over the wire alone


async def _caught(client: SearchClient, mode: str | None = None) -> MiaError:
    with pytest.raises(MiaError) as caught:
        await client.search(["river"], 3, mode)  # type: ignore[arg-type]
    return caught.value


async def test_errors_of_the_engine_keep_class_code_and_remedy(index: Path, tmp_path: Path) -> None:
    build_index(index / "passages.jsonl", tmp_path / "words", ["bm25"])
    engine = SearchEngine.open(tmp_path / "words", "bm25")
    client = SearchClient("http://search", transport=httpx.ASGITransport(create_app(engine)))
    with pytest.raises(DataError) as direct:
        await engine.search(["river"], 3, "dense")
    remote = await _caught(client, "dense")
    assert type(remote) is DataError
    assert (remote.code, remote.message, remote.remedy, remote.status) == (
        "no_engine",
        direct.value.message,
        direct.value.remedy,
        422,
    )
    await engine.aclose()
    remote = await _caught(client)
    assert type(remote) is ToolError
    assert (remote.code, remote.remedy, remote.status) == ("closed", "open the index anew", 502)
    await client.aclose()


async def test_nobody_there_is_a_tool_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    client = SearchClient(address)
    error = await _caught(client)
    assert type(error) is ToolError
    assert (error.code, error.retryable) == ("unreachable", True)
    assert address in error.message
    await client.aclose()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"backend": "x", "results": []}', "bad_answer"),  # one query was sent
        (b'{"result": [[]]}', "bad_answer"),
        (b"hello", "bad_answer"),
    ],
)
async def test_an_answer_of_another_shape_is_a_tool_error(body: bytes, code: str) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=body))
    client = SearchClient("http://search", transport=transport)
    error = await _caught(client)
    assert (type(error), error.code) == (ToolError, code)
    await client.aclose()


async def test_open_search_takes_the_service_of_a_url(url: str) -> None:
    service = open_search(SearchConfig(url=url))
    assert service.name == url
    await service.search(["Danube"], 1)
    assert service.name == "local/hybrid"
    await service.aclose()
    words = open_search(SearchConfig(url=url, mode="bm25"))
    [[hit]] = await words.search(["Danube"], 3)
    assert (hit.passage.id, hit.backend, words.name) == ("r0", "local/bm25", "local/bm25")
    await words.aclose()
