"""What the agent loop costs: CPU per model call of episodes with two model calls and one search.

Beside ours, in the same run and against the same stub endpoint: a bare aiohttp loop that sends the same two requests
(the floor), and smolagents' ToolCallingAgent in threads. The stub runs in its own process and is not counted.

    python scripts/bench/agent.py
    python scripts/bench/agent.py --concurrency 1 256 --delay-ms 50 --json
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from inference.config import AgentConfig
from inference.driver import Driver
from inference.episode import mia_episode
from inference.tools import SearchTool, ToolBox
from inference.transcript import Transcript
from mia.chat.openai import OpenAIChat, to_wire
from mia.config import Endpoint
from mia.types import Message, Question

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a program, only this folder is on the path
from scripts.bench.stub_endpoint import PASSAGE, StubSearch, serving

AGENT = AgentConfig(plan=False, reflect=False)
CALLS_PER_EPISODE = 2
Run = Callable[[int], Awaitable[None]]


async def limited(count: int, concurrency: int, one: Callable[[int], Awaitable[None]]) -> None:
    """Run `one` for 0..count-1, at most `concurrency` at once."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(worker() for _ in range(min(concurrency, count))))


def run_ours(url: str, count: int, concurrency: int) -> None:
    """Our episodes on our driver and client."""

    async def main() -> None:
        chat = OpenAIChat(Endpoint(url=url, model="stub"))
        driver = Driver({"executor": chat}, ToolBox([SearchTool(StubSearch(), 3)]))

        async def one(number: int) -> None:
            question = Question(id=str(number), text="Which river flows through the capital of Austria?")
            transcript = Transcript()
            episode = mia_episode(
                transcript, question, driver.toolbox.offered(question), AGENT, 32768, time.monotonic, recall=False
            )
            execution = await driver.run(episode)
            if execution.answer != "Danube" or len(transcript.steps) != CALLS_PER_EPISODE:
                raise AssertionError(f"episode {number}: {execution.answer!r} after {len(transcript.steps)} calls")

        await limited(count, concurrency, one)
        await chat.aclose()

    asyncio.run(main())


def run_bare(url: str, count: int, concurrency: int) -> None:
    """The same two requests with nothing around them."""
    first = [Message(role="user", text="x" * 1200)]
    second = [*first, Message(role="assistant", text="y" * 120), Message(role="user", text=PASSAGE.text)]
    bodies = [{"model": "stub", "messages": [to_wire(m) for m in messages]} for messages in (first, second)]

    async def main() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def one(_: int) -> None:
                for body in bodies:
                    async with session.post(f"{url}/chat/completions", json=body) as response:
                        (await response.json())["choices"][0]["message"]["content"]

            await limited(count, concurrency, one)

    asyncio.run(main())


def run_smolagents(url: str, count: int, concurrency: int) -> None:
    """smolagents' tool-calling agent, one thread per episode at once (it has no async loop)."""
    from smolagents import LogLevel, OpenAIModel, Tool, ToolCallingAgent

    class Search(Tool):  # type: ignore[misc]  # untyped library
        name = "search"
        description = "finds passages"
        inputs: dict[str, Any] = {"query": {"type": "string", "description": "what to look for"}}  # noqa: RUF012
        output_type = "string"

        def forward(self, query: str) -> str:
            return PASSAGE.text

    model = OpenAIModel("stub", api_base=url, api_key="none")

    def one(_: int) -> None:
        agent = ToolCallingAgent(tools=[Search()], model=model, verbosity_level=LogLevel.OFF, max_steps=4)
        if agent.run("Which river flows through the capital of Austria?") != "Danube":
            raise AssertionError("smolagents did not reach the answer")

    with ThreadPoolExecutor(concurrency) as pool:
        list(pool.map(one, range(count)))


CANDIDATES: dict[str, tuple[Callable[[str, int, int], None], int]] = {
    "mia": (run_ours, 1000),
    "bare aiohttp": (run_bare, 1000),
    "smolagents": (run_smolagents, 256),
}
"""Name to (runner, highest concurrency it is tried at)."""


def rss_mb() -> float:
    """Resident memory of this process, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def measure(run: Callable[[str, int, int], None], url: str, concurrency: int, repeats: int) -> dict[str, float]:
    """Medians over the repeats."""
    count = max(100, min(2 * concurrency, 1000))
    cpu, wall = [], []
    for _ in range(repeats):
        gc.collect()
        cpu_started, wall_started = time.process_time(), time.perf_counter()
        run(url, count, concurrency)
        cpu.append((time.process_time() - cpu_started) / (count * CALLS_PER_EPISODE) * 1000)
        wall.append(count / (time.perf_counter() - wall_started))
    return {
        "episodes": count,
        "cpu_ms_per_call": statistics.median(cpu),
        "episodes_per_s": statistics.median(wall),
        "rss_mb": rss_mb(),
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 32, 256, 1000])
    parser.add_argument("--delay-ms", type=int, nargs="+", default=[0, 50])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    plan = [(d, c, n) for d in args.delay_ms for c in args.concurrency for n in args.only if c <= CANDIDATES[n][1]]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=len(plan))
        for delay, concurrency, name in plan:
            progress.update(task, description=f"{name}, {concurrency} at once, {delay} ms")
            with serving(delay) as url:
                figures = measure(CANDIDATES[name][0], url, concurrency, args.repeats)
            rows.append({"loop": name, "delay_ms": delay, "at_once": concurrency, **figures})
            progress.advance(task)
    rows.append({"flat_memory_mb": flat_memory()} if "mia" in args.only else {})
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    table = Table("loop", "delay ms", "at once", "episodes", "CPU ms / model call", "episodes / s", "RSS MB")
    for row in rows[:-1]:
        cells = [f"{row['cpu_ms_per_call']:.2f}", f"{row['episodes_per_s']:.0f}", f"{row['rss_mb']:.0f}"]
        table.add_row(row["loop"], str(row["delay_ms"]), str(row["at_once"]), str(row["episodes"]), *cells)
    Console().print(table)
    for name, values in rows[-1].items():
        print(f"{name} (RSS after each of {len(values)} rounds of 1,000 episodes): {[round(v) for v in values]}")
    return 0


def flat_memory(rounds: int = 5) -> list[float]:
    """RSS after each of several rounds of 1,000 episodes, 256 at once."""
    sizes = []
    for _ in range(rounds):
        with serving(0) as url:
            run_ours(url, 1000, 256)
        gc.collect()
        sizes.append(rss_mb())
    return sizes


if __name__ == "__main__":
    sys.exit(main())
