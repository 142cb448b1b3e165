"""The HTTP edge that all services share: error bodies, request ids, bounds, health, metrics, and the client's side."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from mia.errors import BY_BOUNDARY, DataError, MiaError, ToolError
from mia.http import REQUEST_ID, ServiceClient, create_service


class Echo(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: str


class Switch:
    """Whether the service is ready, and what its route raises."""

    ready = True
    error: MiaError | None = None


def service(switch: Switch) -> FastAPI:
    app = create_service("echo", "1.2.3", lambda: switch.ready, max_body_bytes=1000)

    @app.post("/v1/echo")
    async def echo(body: Echo) -> Echo:
        if switch.error is not None:
            raise switch.error
        return body

    return app


@pytest.fixture
def switch() -> Switch:
    return Switch()


@pytest.fixture
async def http(switch: Switch) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(service(switch))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def test_request_ids_are_kept_when_safe_and_made_when_not(http: httpx.AsyncClient) -> None:
    kept = await http.post("/v1/echo", json={"text": "x"}, headers={REQUEST_ID: "abc-1"})
    assert kept.headers[REQUEST_ID] == "abc-1"
    made = await http.post("/v1/echo", json={"text": "x"}, headers={REQUEST_ID: "bad id\t"})
    assert len(made.headers[REQUEST_ID]) == 32


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("GET", "/nowhere", b"", 404, "no_route"),
        ("GET", "/v1/echo", b"", 405, "wrong_method"),
        ("POST", "/v1/echo", b"{", 422, "bad_request"),
        ("POST", "/v1/echo", b'{"text": "x", "more": 1}', 422, "bad_request"),
        ("POST", "/v1/echo", b"\xff\xfe", 422, "bad_request"),
        ("POST", "/v1/echo", b'{"text": "' + b"x" * 2000 + b'"}', 413, "too_large"),
    ],
)
async def test_every_error_has_the_same_body(
    http: httpx.AsyncClient, method: str, path: str, content: bytes, status: int, code: str
) -> None:
    response = await http.request(method, path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == status
    error = response.json()["error"]
    assert error["code"] == code
    assert error["request_id"] == response.headers[REQUEST_ID]


async def test_a_body_sent_in_chunks_is_bounded_too(http: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 200

    response = await http.post("/v1/echo", content=chunks(), headers={"content-type": "application/json"})
    assert response.status_code == 413


async def test_health_follows_readiness(http: httpx.AsyncClient, switch: Switch) -> None:
    assert (await http.get("/health")).json() == {"status": "ok", "service": "echo", "version": "1.2.3"}
    switch.ready = False
    assert (await http.get("/health")).status_code == 503


async def test_metrics_count_by_route(http: httpx.AsyncClient) -> None:
    await http.post("/v1/echo", json={"text": "x"})
    await http.post("/v1/echo", json={})
    shown = (await http.get("/metrics")).text
    assert 'mia_requests_total{route="/v1/echo",service="echo",status="200"} 1.0' in shown
    assert 'mia_requests_total{route="/v1/echo",service="echo",status="422"} 1.0' in shown


@pytest.mark.parametrize("boundary", sorted(BY_BOUNDARY))
async def test_every_error_keeps_its_class_across_the_wire(switch: Switch, boundary: str) -> None:
    switch.error = BY_BOUNDARY[boundary]("it broke", remedy="mend it", code="broken", retryable=True)
    client = ServiceClient("http://test", ToolError, httpx.ASGITransport(service(switch)), retries=0)
    with pytest.raises(BY_BOUNDARY[boundary]) as caught:
        await client.call("POST", "/v1/echo", Echo, Echo(text="x"))
    assert type(caught.value) is BY_BOUNDARY[boundary]
    assert (caught.value.message, caught.value.remedy, caught.value.code) == ("it broke", "mend it", "broken")
    assert caught.value.retryable
    await client.aclose()


async def test_the_client_repeats_what_may_pass() -> None:
    seen: list[int] = []

    def flaky(request: httpx.Request) -> httpx.Response:
        seen.append(1)
        return httpx.Response(503) if len(seen) < 3 else httpx.Response(200, json={"text": "at last"})

    client = ServiceClient("http://test", ToolError, httpx.MockTransport(flaky), retries=2)
    assert (await client.call("POST", "/v1/echo", Echo, Echo(text="x"))).text == "at last"
    assert len(seen) == 3
    await client.aclose()


@pytest.mark.parametrize(
    ("response", "code", "retryable"),
    [
        (httpx.Response(503, text="busy"), "http_503", True),
        (httpx.Response(400, text="<html>"), "http_400", False),
        (httpx.Response(200, json={"other": 1}), "bad_answer", False),
        (httpx.Response(200, text="no json"), "bad_answer", False),
        (httpx.Response(500, json={"error": {"boundary": "mars"}}), "http_500", False),
    ],
)
async def test_answers_that_are_not_ours(response: httpx.Response, code: str, retryable: bool) -> None:
    client = ServiceClient("http://test", ToolError, httpx.MockTransport(lambda _: response), retries=0)
    with pytest.raises(ToolError) as caught:
        await client.call("POST", "/v1/echo", Echo, Echo(text="x"))
    assert (caught.value.code, caught.value.retryable) == (code, retryable)
    await client.aclose()


async def test_a_service_that_cannot_be_reached() -> None:
    client = ServiceClient("http://127.0.0.1:9", ToolError, retries=1)
    with pytest.raises(ToolError, match="cannot be reached") as caught:
        await client.call("GET", "/v1/echo", Echo)
    assert caught.value.retryable
    await client.aclose()


def test_errors_read_well() -> None:
    assert str(DataError("no file x", remedy="check the path")) == "no file x\n  remedy: check the path"
    assert str(DataError("no file x")) == "no file x"
