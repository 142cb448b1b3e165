"""The service that learns over HTTP: events, tokens, errors of single items and of batches, OpenAPI, replay."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.datasets import load_dataset
from inference.datasets.config import DatasetConfig
from mia.errors import DataError
from tests import tiny_models
from tests.evaluating import write_questions
from tests.streaming import running
from ttrl_streaming.app import create_app
from ttrl_streaming.replay import Replay
from ttrl_streaming.schema import AskRequest, FeedbackItem

pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.chat_llama(tmp_path_factory.mktemp("model"), positions=4096)


@pytest.fixture
async def served(tiny: Path, tmp_path: Path) -> AsyncIterator[tuple[Any, Any, httpx.AsyncClient]]:
    async with running(tiny, tmp_path, token="secret", streaming__memory=False) as (service, client):
        transport = httpx.ASGITransport(create_app(service, "secret"))
        headers = {"authorization": "Bearer secret"}
        async with httpx.AsyncClient(transport=transport, base_url="http://service", headers=headers) as raw:
            yield service, client, raw


async def test_routes(served: Any) -> None:
    """One service for all of it: a start takes seconds."""
    _, client, raw = served
    events = [event async for event in client.events(AskRequest(question="Is it lucky?", id="q0"))]
    names = [name for name, _ in events]
    assert names[0] == "plan"
    assert {"calls", "observed", "answer"} < set(names)
    assert names[-1] == "done"
    assert events[-1][1] == (await client.ask(AskRequest(question="Is it lucky?", id="q0"))).model_dump(mode="json")
    with pytest.raises(DataError, match="another question"):
        [event async for event in client.events(AskRequest(question="Else?", id="q0"))]

    for method, path in (
        ("POST", "/v1/ask"),
        ("GET", "/v1/status"),
        ("POST", "/v1/feedback"),
        ("POST", "/v1/rollback"),
    ):
        refused = await raw.request(method, path, json={"question": "?"}, headers={"authorization": "Bearer wrong"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized")
    assert (await raw.get("/health")).status_code == 200

    for body, status, code in (
        ({"id": "nope", "reward": 1}, 404, "not_found"),
        ({"id": "q0", "reward": "NaN"}, 422, "bad_request"),
        ({"id": "q0", "reward": 1e9}, 422, "bad_request"),
        ({"id": "q0"}, 422, "bad_request"),
        ([], 422, "bad_request"),
        ({"items": []}, 422, "bad_request"),
        ({"items": [{"id": "q0", "reward": 1}], "more": 1}, 422, "bad_request"),
    ):
        refused = await raw.post("/v1/feedback", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code), body
    mixed = [{"id": "q0", "reward": 1}, {"id": "q0", "reward": 2}, 7, {"id": "nope", "label": "x"}]
    results = (await raw.post("/v1/feedback", json={"items": mixed})).json()["results"]
    assert [r["outcome"] or r["error"]["code"] for r in results] == [
        "queued",
        "bad_request",
        "bad_request",
        "not_found",
    ]
    assert "reward" in results[1]["error"]["message"]
    counted = (await client.status()).feedback
    assert (counted["queued"], counted["unknown"], counted["malformed"]) == (1, 2, 5)
    assert counted["received"] == 8

    questions: list[Any] = [
        {"question": " "},
        {"question": "x" * 20_001},
        {"question": "?", "images": ["http://x/y.png"]},
        {"question": "?", "namespace": "../x"},
        {"question": "?", "out": "x"},
    ]
    for body in questions:
        assert (await raw.post("/v1/ask", json=body)).status_code == 422, body
    assert (await raw.post("/v1/rollback", json={})).json()["error"]["code"] == "no_version"
    assert (await raw.get("/openapi.json")).json()["paths"].keys() >= {
        f"/v1/{name}" for name in ("ask", "feedback", "episodes", "status", "curve", "flush", "checkpoint", "rollback")
    }


async def test_errors_keep_their_class_over_the_wire(served: Any) -> None:
    _, client, _ = served
    (taken,) = await client.feedback([FeedbackItem(id="nope", reward=0.5)])
    assert (taken.error.code, taken.error.boundary) == ("not_found", "data")
    with pytest.raises(DataError) as caught:
        await client.rollback()
    assert (caught.value.code, caught.value.status) == ("no_version", 409)


async def test_a_replay_asks_everything_once_and_teaches(tiny: Path, tmp_path: Path) -> None:
    path = write_questions(tmp_path / "q.jsonl", 12)
    examples = load_dataset(DatasetConfig(name="jsonl", path=path)).examples
    async with running(tiny, tmp_path / "out", streaming__memory=False, streaming__limit=12) as (_, client):
        done = await Replay(client, examples, "r", users=3, late=4).run()
        assert [each.question for each in done] == [example.question.text for example in examples]
        assert all(each.failure is None for each in done)
        assert [each.correct for each in done] == [each.answer == "yes" for each in done]
        status = await client.status()
        assert (status.asked, status.feedback["queued"]) == (12, 0)
        assert sum(status.feedback[name] for name in ("learned", "remembered", "refused")) == 12
        assert await Replay(client, examples, "r", users=3, late=4).run() == done
        again = await client.status()
        assert (again.asked, again.feedback["known"], again.version) == (12, 12, status.version)
        with pytest.raises(DataError, match="12 questions were answered"):
            await client.ask(AskRequest(question="One more?"))


def test_the_documented_feedback_schema_is_json() -> None:
    assert json.dumps(FeedbackItem.model_json_schema())
