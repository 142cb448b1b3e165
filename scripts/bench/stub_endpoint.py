"""Stubs for benchmarks: an OpenAI-compatible endpoint that first asks for one search, then answers, and that search.

The endpoint runs in a process of its own (`serving`), so that its CPU time is not counted; as a program this file is
that process, and prints its port on the first line of stdout.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from mia.types import Hit, Passage

CALL = '<think>Look it up.</think>\n<tool_call>{"name": "search", "arguments": {"query": "river Vienna"}}</tool_call>'
ANSWER = "<think>The passage says so.</think>\n<answer>Danube</answer>"


PASSAGE = Passage(id="vienna", title="Vienna", text="Vienna is the capital of Austria and lies on the Danube.")


class StubSearch:
    """A search that costs nothing."""

    name = "stub"

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Always the same passage."""
        return [[Hit(passage=PASSAGE, score=1.0, rank=1, backend=self.name)] for _ in queries]

    async def aclose(self) -> None:
        """Nothing to free."""


@contextmanager
def serving(delay_ms: int) -> Iterator[str]:
    """The URL of an endpoint in its own process."""
    command = [sys.executable, __file__, str(delay_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()


def reply(body: dict[str, Any]) -> dict[str, Any]:
    """The completion for a request: by grammar, or by native tool calls when the request declares tools."""
    searched = any("lies on the Danube" in json.dumps(message) for message in body["messages"])
    message: dict[str, Any] = {"role": "assistant", "content": ANSWER if searched else CALL}
    if body.get("tools"):
        name, arguments = ("final_answer", {"answer": "Danube"}) if searched else ("search", {"query": "river Vienna"})
        function = {"name": name, "arguments": json.dumps(arguments)}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        }
    return {
        "id": "stub",
        "object": "chat.completion",
        "created": 0,
        "model": "stub",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 300, "completion_tokens": 30, "total_tokens": 330},
    }


async def main(delay_s: float) -> None:
    """Serve until the process is ended."""

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        if delay_s:
            await asyncio.sleep(delay_s)
        return web.json_response(reply(body))

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) / 1000))
