"""The memory service as bare HTTP: bodies, status codes, health. What all stores share is tested by their contract."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory_serve.app import create_app
from memory_serve.client import MemoryClient
from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.protocol import Draft
from memory_serve.store import SqliteMemory
from mia.chat.scripted import Answer, ScriptedChat
from mia.errors import MemoryStoreError, ModelError


def draft(town: str) -> Draft:
    return Draft(
        question=f"Which river flows through {town}?",
        workflow=f"1. Search: {town}",
        outcome="correct",
        source_id=f"q-{town}",
    )


@pytest.fixture
async def raw(tmp_path: Path) -> AsyncIterator[tuple[httpx.AsyncClient, SqliteMemory]]:
    """The service as bare HTTP."""
    core = SqliteMemory(MemoryConfig(path=tmp_path / "m.db"), HashEncoder())
    transport = httpx.ASGITransport(create_app(core))
    async with httpx.AsyncClient(transport=transport, base_url="http://memory") as client:
        yield client, core
    await core.aclose()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/credit", {"ids": [None]}),
        ("POST", "/v1/credit", {"ids": ["x"], "success": "yes"}),
        ("POST", "/v1/credit", {"ids": ["x"]}),
        ("POST", "/v1/credit", {"ids": [16], "success": True}),
        ("POST", "/v1/credit", {"success": True}),
        ("POST", "/v1/recall", {"questions": [{"id": "1", "text": "a"}], "top_k": 3}),
        ("POST", "/v1/recall", {"questions": [{"id": "1", "text": "a"}] * 65}),
        ("POST", "/v1/memories", {"memories": [{"question": "a", "workflow": "b", "outcome": "perhaps"}]}),
        ("POST", "/v1/memories", {"memories": [{"question": "a", "workflow": "", "outcome": "correct"}]}),
        ("POST", "/v1/memories", [{"question": "a", "workflow": "b", "outcome": "correct"}]),
        ("DELETE", "/v1/memories", {}),
        ("DELETE", "/v1/memories", {"ids": None}),
        ("GET", "/v1/memories?limit=many", None),
    ],
)
async def test_a_bad_request_is_named_and_changes_nothing(
    raw: tuple[httpx.AsyncClient, SqliteMemory], method: str, path: str, body: Any
) -> None:
    client, core = raw
    await core.add([draft("Vienna")])
    before = await core.list()
    answer = await client.request(method, path, json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "bad_request"
    assert answer.json()["error"]["boundary"] == "data"
    assert await core.list() == before


async def test_many_questions_in_one_request(raw: tuple[httpx.AsyncClient, SqliteMemory]) -> None:
    client, core = raw
    await core.add([draft("Vienna"), draft("Graz")])
    questions = [{"id": f"q-{town}", "text": f"Which river flows through {town}?"} for town in ("Vienna", "Graz")]
    answer = await client.post("/v1/recall", json={"questions": questions, "k": 5})
    results = answer.json()["results"]
    found = [[s["memory"]["source_id"] for s in result["successes"]] for result in results]
    assert found == [["q-Graz"], ["q-Vienna"]]
    assert (await client.post("/v1/recall", json={"questions": []})).json() == {"results": []}


async def test_an_unknown_memory_is_a_404(raw: tuple[httpx.AsyncClient, SqliteMemory]) -> None:
    answer = await raw[0].get("/v1/memories/16")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


async def test_a_repeated_credit_counts_once(raw: tuple[httpx.AsyncClient, SqliteMemory]) -> None:
    client, core = raw
    (added,) = await core.add([draft("Vienna")])
    for _ in range(3):
        answer = await client.post("/v1/credit", json={"ids": [added.id], "success": True, "key": "k"})
        assert answer.json() == {"results": [{"id": added.id, "known": True}]}
    assert [m.uses for m in await core.list()] == [1]


async def test_lone_surrogates_in_a_request(raw: tuple[httpx.AsyncClient, SqliteMemory]) -> None:
    client, core = raw
    body = rb'{"memories": [{"question": "What is \u0000 in C?", "workflow": "1. \ud83d", "outcome": "correct"}]}'
    answer = await client.post("/v1/memories", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    assert [(m.question, m.workflow) for m in await core.list()] == [("What is \ufffd in C?", "1. \ufffd")]


async def test_health_and_metrics(raw: tuple[httpx.AsyncClient, SqliteMemory]) -> None:
    client, core = raw
    assert (await client.get("/health")).json()["service"] == "memory"
    assert (
        'mia_requests_total{route="/health",service="memory",status="200"} 1.0' in (await client.get("/metrics")).text
    )
    await core.aclose()
    assert (await client.get("/health")).status_code == 503


async def test_the_metrics_count_what_the_manager_model_could_not_classify(tmp_path: Path) -> None:
    replies: list[Answer] = [
        '{"category": "location"}',
        "a river, I think",
        ModelError("away"),
        '{"category": "rivers"}',
    ]
    config = MemoryConfig(path=tmp_path / "m.db", classify="model")
    core = SqliteMemory(config, HashEncoder(), manager=ScriptedChat(replies))
    transport = httpx.ASGITransport(create_app(core))
    async with httpx.AsyncClient(transport=transport, base_url="http://memory") as client:
        for n, failures in enumerate((0, 1, 2, 3)):
            body = {"memories": [draft(f"town{n}").model_dump()]}
            assert (await client.post("/v1/memories", json=body)).status_code == 200
            shown = (await client.get("/metrics")).text.splitlines()
            assert f"mia_memory_classify_failures_total {failures}.0" in shown
            assert "# TYPE mia_memory_classify_failures_total counter" in shown
    await core.aclose()


async def test_a_service_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client = MemoryClient(f"http://127.0.0.1:{port}", retries=0)
    with pytest.raises(MemoryStoreError) as caught:
        await client.stats()
    assert (caught.value.code, caught.value.retryable) == ("unreachable", True)
    await client.aclose()
