"""The HTTP edge, both sides: app factory with error bodies, request ids, health and metrics; client with retries.

Services stay thin: `create_service` gives a FastAPI app on which a folder mounts its routes; `ServiceClient` calls one
and turns error bodies back into the errors they were. The framework is imported only where an app is made.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from mia.errors import ConfigError, DataError, ErrorBody, MiaError, from_body, to_body
from mia.extras import need
from mia.workers import METRICS_FOLDER, serve_workers

if TYPE_CHECKING:
    import httpx
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse
    from prometheus_client import CollectorRegistry, Metric
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

B = TypeVar("B", bound=BaseModel)
E = TypeVar("E", bound=MiaError)

REQUEST_ID = "x-request-id"
MAX_BODY_BYTES = 16 * 1024 * 1024
_SAFE_ID = re.compile(r"[A-Za-z0-9._\-]{1,64}")

Close = Callable[[], Awaitable[None]]


class Health(BaseModel):
    """Answer of `GET /health`: served only when the service can do its work."""

    status: str
    service: str
    version: str


class ErrorAnswer(BaseModel):
    """Every answer that is not the wanted one."""

    error: ErrorBody


class Tally(NamedTuple):
    """A number that only grows and that a service shows in its metrics beside its requests.

    It is read when the metrics are, in the process that is asked; so it is not for services with several workers.
    """

    name: str
    what: str
    value: Callable[[], int]


def create_service(
    name: str,
    version: str,
    ready: Callable[[], bool],
    on_close: Close | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    counts: Sequence[Tally] = (),
    on_open: Close | None = None,
) -> FastAPI:
    """A FastAPI app with the edge that all services share.

    Args:
        name: service name, in health, metrics and OpenAPI.
        version: version of the package.
        ready: whether the service can work (index or model loaded); `/health` answers 503 until then.
        on_close: awaited at shutdown.
        max_body_bytes: larger request bodies are refused with 413.
        counts: what else the metrics show.
        on_open: awaited at the start, before any request.
    """
    from fastapi import FastAPI
    from prometheus_client import CollectorRegistry

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if on_open is not None:
            await on_open()
        yield
        if on_close is not None:
            await on_close()

    faults: dict[int | str, dict[str, Any]] = {
        "4XX": {"model": ErrorAnswer, "description": "the request cannot be answered as it is"},
        "5XX": {"model": ErrorAnswer, "description": "the service cannot answer now"},
    }
    app = FastAPI(title=f"MIA {name}", version=version, lifespan=lifespan, responses=faults)
    registry = CollectorRegistry()
    if counts:
        registry.register(_Tallies(counts))
    _add_edge(app, name, registry, max_body_bytes)
    _add_health(app, name, version, ready)
    return app


class _Tallies:
    """Gives counts to prometheus_client."""

    def __init__(self, counts: Sequence[Tally]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client calls."""
        from prometheus_client.core import CounterMetricFamily

        for name, what, value in self._counts:
            yield CounterMetricFamily(name, what, value=value())


