"""The verbs `mia serve memory`, `mia memory list`, `mia memory show` and `mia memory stats`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import Field

from memory_serve.config import MemoryConfig
from mia.cli import parse, parser
from mia.config import Config, load
from mia.errors import ConfigError, DataError
from mia.http import serve as serve_app

if TYPE_CHECKING:
    import argparse

    from fastapi import FastAPI

    from memory_serve.protocol import MemoryStore
    from mia.types import Memory

T = TypeVar("T")
_QUESTION_WIDTH = 60


class MemoryVerbConfig(Config):
    """Config of the memory verbs."""

    memory: MemoryConfig = Field(default_factory=MemoryConfig)  # its path depends on the environment


def serve(argv: Sequence[str]) -> int:
    """`mia serve memory --port N`."""
    args = parser(
        "serve memory",
        "Serve a memory over HTTP: /v1/recall, /v1/memories, /v1/credit, /v1/stats.\n"
        "There is no access control: whoever reaches the port can read, add and delete.",
        [
            "mia serve memory --memory.path team.db --port 5000",
            "mia serve memory --config configs/my.toml     (settings in a section [memory])",
        ],
    )
    args.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    args.add_argument("--port", type=int, default=5000, help="port to listen on; 0: any free one (default: 5000)")
    given, config = _parse(args, argv)
    if config.url:
        raise ConfigError("memory.url is set, but a service serves a file", remedy="set memory.path instead of it")

    def open_app() -> tuple[FastAPI, str]:
        from memory_serve.app import create_app
        from memory_serve.open import open_file

        return create_app(open_file(config)), str(config.path)

    serve_app(given.host, given.port, open_app)
    return 0


def listing(argv: Sequence[str]) -> int:
    """`mia memory list`."""
    args = parser(
        "memory list",
        "List memories, the newest first.",
        ["mia memory list", "mia memory list --limit 1000 --json | jq '.[].question'"],
    )
    args.add_argument("--limit", type=int, default=20, help="how many (default: 20, at most 1000)")
    args.add_argument("--offset", type=int, default=0, help="how many to skip (default: 0)")
    args.add_argument("--json", action="store_true", help="print whole memories as a JSON list")
    given, config = _parse(args, argv)
    memories = _with_store(config, lambda store: store.list(given.limit, given.offset))
    if given.json:
        print("[" + ",\n".join(memory.model_dump_json() for memory in memories) + "]")
    elif memories:
        _print_table(memories)
    else:
        print("nothing is remembered" if given.offset == 0 else "no more memories", file=sys.stderr)
    return 0


def show(argv: Sequence[str]) -> int:
    """`mia memory show ID`."""
    args = parser(
        "memory show",
        "Print one memory.",
        [
            "mia memory show 2f6c1d0e-6c1f-4d0c-9c39-0f6f0a3f9f11",
            "mia memory show 2f6c1d0e-6c1f-4d0c-9c39-0f6f0a3f9f11 --json",
        ],
    )
    args.add_argument("id", metavar="ID", help="id, as `mia memory list` prints it")
    args.add_argument("--json", action="store_true", help="print the memory as JSON")
    given, config = _parse(args, argv)
    memory = _with_store(config, lambda store: store.get(given.id))
    if memory is None:
        raise DataError(f"no memory {given.id!r}", remedy="`mia memory list` prints the ids", code="not_found")
    print(memory.model_dump_json(indent=2) if given.json else _details(memory))
    return 0


def stats(argv: Sequence[str]) -> int:
    """`mia memory stats`."""
    args = parser(
        "memory stats",
        "Count what is remembered.",
        ["mia memory stats", "mia memory stats --memory.path team.db --json"],
    )
    args.add_argument("--json", action="store_true", help="print the counts as JSON")
    given, config = _parse(args, argv)
    found = _with_store(config, lambda store: store.stats())
    if given.json:
        print(found.model_dump_json(indent=2))
        return 0
    rows = {"memories": found.memories, **found.by_outcome, **found.by_bucket}
    print("\n".join(f"{name:24} {count}" for name, count in rows.items()))
    print(f"{'encoder':24} {found.encoder}")
    return 0


def _parse(args: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, MemoryConfig]:
    args.add_argument("--config", type=Path, metavar="FILE", help="TOML file with a section [memory]")
    given, flags = parse(args, argv)
    return given, load(MemoryVerbConfig, given.config, flags).memory


def _with_store(config: MemoryConfig, work: Callable[[MemoryStore], Awaitable[T]]) -> T:
    from memory_serve.open import open_memory

    if not config.url and not config.path.exists():
        raise DataError(
            f"no memory at {config.path}", remedy="run something that remembers, or set memory.path", code="no_memory"
        )

    async def run() -> T:
        store = open_memory(config)
        try:
            return await work(store)
        finally:
            await store.aclose()

    return asyncio.run(run())


def _print_table(memories: Sequence[Memory]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("id", "outcome", "right/shown", "bucket", "question"):
        table.add_column(name, no_wrap=name == "id", overflow="fold")
    for m in memories:
        question = m.question if len(m.question) <= _QUESTION_WIDTH else m.question[: _QUESTION_WIDTH - 1] + "…"
        bucket = f"{m.modality}/{m.category}"
        # As `Text`, because a question may hold what rich takes for markup.
        table.add_row(m.id, m.outcome, f"{m.successes}/{m.uses}", bucket, Text(" ".join(question.split())))
    # A pipe has no width; ids must stay whole in it.
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _details(memory: Memory) -> str:
    rows = {
        "id": memory.id,
        "question": memory.question,
        "caption": memory.caption,
        "outcome": memory.outcome,
        "shown": f"{memory.uses} times, {memory.successes} of them right",
        "bucket": f"{memory.modality}/{memory.category}",
        "created": f"{memory.created:%Y-%m-%d %H:%M:%S} UTC",
        "from": f"question {memory.source_id or '?'}, run {memory.trajectory_id or '?'}",
        **memory.provenance,
    }
    lines = [f"{name:10} {value}" for name, value in rows.items() if value]
    plan = ["", "plan:", memory.plan] if memory.plan else []
    return "\n".join([*lines, "", "workflow:", memory.workflow, *plan])
