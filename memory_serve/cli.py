"""The verbs `mia serve memory`, `mia memory list`, `show` and `stats`; the others are in `memory_serve.admin`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import Field

from memory_serve.client import read_token
from memory_serve.config import MemoryConfig
from mia.chat import ChatModel, open_chat
from mia.cli import parse, parser
from mia.config import Config, Models, load
from mia.errors import DataError
from mia.http import serve as serve_app

if TYPE_CHECKING:
    import argparse

    from fastapi import FastAPI

    from memory_serve.protocol import MemoryStore, Stored
    from mia.types import Memory

T = TypeVar("T")
_QUESTION_WIDTH = 60


class MemoryVerbConfig(Config):
    """Config of the memory verbs."""

    memory: MemoryConfig = Field(default_factory=MemoryConfig)  # its path depends on the environment
    models: Models = Field(default_factory=Models)

    def manager(self) -> ChatModel | None:
        """The Manager model, if the memory asks it for categories."""
        return open_chat(self.models.of("manager")) if self.memory.classify == "model" else None


def serve(argv: Sequence[str]) -> int:
    """`mia serve memory --port N`."""
    args = parser(
        "serve memory",
        "Serve a memory over HTTP: /v1/recall, /v1/memories, /v1/credit, /v1/export, /v1/stats and others.\n"
        "Whoever reaches the port can read, add and delete, unless memory.token_env names a variable with a token.",
        [
            "mia serve memory --memory.path team.db --port 5000",
            "mia serve memory --memory.namespace research --memory.keep.capacity 500",
        ],
    )
    args.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    args.add_argument("--port", type=int, default=5000, help="port to listen on; 0: any free one (default: 5000)")
    given, config = parse_memory(args, argv)
    memory = config.memory
    token = read_token(memory.token_env) if memory.token_env else ""

    def open_app() -> tuple[FastAPI, str]:
        from memory_serve.app import create_app
        from memory_serve.open import open_served

        what = memory.url.rpartition("@")[2] or str(memory.path)  # no password of a database
        return create_app(open_served(memory, manager=config.manager()), token), what

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
    given, config = parse_memory(args, argv)
    memories = opened(config, lambda store: store.list(given.limit, given.offset))
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
    given, config = parse_memory(args, argv)
    memory = opened(config, lambda store: store.get(given.id))
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
    given, config = parse_memory(args, argv)
    found = opened(config, lambda store: store.stats())
    if given.json:
        print(found.model_dump_json(indent=2))
        return 0
    rows = {"memories": found.memories, **found.by_outcome, **found.by_bucket}
    print("\n".join(f"{name:24} {count}" for name, count in rows.items()))
    print(f"{'encoder':24} {found.encoder}")
    return 0


def parse_memory(args: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, MemoryVerbConfig]:
    """The options of a verb that looks at a memory, and its config."""
    args.add_argument("--config", type=Path, metavar="FILE", help="TOML file with a section [memory]")
    given, flags = parse(args, argv)
    return given, load(MemoryVerbConfig, given.config, flags)


def opened(config: MemoryVerbConfig, work: Callable[[MemoryStore], Awaitable[T]], must_exist: bool = True) -> T:
    """What some work on the store of a config gives; the log shows it as done from the command line.

    Raises:
        DataError: there is no memory yet, and there should be.
    """
    from memory_serve.open import open_memory

    path = config.memory.path
    if must_exist and not config.memory.url and not path.exists():
        raise DataError(
            f"no memory at {path}", remedy="run something that remembers, or set memory.path", code="no_memory"
        )

    async def run() -> T:
        manager = config.manager()
        store = open_memory(config.memory, manager=manager)
        try:
            return await work(store.scoped(actor="command line"))
        finally:
            await store.aclose()
            if manager is not None:
                await manager.aclose()

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


def _details(memory: Stored) -> str:
    rows = {
        "id": memory.id,
        "question": memory.question,
        "caption": memory.caption,
        "outcome": memory.outcome,
        "shown": f"{memory.uses} times, {memory.successes} of them right",
        "bucket": f"{memory.modality}/{memory.category}",
        "created": f"{memory.created:%Y-%m-%d %H:%M:%S} UTC",
        "from": f"question {memory.source_id or '?'}, run {memory.trajectory_id or '?'}",
        "trust": memory.trust,
        "version": str(memory.version),
        "absorbed": memory.absorbed,
        "merged": ", ".join(memory.merged_from),
        **memory.provenance,
    }
    lines = [f"{name:10} {value}" for name, value in rows.items() if value]
    plan = ["", "plan:", memory.plan] if memory.plan else []
    return "\n".join([*lines, "", "workflow:", memory.workflow, *plan])
