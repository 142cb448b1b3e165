"""Requests made up from the search service's own OpenAPI: no 5xx, and every answer is of the shape it promises."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from local_search.app import create_app
from local_search.build import build_index
from local_search.engine import SearchEngine
from tests.fuzzing import fuzz

CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
OPERATIONS = {"POST /v1/search", "POST /retrieve", "GET /health"}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    rows = [{"id": str(n), "contents": f'"{word}"\n{word} 0 A a é'} for n, word in enumerate(["sun", "moon", "star"])]
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    build_index(folder / "corpus.jsonl", folder / "index", ["bm25"])
    return folder / "index"


@pytest.fixture
def app(index: Path) -> FastAPI:
    """The service; its engine is closed with it, so each test has its own."""
    engine = SearchEngine.open(index, "bm25")
    engine.warm()
    return create_app(engine)


@pytest.mark.parametrize("examples", [pytest.param(50), pytest.param(1000, marks=pytest.mark.long)])
def test_no_request_makes_it_stumble(app: FastAPI, examples: int) -> None:
    """`examples` requests to each of the two routes that take a body; 2,000 in all in the long form."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    statuses: dict[str, Counter[int]] = {}
    made: list[Any] = list(schema.get_all_operations())
    for operation in (result.ok() for result in made):
        statuses[operation.label] = Counter()
        _fuzz(operation, examples if operation.method == "post" else 1, statuses[operation.label])
    assert set(statuses) == OPERATIONS
    for label in ("POST /v1/search", "POST /retrieve"):
        assert statuses[label].total() >= examples
        assert set(statuses[label]) <= {200, 422}
        assert statuses[label][200] > 0


def _fuzz(operation: Any, examples: int, statuses: Counter[int]) -> None:
    def check(case: Any, response: Any) -> None:
        case.validate_response(response, checks=CHECKS)
        statuses[response.status_code] += 1

    fuzz(operation, examples, check)


@pytest.mark.parametrize("route", ["/v1/search", "/retrieve"])
def test_refusals_are_part_of_the_schema(app: FastAPI, route: str) -> None:
    """A client made from the schema reads our error body, not the framework's."""
    operation = app.openapi()["paths"][route]["post"]
    assert sorted(operation["responses"]) == ["200", "4XX", "5XX"]
    body = operation["responses"]["4XX"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ErrorAnswer"}
