"""Test doubles: a search with fixed passages, a driver put together of doubles, a chat endpoint on loopback."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from PIL import Image

from inference.agent import Agent
from inference.driver import Driver
from inference.methods.mia import MiaMethod
from inference.tools import SearchTool, ToolBox
from memory_serve.protocol import MemoryStore
from mia.chat.scripted import ScriptedChat
from mia.errors import MiaError
from mia.pictures import to_data_url
from mia.types import Hit, Passage, Role

VIENNA = Passage(id="1", title="Vienna", text="Vienna, the capital of Austria, lies on the Danube.")
DANUBE = Passage(id="2", title="Danube", text="The Danube flows through Vienna to the Black Sea.")


class FixedSearch:
    """Finds every passage whose title occurs in the query; raises what `errors` holds for a query."""

    name = "fixed"

    def __init__(
        self, passages: Sequence[Passage] = (VIENNA, DANUBE), errors: Mapping[str, MiaError] | None = None
    ) -> None:
        self.queries: list[str] = []
        self._passages = passages
        self._errors = errors or {}

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `SearchBackend.search`."""
        self.queries.extend(queries)
        for query in queries:
            if query in self._errors:
                raise self._errors[query]
        return [self._hits(query)[:k] for query in queries]

    def _hits(self, query: str) -> list[Hit]:
        found = [p for p in self._passages if p.title.lower() in query.lower()]
        return [Hit(passage=p, score=1.0, rank=rank, backend=self.name) for rank, p in enumerate(found, start=1)]

    async def aclose(self) -> None:
        """Nothing to free."""


def picture(colour: str = "red", size: tuple[int, int] = (56, 84), dot: str = "") -> str:
    """A picture of one colour, with one pixel of another if wanted, as a data URL."""
    made = Image.new("RGB", size, colour)
    if dot:
        made.paste(dot, (0, 0, 1, 1))
    file = io.BytesIO()
    made.save(file, "PNG")
    return to_data_url(file.getvalue(), "image/png")


def call(query: str) -> str:
    """A search call in our grammar."""
    return f'<tool_call>{{"name": "search", "arguments": {{"query": "{query}"}}}}</tool_call>'


def scripted(planner: ScriptedChat, executor: ScriptedChat, **others: ScriptedChat) -> dict[Role, ScriptedChat]:
    """Models by role; roles that are not given fail when used."""
    models: dict[Role, ScriptedChat] = {"planner": planner, "executor": executor}
    for role in ("manager", "judge", "router"):
        models[role] = others.get(role, ScriptedChat())
    return models


def driver(
    models: Mapping[Role, ScriptedChat], search: FixedSearch | None = None, memory: MemoryStore | None = None
) -> Driver:
    """A driver over doubles, with the search tool and three passages a search."""
    return Driver(models, ToolBox([SearchTool(search or FixedSearch(), 3)]), memory)


def store_of(agent: Agent) -> MemoryStore:
    """The store behind an agent of MIA's own method."""
    assert isinstance(agent.method, MiaMethod)
    return agent.method.store


@contextmanager
def chat_endpoint(answer: Callable[[list[dict[str, Any]]], str]) -> Iterator[str]:
    """An OpenAI-compatible endpoint on loopback that answers a conversation by a function; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"object": "list", "data": [{"id": "stub-model", "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            message = {"role": "assistant", "content": answer(body["messages"])}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self._send({"id": "x", "model": body["model"], "choices": [choice]})

        def _send(self, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
