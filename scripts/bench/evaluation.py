"""What the runner costs: questions a second of a whole evaluation, beside a bare asyncio loop with the same calls.

Both send the same number of chat requests, as many at once, to the same stub endpoint, which runs in a process of its
own and answers after a fixed time. The evaluation does all it does otherwise: searches, judges, writes and syncs
trajectories and rows, learns (method mia: four calls a question instead of two). Its memory use is that of the process.

    python scripts/bench/evaluation.py
    python scripts/bench/evaluation.py --method mia --concurrency 16 --questions 500 --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from inference.agent import Agent
from inference.datasets import load_dataset
from inference.evaluation.answering import Here
from inference.evaluation.config import EvalConfig
from inference.evaluation.finish import finish
from inference.evaluation.folder import open_folder
from inference.evaluation.runner import Runner
from inference.evaluation.stream import stream
from inference.methods.mia import MiaMethod
from inference.runs import RunStore
from inference.search import Search
from inference.tools import SearchTool
from memory_serve.hashing import HashEncoder
from memory_serve.store import SqliteMemory
from mia.chat.openai import OpenAIChat, to_wire
from mia.config import load
from mia.types import Message

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a program, only this folder is on the path
from scripts.bench.stub_endpoint import PASSAGE, StubSearch, serving

CALLS = {"react": 2, "mia": 4}
"""Model calls of a question: search and answer; with MIA also plan and reflection."""


def open_agent(config: EvalConfig) -> Here:
    """An agent on the endpoint of the config, with a search that costs nothing and an encoder without a model."""
    chat = OpenAIChat(config.models.default)
    models = dict.fromkeys(("manager", "planner", "executor", "judge", "router"), chat)
    method = MiaMethod(SqliteMemory(config.memory, HashEncoder())) if config.method.traits.memory else None
    tools = Search(StubSearch(), (SearchTool(StubSearch(), 3),))
    return Here(Agent(config, models, tools, method, RunStore(config.memory.path.parent)))  # type: ignore[arg-type]


def run_ours(url: str, method: str, count: int, concurrency: int, folder: Path) -> None:
    """A whole evaluation."""
    questions = folder / "questions.jsonl"
    rows = [
        {"id": str(n), "question": f"Which river flows through capital {n}?", "answer": "Danube"} for n in range(count)
    ]
    questions.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    flags = {
        "dataset.name": "jsonl",
        "dataset.path": str(questions),
        "models.default.url": url,
        "models.default.model": "stub",
        "method.name": method,
        "agent.reflect": method == "mia",
        "eval.concurrency": concurrency,
    }
    config = load(EvalConfig, None, flags)
    dataset = load_dataset(config.dataset)
    items = stream(dataset, config.eval)

    async def main() -> None:
        run = open_folder(folder / "run", config, dataset, resume=False)
        await Runner(config, items, run, open_agent).run()
        await run.aclose()

    asyncio.run(main())
    summary = finish(folder / "run", count)
    if summary["model_calls"] != count * CALLS[method] or summary["em"]["mean"] != 1.0:
        raise AssertionError(f"{summary['model_calls']} calls, EM {summary['em']}")


def run_bare(url: str, method: str, count: int, concurrency: int, folder: Path) -> None:
    """The same number of requests of the same kind, as many at once, with nothing around them."""
    first = [Message(role="user", text="x" * 1200)]
    second = [*first, Message(role="assistant", text="y" * 120), Message(role="user", text=PASSAGE.text)]
    bodies = [{"model": "stub", "messages": [to_wire(m) for m in messages]} for messages in (first, second)]

    async def main() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            rest = iter(range(count))

            async def worker() -> None:
                for _ in rest:
                    for body in bodies * (CALLS[method] // 2):
                        async with session.post(f"{url}/chat/completions", json=body) as response:
                            (await response.json())["choices"][0]["message"]["content"]

            await asyncio.gather(*(worker() for _ in range(concurrency)))

    asyncio.run(main())


def measure(name: str, args: argparse.Namespace, concurrency: int) -> dict[str, Any]:
    """Medians over the repeats."""
    run = run_ours if name == "mia eval" else run_bare
    walls, cpus = [], []
    for _ in range(args.repeats):
        with serving(args.delay_ms) as url, tempfile.TemporaryDirectory(dir=args.dir) as folder:
            wall, cpu = time.perf_counter(), time.process_time()
            run(url, args.method, args.questions, concurrency, Path(folder))
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
    return {
        "loop": name,
        "at_once": concurrency,
        "seconds": statistics.median(walls),
        "questions_per_s": args.questions / statistics.median(walls),
        "cpu_ms_per_question": 1000 * statistics.median(cpus) / args.questions,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--delay-ms", type=int, default=50)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--method", choices=list(CALLS), default="react")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="where the run folders are made (default: the system's)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    rows = []
    for concurrency in args.concurrency:
        bare, ours = (measure(name, args, concurrency) for name in ("bare asyncio", "mia eval"))
        rows += [bare, {**ours, "times_bare": ours["seconds"] / bare["seconds"]}]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    title = f"{args.questions} questions, {CALLS[args.method]} calls each, {args.delay_ms} ms a call, {args.method}"
    table = Table(
        "loop", "at once", "seconds", "questions / s", "CPU ms / question", "times bare", "peak RSS MB", title=title
    )
    for row in rows:
        times = f"{row['times_bare']:.2f}" if "times_bare" in row else ""
        figures = (row["seconds"], row["questions_per_s"], row["cpu_ms_per_question"])
        cells = [f"{figure:.1f}" for figure in figures]
        table.add_row(row["loop"], str(row["at_once"]), *cells, times, f"{row['peak_rss_mb']:.0f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
