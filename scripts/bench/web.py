"""Measures online search against a stub of Serper on loopback: what the code itself costs, without the real network.

Rows: calls that are sent on, one by one and in a batch; the same calls replayed from the disk cache; visits of a cached
page, whole and for a goal. Left out: Serper's own time (about a second) and fetching of real pages.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from mia.cli import report
from mia.errors import MiaError
from mia.types import Record
from web_tools.config import CacheConfig, WebConfig
from web_tools.open import open_engine
from web_tools.stub import Answer, Seen, Server, found, serving

EXAMPLES = """examples:
  python scripts/bench/web.py
  python scripts/bench/web.py --n 500 --json
"""


class Row(Record):
    """Median milliseconds of one call over `n` calls; `sent` calls reached the stub."""

    what: str
    n: int
    ms: float
    sent: int


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 1 if a replay sent anything."""
    args = argparse.ArgumentParser(
        description="Time online search against a stub of Serper.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    args.add_argument("--n", type=int, default=200, help="calls of each kind (default: 200)")
    args.add_argument("--json", action="store_true", help="print rows as JSON")
    given = args.parse_args(argv)
    os.environ.setdefault("SERPER_API_KEY", "any")  # the stub takes every key
    try:
        with tempfile.TemporaryDirectory() as folder, serving(_upstream) as stub:
            rows = asyncio.run(_measure(stub, Path(folder), given.n))
    except MiaError as error:
        return report(error)
    for row in rows:
        print(
            row.model_dump_json() if given.json else f"{row.what:42} {row.ms:8.2f} ms  ({row.n} calls, {row.sent} sent)"
        )
    return 1 if any(row.sent for row in rows if row.what.startswith("replay")) else 0


def _upstream(request: Seen) -> Answer:
    if request.method == "POST":
        return Answer(found(request.json["q"]))
    lines = (f"Line {n} tells of river {n % 97} and of town {n % 89}. " * 6 for n in range(400))
    return Answer("\n".join(lines), headers={"content-type": "text/plain"})


async def _measure(stub: Server, folder: Path, n: int) -> list[Row]:
    config = WebConfig(
        base_url=stub.url, rate=1e6, allow_hosts=(stub.host,), cache=CacheConfig(path=folder), concurrency=16
    )
    live, replay = open_engine(config), open_engine(config.model_copy(update={"mode": "replay"}))
    one = [f"query {number}" for number in range(n)]
    many = [f"other query {number}" for number in range(n)]
    try:
        await live.search(["warm"], 5)
        await live.visit(stub.url)
        rows = [await _row("live, one by one", stub, [partial(live.search, [q], 5) for q in one])]
        started, before = time.perf_counter(), len(stub.seen)
        await live.search(many, 5)
        ms = (time.perf_counter() - started) / n * 1000
        rows.append(Row(what="live, one batch, per query", n=n, ms=ms, sent=len(stub.seen) - before))
        rows.append(await _row("replay, one by one", stub, [partial(replay.search, [q], 5) for q in one]))
        rows.append(await _row("replay, visit of a whole page (110 kB)", stub, [partial(replay.visit, stub.url)] * n))
        goals = [partial(replay.visit, stub.url, f"river {g}") for g in range(min(n, 50))]
        rows.append(await _row("replay, visit for a goal, by BM25", stub, goals))
    finally:
        await live.aclose()
        await replay.aclose()
    return rows


async def _row(what: str, stub: Server, calls: Sequence[Callable[[], Awaitable[object]]]) -> Row:
    before = len(stub.seen)
    seconds = []
    for call in calls:
        started = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - started)
    return Row(what=what, n=len(calls), ms=statistics.median(seconds) * 1000, sent=len(stub.seen) - before)


if __name__ == "__main__":
    sys.exit(main())
