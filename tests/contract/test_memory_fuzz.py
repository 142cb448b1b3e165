"""Requests made up from the memory service's own OpenAPI: none makes it stumble, none can name a path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis

from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.protocol import Draft
from memory_serve.store import SqliteMemory
from tests.contract.test_memory_contract import in_postgres, serving
from tests.fuzzing import fuzz

OPERATIONS = 17
PATHS = ("/etc/passwd", "../../outside.db", "..\\outside.db", "file:///tmp/outside.db", "m.db", "C:\\outside.db")
_PLACES = re.compile(r"path|file|folder|director|url|uri", re.IGNORECASE)


@pytest.fixture(params=["sqlite", "postgres"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, SqliteMemory]]:
    """The service on a real socket, over each store, with one memory in it."""
    folder = tmp_path / "inside"
    config = MemoryConfig(path=folder / "m.db", synchronous="normal")
    store = in_postgres() if request.param == "postgres" else SqliteMemory(config, HashEncoder())
    with serving(store) as url:
        body = Draft(question="Which river flows through Vienna?", workflow="1. Search", outcome="correct")
        httpx.post(f"{url}/v1/memories", json={"memories": [body.model_dump()]}).raise_for_status()
        yield url, store


@pytest.mark.parametrize("examples", [pytest.param(8), pytest.param(2000 // OPERATIONS + 1, marks=pytest.mark.long)])
def test_no_request_makes_it_stumble(service: tuple[str, SqliteMemory], examples: int, tmp_path: Path) -> None:
    url, store = service
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    statuses: dict[str, Counter[int]] = {}
    made: list[Any] = list(schema.get_all_operations())
    for operation in (result.ok() for result in made):
        statuses[operation.label] = Counter()
        _fuzz(operation, examples, statuses[operation.label])
    assert len(statuses) == OPERATIONS
    for label in ("POST /v1/recall", "POST /v1/memories", "POST /v1/credit", "GET /v1/memories"):
        assert statuses[label][200] > 0, (label, statuses[label])
        assert statuses[label][422] > 0, (label, statuses[label])
    assert store.healthy
    assert httpx.get(f"{url}/health").status_code == 200
    assert _files(tmp_path) <= {"inside/m.db", "inside/m.db-wal", "inside/m.db-shm"}


def _fuzz(operation: Any, examples: int, statuses: Counter[int]) -> None:
    def check(case: Any, response: Any) -> None:
        statuses[response.status_code] += 1
        assert response.status_code in (200, 404, 409, 422, 428), (operation.label, response.status_code, response.text)
        if response.status_code != 200 and operation.label.split()[1].startswith("/v1"):
            assert response.json()["error"]["code"]

    fuzz(operation, examples, check)


def test_no_request_can_name_a_path(service: tuple[str, SqliteMemory], tmp_path: Path) -> None:
    url, _ = service
    schema = httpx.get(f"{url}/openapi.json").json()
    named = [name for body in schema["components"]["schemas"].values() for name in body.get("properties", {})]
    named += [p["name"] for verbs in schema["paths"].values() for verb in verbs.values()
              for p in verb.get("parameters", [])]  # fmt: skip
    assert [name for name in named if _PLACES.search(name)] == []
    before = {path.name for path in Path.cwd().iterdir()}
    asked = {"id": "1", "text": "Which river flows through Vienna?"}
    for path in PATHS:
        memory = {"question": path, "workflow": path, "outcome": "correct", "source_id": path, "trajectory_id": path}
        answers = [
            httpx.post(f"{url}/v1/recall", json={"questions": [asked], "namespace": path}),
            httpx.post(f"{url}/v1/recall", json={"questions": [{**asked, "images": [path]}]}),
            httpx.post(f"{url}/v1/memories", json={"memories": [memory]}),
            httpx.get(f"{url}/v1/export", params={"after": path, "namespace": path}),
            httpx.get(f"{url}/v1/memories/{path}"),
            httpx.request("DELETE", f"{url}/v1/memories", json={"ids": [path]}),
            httpx.post(f"{url}/v1/credit", json={"ids": [path], "success": True, "key": path}),
            httpx.post(f"{url}/v1/absorb", json={"ids": [path], "checkpoint": path}),
            httpx.post(f"{url}/v1/clear", json={"namespace": path}),
        ]
        assert all(answer.status_code in (200, 404, 422) for answer in answers), [a.status_code for a in answers]
        assert "root:" not in "".join(answer.text for answer in answers)
    assert {path.name for path in Path.cwd().iterdir()} == before
    assert _files(tmp_path) <= {"inside/m.db", "inside/m.db-wal", "inside/m.db-shm"}


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
