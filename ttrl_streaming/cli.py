"""The verbs `mia serve stream`, `mia ttrl replay`, `mia ttrl chats` and `mia ttrl stream`."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from inference.cli import read_profile
from inference.datasets.config import DatasetConfig
from memory_serve.client import read_token
from mia.cli import parse, parser
from mia.config import Config, load
from mia.errors import ConfigError, DataError
from mia.http import serve as serve_app
from ttrl_streaming.config import StreamConfig, settled

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ttrl_streaming.client import StreamingClient
    from ttrl_streaming.replay import Replayed

URL = "http://127.0.0.1:8765"
ACTIONS = ("status", "curve", "flush", "checkpoint", "rollback")


class ReplayConfig(Config):
    """Config of `mia ttrl replay`."""

    dataset: DatasetConfig = Field(default_factory=DatasetConfig)


def serve(argv: Sequence[str]) -> int:
    """`mia serve stream CONFIG --out DIR`."""
    args = parser(
        "serve stream",
        "Answer questions over HTTP and learn from feedback that comes later: /v1/ask, /v1/feedback, /v1/status,\n"
        "/v1/curve, /v1/flush, /v1/checkpoint, /v1/rollback. Queue, memory and weights are in one folder; a service\n"
        "that was killed goes on with it. Whoever reaches the port can ask and teach, unless streaming.token_env\n"
        "names a variable with a token. Any setting can be given as a dotted flag.",
        [
            "mia serve stream ttrl/streaming_tiny --out runs/stream",
            "mia serve stream ttrl/streaming --search.index my-index --out runs/stream --port 8765",
        ],
    )
    args.add_argument("config", help="TOML file, or name of a profile in configs/")
    args.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of queue, memory and weights")
    args.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    args.add_argument("--port", type=int, default=8765, help="port to listen on; 0: any free one (default: 8765)")
    args.add_argument("--limit", type=int, metavar="N", help="answer N questions; short for --streaming.limit")
    given, flags = parse(args, argv)
    if given.limit is not None:
        flags["streaming.limit"] = given.limit
    out = given.out.absolute()
    config = settled(read_profile(StreamConfig, given.config, flags), out)
    name = config.streaming.token_env
    token = read_token(name, "streaming.token_env") if name else ""

    def open_app() -> tuple[FastAPI, str]:
        from ttrl_streaming.app import create_app
        from ttrl_streaming.open import open_service

        return create_app(open_service(config, out), token), f"{config.policy.path}, learning in {given.out},"

    serve_app(given.host, given.port, open_app)
    return 0


def replay(argv: Sequence[str]) -> int:
    """`mia ttrl replay`: 0 when every question was answered."""
    args = parser(
        "ttrl replay",
        "Replay a dataset (JSONL, Parquet, or a bundled one) against `mia serve stream`: ask, and say later, in\n"
        "another order, what was right. A replay of the same name goes on where it was broken off.",
        [
            "mia ttrl replay --limit 32",
            "mia ttrl replay --dataset.name jsonl --dataset.path q.jsonl --users 16 --late 32 --out answers.jsonl",
        ],
    )
    _reaching(args)
    args.add_argument("--limit", type=int, default=0, metavar="N", help="first N questions; 0: all (default: 0)")
    args.add_argument("--users", type=int, default=4, metavar="N", help="who ask at once (default: 4)")
    args.add_argument("--late", type=int, default=8, metavar="N", help="answers before anything is said (default: 8)")
    args.add_argument("--seed", type=int, default=0, help="of the order of what is said (default: 0)")
    args.add_argument("--name", default="replay", help="of the run, part of the ids (default: replay)")
    args.add_argument("--out", type=Path, metavar="FILE", help="write the answers there, as JSON Lines")
    args.add_argument("--json", action="store_true", help="print the summary as JSON")
    given, flags = parse(args, argv)
    if min(given.users, given.late) < 1 or given.limit < 0:
        raise ConfigError("--users and --late are 1 or more, --limit 0 or more")
    from inference.datasets import load_dataset

    examples = load_dataset(load(ReplayConfig, None, flags).dataset).examples
    examples = examples[: given.limit] if given.limit else examples
    done = asyncio.run(_replay(given, examples))
    if given.out is not None:
        _write(given.out, done)
    summary = _summary(done)
    print(json.dumps(summary) if given.json else "\n".join(f"{name:10} {value}" for name, value in summary.items()))
    return 0 if not summary["failed"] else 1


async def _replay(given: Any, examples: Sequence[Any]) -> list[Replayed]:
    from rich.console import Console
    from rich.progress import Progress

    from ttrl_streaming.replay import Replay

    client = _client(given)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("asking", total=len(examples))
        run = Replay(
            client, examples, given.name, given.namespace, given.users, given.late, given.seed,
            lambda _: progress.advance(task),
        )  # fmt: skip
        try:
            return await run.run()
        finally:
            await client.aclose()


def _write(path: Path, done: Sequence[Replayed]) -> None:
    try:
        path.write_text("".join(f"{each.model_dump_json()}\n" for each in done), encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}", remedy="give another --out") from error


def _summary(done: Sequence[Replayed]) -> dict[str, Any]:
    answered = [each for each in done if each.failure is None]
    return {
        "asked": len(done),
        "failed": len(done) - len(answered),
        "right": sum(bool(each.correct) for each in answered),
        "accuracy": round(statistics.fmean(bool(each.correct) for each in answered), 4) if answered else None,
        "versions": sorted({each.version for each in answered}),
    }


def chats(argv: Sequence[str]) -> int:
    """`mia ttrl chats FILE…`."""
    args = parser(
        "ttrl chats",
        "Learn from conversations: logs in OpenAI's form (JSON Lines with `messages`) or session files of OpenClaw.\n"
        "What the user said after an answer is the feedback; the judge model reads it. A log is learned only once.",
        [
            "mia ttrl chats log.jsonl --namespace ann",
            "mia ttrl chats ~/.openclaw/agents/main/sessions/*.jsonl --namespace main --flush",
        ],
    )
    args.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON Lines of conversations")
    args.add_argument("--flush", action="store_true", help="learn at once, and wait for it")
    args.add_argument("--json", action="store_true", help="print the counts as JSON")
    _reaching(args)
    given, _ = parse(args, argv)
    from ttrl_streaming.conversations import read_episodes

    found = [episode for path in given.files for episode in read_episodes(path)]

    async def send(client: StreamingClient) -> dict[str, int]:
        taken = []
        for start in range(0, len(found), 1000):
            taken += await client.episodes(found[start : start + 1000], given.namespace)
        if given.flush:
            await client.flush(given.namespace)
        known = sum(each.outcome == "known" for each in taken)
        return {"episodes": len(found), "new": len(found) - known, "known": known}

    counts = asyncio.run(_with(given, send))
    print(json.dumps(counts) if given.json else "  ".join(f"{count} {name}" for name, count in counts.items()))
    return 0


def stream(argv: Sequence[str]) -> int:
    """`mia ttrl stream ACTION`."""
    args = parser(
        "ttrl stream",
        "Look after a running `mia serve stream`: print its status or learning curve, learn from what is there\n"
        "(flush), copy the weights that serve (checkpoint), or let the version before serve again (rollback).",
        ["mia ttrl stream status", "mia ttrl stream rollback --namespace ann", "mia ttrl stream rollback --version 3"],
    )
    args.add_argument("action", choices=ACTIONS, help="what to do")
    args.add_argument("--version", type=int, metavar="N", help="of a rollback: which version (default: the one before)")
    _reaching(args)
    given, _ = parse(args, argv)
    if given.version is not None and given.action != "rollback":
        raise ConfigError("--version is for rollback")
    more = [given.version] if given.action == "rollback" else []

    async def act(client: StreamingClient) -> str:
        found = await getattr(client, given.action)(given.namespace, *more)
        return str(found.model_dump_json(indent=1))

    print(asyncio.run(_with(given, act)))
    return 0


def _reaching(args: ArgumentParser) -> None:
    args.add_argument("--url", default=URL, help=f"address of the service (default: {URL})")
    args.add_argument("--namespace", default="default", help="whose weights (default: default)")
    args.add_argument("--token-env", default="", metavar="NAME", help="environment variable with the bearer token")


def _client(given: Any) -> StreamingClient:
    from ttrl_streaming.client import StreamingClient

    token = read_token(given.token_env, "--token-env") if given.token_env else ""
    return StreamingClient(given.url, token=token, timeout_s=3600)


async def _with(given: Any, work: Any) -> Any:
    client = _client(given)
    try:
        return await work(client)
    finally:
        await client.aclose()


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
