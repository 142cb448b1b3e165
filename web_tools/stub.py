"""A web server on loopback that answers by a function, and replies in Serper's form for it. Public: use it to test
programs that search or read the web without a key and without a network.

    with serving(lambda request: Answer(found(request.json["q"]))) as server:
        config = WebConfig(base_url=server.url)
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import JsonValue


@dataclass(frozen=True)
class Seen:
    """A request as it came; `at` is the monotonic clock in seconds."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """What to answer. `body` is sent as it is if it is text or bytes, else as JSON; `delay_s` before the first byte.

    `headers` replace those that are sent anyway; one with an empty value is left out.
    """

    body: Any = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


class Server:
    """A running stub: where it is, and what it has seen."""

    def __init__(self, answer: Callable[[Seen], Answer]) -> None:
        self.seen: list[Seen] = []
        self.connections = 0
        """Connections that were made to it, with or without a request."""
        self._answer = answer
        self._http = _http_server(self)
        self.host = f"127.0.0.1:{self._http.server_address[1]}"
        """`127.0.0.1:PORT`, e.g. for `web.allow_hosts`."""
        self.url = f"http://{self.host}"
        self.port = int(self._http.server_address[1])

    def answer(self, request: Seen) -> Answer:
        """Note a request, and answer it."""
        self.seen.append(request)
        return self._answer(request)


def _http_server(stub: Server) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = stub.answer(Seen(self.command, self.path, headers, body, time.monotonic()))
            if answer.delay_s:
                time.sleep(answer.delay_s)
            plain = answer.body if isinstance(answer.body, str | bytes) else json.dumps(answer.body)
            data = plain.encode() if isinstance(plain, str) else plain
            given = {
                "date": self.date_time_string(),
                "content-type": "application/json",
                "content-length": str(len(data)),
            }
            given.update({name.lower(): value for name, value in answer.headers.items()})
            try:
                self.send_response_only(answer.status)
                for name, value in given.items():
                    if value:
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # who asked has gone

        do_GET = do_POST = handle_one

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    class Http(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def get_request(self) -> tuple[Any, Any]:
            accepted = super().get_request()
            stub.connections += 1
            return accepted

    return Http(("127.0.0.1", 0), Handler)


@contextmanager
def serving(answer: Callable[[Seen], Answer]) -> Iterator[Server]:
    """Run a stub on a free port of 127.0.0.1 while the block lasts."""
    stub = Server(answer)
    thread = threading.Thread(target=stub._http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stub
    finally:
        stub._http.shutdown()
        stub._http.server_close()
        thread.join()


def found(query: str, count: int = 10) -> dict[str, JsonValue]:
    """A text search's reply as Serper's: `count` pages about a query."""
    organic: list[JsonValue] = [
        {
            "title": f"{query}, page {n}",
            "link": f"https://example.org/{n}?q={query.replace(' ', '+')}",
            "snippet": f"What page {n} says about {query}.",
            "date": f"{n} days ago",
            "position": n,
        }
        for n in range(1, count + 1)
    ]
    return {"searchParameters": {"q": query, "type": "search", "engine": "google"}, "organic": organic, "credits": 1}


def pictured(query: str, picture_url: str, count: int = 3, lens: bool = False) -> dict[str, JsonValue]:
    """An image search's (or a lens search's) reply as Serper's; picture n is at `<picture_url>/<n>.png`."""
    rows: list[JsonValue] = [
        {
            "title": f"{query} in picture {n}",
            "link": f"https://example.org/gallery/{n}",
            "imageUrl": f"{picture_url}/{n}.png",
            "thumbnailUrl": f"{picture_url}/{n}-small.png",
            "imageWidth": 640,
            "imageHeight": 480,
            "source": "Example Gallery",
            **({} if lens else {"position": n}),
        }
        for n in range(1, count + 1)
    ]
    return {"organic" if lens else "images": rows, "credits": 3 if lens else 1}