class _Edge:
    """ASGI middleware: gives each request an id, bounds its body, counts and times it."""

    def __init__(self, app: ASGIApp, service: str, registry: CollectorRegistry, max_body_bytes: int) -> None:
        from prometheus_client import Counter, Histogram

        self._app = app
        self._service = service
        self._limit = max_body_bytes
        self._requests = Counter("mia_requests", "Requests answered", ["service", "route", "status"], registry=registry)
        self._seconds = Histogram("mia_request_seconds", "Seconds to answer", ["service", "route"], registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(REQUEST_ID.encode(), b"").decode("latin-1")
        request_id = given if _SAFE_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started, status, begun = time.perf_counter(), 500, False

        async def marked(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                message["headers"] = [*message["headers"], (REQUEST_ID.encode(), request_id.encode())]
            await send(message)

        try:
            body = await self._body(receive)
            if body is None:
                error = DataError(f"request body larger than {self._limit} bytes", code="too_large", status=413)
                await _error_response(error, request_id)(scope, receive, marked)
            else:
                await self._app(scope, _replay(body, receive), marked)
        except Exception:
            # Ours to mend, so it goes on to the log; whoever asked gets the same error body as for any other fault.
            if not begun:
                fault = MiaError("the service met an error of its own", remedy="see its log", code="internal")
                await _error_response(fault, request_id)(scope, receive, marked)
            raise
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            self._requests.labels(self._service, route, str(status)).inc()
            self._seconds.labels(self._service, route).observe(time.perf_counter() - started)

    async def _body(self, receive: Receive) -> Message | None:
        """The whole body as one message, or None if it is too large. The app reads it anyway, only unbounded."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return message
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._limit:
                return None
            if not message.get("more_body"):
                return {"type": "http.request", "body": b"".join(parts), "more_body": False}


def _replay(first: Message, receive: Receive) -> Receive:
    """A `receive` that gives the message that was already taken, then goes on."""
    waiting = [first]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


def _add_edge(app: FastAPI, service: str, registry: CollectorRegistry, max_body_bytes: int) -> None:
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import Response
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector
    from starlette.exceptions import HTTPException

    app.add_middleware(_Edge, service=service, registry=registry, max_body_bytes=max_body_bytes)

    @app.exception_handler(MiaError)
    async def mia_error(request: Request, error: MiaError) -> JSONResponse:
        return _error_response(error, request.state.request_id)

    @app.exception_handler(RequestValidationError)
    async def bad_request(request: Request, error: RequestValidationError) -> JSONResponse:
        faults = "; ".join(f"{'.'.join(str(p) for p in item['loc'])}: {item['msg']}" for item in error.errors())
        fault = DataError(faults, remedy="see /docs for the request body", code="bad_request")
        return _error_response(fault, request.state.request_id)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        remedy = "see /docs for the routes and their bodies"
        code = {404: "no_route", 405: "wrong_method"}.get(error.status_code, "bad_request")
        fault = DataError(error.detail, remedy=remedy, code=code, status=error.status_code)
        response = _error_response(fault, request.state.request_id)
        response.headers.update(error.headers or {})
        return response

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        shown = registry
        if METRICS_FOLDER in os.environ:  # one of several workers: the counts of all
            shown = CollectorRegistry()
            MultiProcessCollector(shown)  # type: ignore[no-untyped-call]
        return Response(generate_latest(shown), media_type=CONTENT_TYPE_LATEST)


def _error_response(error: MiaError, request_id: str) -> JSONResponse:
    from fastapi.responses import JSONResponse

    body = to_body(error, request_id)
    return JSONResponse({"error": body.model_dump()}, status_code=error.status)


def _add_health(app: FastAPI, service: str, version: str, ready: Callable[[], bool]) -> None:
    @app.get("/health", response_model=Health, responses={503: {"description": "not ready yet"}})
    async def health() -> Any:
        from fastapi.responses import JSONResponse

        if not ready():
            return JSONResponse({"status": "starting", "service": service, "version": version}, status_code=503)
        return Health(status="ok", service=service, version=version)


def serve(host: str, port: int, open_app: Callable[[], tuple[FastAPI, str]], workers: int = 1) -> None:
    """Serve an app until it is interrupted.

    Args:
        host: address to listen on.
        port: port to listen on; 0 for any free one.
        open_app: makes the app and says in a few words what it serves; called once the port is known to be free.
            With several workers each calls it, so it must travel by pickle.
        workers: processes that serve, see `mia.workers`.

    Raises:
        ConfigError: the extra `serve` is missing, or the address cannot be listened on.
    """
    uvicorn = need("uvicorn", "serve")
    need("fastapi", "serve")
    need("prometheus_client", "serve")
    if workers < 1:
        raise ConfigError(f"--workers {workers} serves nothing", remedy="give 1 or more")
    with _bound(host, port) as listener:

        def say(what: str) -> None:
            print(f"serving {what} at http://{host}:{listener.getsockname()[1]}", file=sys.stderr, flush=True)

        if workers > 1:
            serve_workers(listener, open_app, workers, lambda what: say(f"{what} with {workers} workers"))
            return
        app, what = open_app()
        listener.listen()  # whoever reads the next line may connect at once
        say(what)
        with suppress(KeyboardInterrupt):  # the usual way to end a service
            uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def _bound(host: str, port: int) -> socket.socket:
    """A bound socket, not yet listening: an occupied port is told before anything is loaded."""
    if not 0 <= port <= 65535:  # the system would take it modulo 65536
        raise ConfigError(f"--port {port} is no port", remedy="give a port from 0 to 65535")
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}", remedy="give another --host or --port") from error
    return listener


class ServiceClient:
    """Calls one of our services; errors come back as the classes they were.

    Args:
        url: base URL of the service.
        error: class for what happens on the way (connection, time-out, an answer that is not ours).
        transport: another httpx transport, e.g. `httpx.ASGITransport(app)` in tests.
        timeout_s: limit of one call, in seconds.
        retries: repetitions after a connection fault or a 429, 502, 503 or 504.
    """

    def __init__(
        self,
        url: str,
        error: type[MiaError],
        transport: httpx.AsyncBaseTransport | None = None,
        timeout_s: float = 60.0,
        retries: int = 2,
    ) -> None:
        import httpx

        self.url = url.rstrip("/")
        self._error = error
        self._retries = retries
        self._client = httpx.AsyncClient(base_url=self.url, transport=transport, timeout=timeout_s)

    async def call(self, method: str, path: str, answer: type[B], body: BaseModel | None = None) -> B:
        """One request with a JSON body, its answer as a record.

        Raises:
            MiaError: the error the service answered with, or `error` for a fault on the way.
        """
        import httpx

        try:
            response = await self._send(method, path, body)
        except httpx.HTTPError as error:
            raise self._error(
                f"{self.url} cannot be reached: {error or type(error).__name__}",
                remedy="start the service, or correct its url",
                code="unreachable",
                retryable=True,
            ) from error
        if response.is_error:
            raise self._service_error(response)
        try:
            return answer.model_validate_json(response.content)
        except ValidationError as error:
            raise self._error(
                f"{self.url}{path} answered with another shape: {error.error_count()} fields do not fit",
                remedy="check that url and version of the service are right",
                code="bad_answer",
            ) from error

    async def _send(self, method: str, path: str, body: BaseModel | None) -> httpx.Response:
        import httpx
        from tenacity import (
            AsyncRetrying,
            retry_if_exception_type,
            retry_if_result,
            stop_after_attempt,
            wait_exponential,
        )

        attempts = AsyncRetrying(
            stop=stop_after_attempt(self._retries + 1),
            wait=wait_exponential(multiplier=0.2, max=5),
            retry=retry_if_exception_type(httpx.TransportError)
            | retry_if_result(lambda response: response.status_code in (429, 502, 503, 504)),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        content = body.model_dump_json() if body is not None else None
        headers = {"content-type": "application/json"} if content is not None else {}
        response: httpx.Response = await attempts(self._client.request, method, path, content=content, headers=headers)
        return response

    def _service_error(self, response: httpx.Response) -> MiaError:
        try:
            body = ErrorBody.model_validate(response.json()["error"])
        except (ValueError, KeyError, TypeError):
            return self._error(
                f"{response.request.url} answered {response.status_code}: {response.text[:200]}",
                remedy="check that the url is one of our services",
                code=f"http_{response.status_code}",
                retryable=response.status_code in (429, 502, 503, 504),
            )
        return from_body(body, response.status_code)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()
