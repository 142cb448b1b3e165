"""The routes of the search service: its own, and Search-R1's to the letter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from local_search.app import create_app
from local_search.build import build_index
from local_search.engine import SearchEngine

CONTENTS = [
    '"Mercury"\nMercury is the innermost planet.',
    '"Venus"\nVenus is the hottest planet.\r\nIt turns backwards.',
    'Mars "the red"\nMars is a planet with two moons.',
    "a comet without a title\u2028of its own",
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planets")
    rows = (json.dumps({"id": str(n), "contents": contents}) for n, contents in enumerate(CONTENTS))
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    build_index(folder / "corpus.jsonl", folder / "index", ["bm25"])
    return folder / "index"


@pytest_asyncio.fixture
async def http(index: Path) -> AsyncIterator[httpx.AsyncClient]:
    engine = SearchEngine.open(index, "bm25")
    engine.warm()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(engine, k=2)), base_url="http://s") as client:
        yield client


# ------------------------------------------------------------------------------------------ /retrieve


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
async def test_retrieve_answers_any_number_of_queries_in_both_forms(http: httpx.AsyncClient, count: int) -> None:
    """Search-R1's own server fails for most counts without scores, and mixes up the documents of two queries."""
    words = ["innermost", "hottest", "moons", "comet"]
    rows = [n % 4 for n in range(count)]
    body: dict[str, Any] = {"queries": [words[row] for row in rows], "topk": 1}
    plain = (await http.post("/retrieve", json=body)).json()
    assert plain == {"result": [[{"id": str(row), "contents": CONTENTS[row]}] for row in rows]}
    scored = (await http.post("/retrieve", json={**body, "return_scores": True})).json()
    assert list(scored) == ["result"]
    for row, [hit] in zip(rows, scored["result"], strict=True):
        assert set(hit) == {"document", "score"}
        assert hit["document"] == {"id": str(row), "contents": CONTENTS[row]}
        assert hit["score"] > 0


@pytest.mark.parametrize("extra", [{}, {"topk": None}, {"topk": None, "return_scores": False}, {"unknown": 1}])
async def test_retrieve_uses_the_services_k_where_topk_is_not_given(
    http: httpx.AsyncClient, extra: dict[str, Any]
) -> None:
    answer = (await http.post("/retrieve", json={"queries": ["planet"], **extra})).json()
    assert [len(hits) for hits in answer["result"]] == [2]


async def test_retrieve_batch_is_the_singles(http: httpx.AsyncClient) -> None:
    queries = ["planet moons", "hottest planet", "comet", "planet moons"]
    for scores in (True, False):
        body = {"topk": 3, "return_scores": scores}
        batch = (await http.post("/retrieve", json={"queries": queries, **body})).json()["result"]
        singles = [(await http.post("/retrieve", json={"queries": [q], **body})).json()["result"][0] for q in queries]
        assert batch == singles
        assert batch[0] == batch[3] != batch[1]


# ------------------------------------------------------------------------------------------ /v1/search


async def test_search_answers_passages(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/v1/search", json={"queries": ["moons", "nothing such"], "k": 3})).json()
    assert answer["backend"] == "local/bm25"
    [first, second] = answer["results"]
    assert second == {"hits": []}
    [hit] = first["hits"]
    assert hit["score"] > 0
    assert {key: hit[key] for key in ("rank", "backend", "passage")} == {
        "rank": 1,
        "backend": "local/bm25",
        "passage": {"id": "2", "title": 'Mars "the red"', "text": "Mars is a planet with two moons."},
    }


async def test_search_uses_the_services_k_where_none_is_given(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/v1/search", json={"queries": ["planet"]})).json()
    assert len(answer["results"][0]["hits"]) == 2


@pytest.mark.parametrize(
    ("route", "body", "code", "words"),
    [
        ("/v1/search", {"queries": ["a b", " \n"]}, "blank_query", "queries[1]"),
        ("/retrieve", {"queries": ["a b", " \n"]}, "blank_query", "queries[1]"),
        ("/v1/search", {"queries": ["planet"], "k": 0}, "bad_k", "k is 0"),
        ("/retrieve", {"queries": ["planet"], "topk": 1001}, "bad_k", "k is 1001"),
        ("/retrieve", {"queries": ["x" * 4001]}, "long_query", "4001 characters"),
        ("/v1/search", {"queries": ["x"] * 1025}, "too_many_queries", "1025 queries"),
        ("/retrieve", {"queries": ["x"] * 1025}, "too_many_queries", "1025 queries"),
        ("/v1/search", {"queries": ["x"] * 66, "k": 1000}, "too_many_hits", "66 queries for 1000"),
        ("/retrieve", {"queries": ["x"] * 66, "topk": 1000}, "too_many_hits", "66 queries for 1000"),
        ("/v1/search", {"queries": ["planet"], "topk": 3}, "bad_request", "topk"),
        ("/v1/search", {"queries": ["planet"], "mode": "magic"}, "bad_request", "mode"),
        ("/v1/search", {"queries": ["planet"], "mode": "dense"}, "no_engine", "no dense engine"),
        ("/v1/search", {"queries": "planet"}, "bad_request", "queries"),
        ("/v1/search", {}, "bad_request", "queries"),
        ("/retrieve", {"query": "planet"}, "bad_request", "queries"),
    ],
)
async def test_refusals_name_the_fault(
    http: httpx.AsyncClient, route: str, body: dict[str, Any], code: str, words: str
) -> None:
    response = await http.post(route, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["boundary"], error["code"]) == (422, "data", code)
    assert words in error["message"]
    assert error["remedy"]
    assert error["request_id"] == response.headers["x-request-id"]


async def test_largest_batch_is_answered(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/retrieve", json={"queries": ["comet"] * 1024, "topk": 1})).json()
    assert [hits[0]["id"] for hits in answer["result"]] == ["3"] * 1024


async def test_health_is_ready_only_while_the_index_is(index: Path) -> None:
    engine = SearchEngine.open(index, "bm25")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(engine)), base_url="http://s") as client:
        assert (await client.get("/health")).status_code == 503
        engine.warm()
        ready = await client.get("/health")
        assert (ready.status_code, ready.json()["status"], ready.json()["service"]) == (200, "ok", "search")
        await engine.aclose()
        assert (await client.get("/health")).status_code == 503


async def test_metrics_and_schema_are_served(http: httpx.AsyncClient) -> None:
    await http.post("/retrieve", json={"queries": ["planet"]})
    assert (
        'mia_requests_total{route="/retrieve",service="search",status="200"} 1.0' in (await http.get("/metrics")).text
    )
    paths = (await http.get("/openapi.json")).json()["paths"]
    assert {"/v1/search", "/retrieve", "/health"} <= set(paths)


# ------------------------------------------------------------------------------------------ the command


def test_command_serves_until_it_is_interrupted(index: Path) -> None:
    command = [sys.executable, "-m", "local_search", "--search.index", str(index), "--search.mode=bm25", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        try:
            assert said.startswith("serving 4 passages of corpus.jsonl (bm25), mode bm25, at http://127.0.0.1:"), said
            address = said.split(" at ")[1].split()[0]
            assert httpx.get(f"{address}/health", timeout=20).json()["status"] == "ok"
            found = httpx.post(f"{address}/retrieve", json={"queries": ["moons"], "topk": 3}, timeout=20).json()
            assert found == {"result": [[{"id": "2", "contents": CONTENTS[2]}]]}
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
