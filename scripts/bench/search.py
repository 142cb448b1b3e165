"""Measures search engines on synthetic passages: building, disk, memory, queries a second, recall@10 of exact search.

Ours (bm25, dense, lucene) beside what they are made of, used directly and in the same run (bm25s, faiss-flat,
faiss-ivf, pyserini). Every step is a process of its own (`search_engines.py`); what it measured is kept in the work
folder, so that the same command continues a run. Left out: encoders (their rate is printed) and the HTTP service.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from local_search.java import find_java
from mia.cli import report
from mia.errors import ConfigError, DataError, MiaError

EXAMPLES = """examples:
  python scripts/bench/search.py --passages 20000
  python scripts/bench/search.py --passages 1000000 --engines bm25,bm25s,dense,faiss-flat --work /data/bench --json
"""
SCRIPT = Path(__file__).with_name("search_engines.py")
DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "hotpotqa"
TARGET = 30_000_000
MEMORY_MB = 16_000
NOTES = (
    "A passage is five real HotpotQA sentences on one subject, about 110 words; its vector is the normalised mean of "
    "their vectors, since encoding a million passages takes hours on a few cores.",
    "The words are those of 2,276 articles: posting lists are longer, and words fewer, than in a real corpus.",
    "dense is an exact index up to 50,000 passages and an approximate one beyond: its outlook is right only where all "
    "sizes are beyond.",
    "bm25 and lucene do all that `mia index build` does (reading, checking ids, passages, checksums); what they are "
    "beside index alone. Dense engines are asked by vectors; the encoder comes on top.",
)


class Figures(BaseModel):
    """Figures of an engine on a corpus; MB are 10^6 bytes. `anon` is the memory that maps no file."""

    engine: str
    passages: int
    build_s: float
    build_peak_mb: float
    build_anon_mb: float
    disk_mb: float
    rss_mb: float
    anon_mb: float
    p50_ms: float
    p95_ms: float
    single_qps: float
    batch_qps: float
    recall: float | None = None


class Outlook(BaseModel):
    """What an engine would take for TARGET passages; GB are 10^9 bytes, hours those of this machine.

    `fits`: into MEMORY_MB; `mapped`: but for the files it maps, which are then read from disk again and again.
    """

    engine: str
    disk_gb: float
    anon_gb: float
    rss_gb: float
    build_anon_gb: float
    build_h: float
    encode_h: float
    fits: Literal["yes", "mapped", "no"]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument("--passages", type=int, default=20_000, metavar="N", help="the largest corpus (default: 20000)")
    args.add_argument("--sizes", help="comma-separated sizes to measure at (default: a quarter, half and all of N)")
    args.add_argument("--engines", help="comma-separated (default: all whose packages are installed)")
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--data", type=Path, default=DATA, help="folder with corpus.jsonl and questions.jsonl")
    work = Path(tempfile.gettempdir()) / "mia-bench-search"
    args.add_argument("--work", type=Path, default=work, help=f"folder for what is made and measured (default: {work})")
    args.add_argument("--json", action="store_true", help="print figures as JSON")
    given = args.parse_args(argv)
    try:
        return _run(given)
    except MiaError as error:
        return report(error)


def _run(given: argparse.Namespace) -> int:
    text = given.sizes or f"{given.passages // 4},{given.passages // 2},{given.passages}"
    try:
        sizes = sorted({int(word) for word in text.split(",")})
    except ValueError as error:
        raise ConfigError(f"--sizes {text}: no numbers", remedy="write them as 250000,1000000") from error
    if sizes[0] < 1000:
        raise ConfigError(f"{sizes[0]} passages are too few to measure anything", remedy="give 1000 or more")
    given.work.mkdir(parents=True, exist_ok=True)
    steps = Steps(given.work, given.data, given.seed)
    known = steps.do("list", "none", sizes[0], keep=False)
    engines = _chosen(given.engines, known)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    rows: list[Figures] = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("encoding sentences", total=1 + len(sizes) * (1 + 2 * len(engines)))
        rate = float(steps.do("prepare", "none", sizes[0])["passages_per_s"])
        progress.advance(task)
        for size in sizes:
            progress.update(task, description=f"{size:,} passages")
            steps.do("corpus", "none", size)
            progress.advance(task)
            made = []
            for engine in engines:
                measured: dict[str, Any] = {}
                for what in ("build", "search"):
                    progress.update(task, description=f"{size:,} passages, {engine}: {what}")
                    measured |= steps.do(what, engine, size)
                    progress.advance(task)
                made.append(Figures(engine=engine, passages=size, **measured))
            steps.compare(made, known)
            rows += made
    outlooks = []
    for engine in engines:
        own = [row for row in rows if row.engine == engine]
        outlooks.append(_outlook(own, known[engine]["memory_mb"], rate if known[engine]["vectors"] else 0.0))
    _show(given.json, rows, outlooks, rate)
    return 0


def _chosen(text: str | None, known: dict[str, Any]) -> list[str]:
    """The engines asked for, or all that can run here."""
    engines = text.split(",") if text else list(known)
    unknown = [name for name in engines if name not in known]
    if unknown:
        raise ConfigError(f"no engine {unknown[0]!r}", remedy=f"choose from {','.join(known)}")
    present = [e for e in engines if not known[e]["needs"] or importlib.util.find_spec(known[e]["needs"])]
    if text and present != engines:
        absent = next(name for name in engines if name not in present)
        raise ConfigError(f"{absent} needs the package {known[absent]['needs']}", remedy="install it, see README.md")
    return present


class Steps:
    """Does steps in processes of their own, and remembers what they measured."""

    def __init__(self, work: Path, data: Path, seed: int) -> None:
        self.work, self.data, self.seed = work, data, seed

    def _file(self, what: str, engine: str, passages: int) -> Path:
        if what in ("list", "prepare"):
            return self.work / f"{what}-{self.seed}.json"
        return self.work / f"{passages}-{self.seed}-{engine}-{what}.json"

    def do(self, what: str, engine: str, passages: int, keep: bool = True) -> dict[str, Any]:
        """What a step measured, now or in an earlier run; of a build, the peak of its memory too."""
        file = self._file(what, engine, passages)
        if not (keep and file.exists()):
            out = file.with_suffix(".new")
            words = [what, engine, str(self.work), "--passages", str(passages), "--seed", str(self.seed)]
            command = [sys.executable, str(SCRIPT), *words, "--data", str(self.data), "--out", str(out)]
            peak, anon = _watched(command, engine)
            peaks = {"build_peak_mb": peak, "build_anon_mb": anon} if what == "build" else {}
            out.write_text(json.dumps({**json.loads(out.read_text()), **peaks}))
            out.rename(file)
        measured: dict[str, Any] = json.loads(file.read_text())
        return measured

    def compare(self, made: Sequence[Figures], known: dict[str, Any]) -> None:
        """Set the recall of each engine whose exact counterpart was measured too."""
        for row in made:
            file = self._file("search", known[row.engine]["exact"], row.passages)
            if file.exists():
                wanted = json.loads(file.read_text())["found"]
                found = self.do("search", row.engine, row.passages)["found"]
                row.recall = statistics.fmean(map(_share, wanted, found))


def _share(wanted: list[tuple[int, float]], found: list[tuple[int, float]]) -> float:
    """The share of the wanted rows that was found. A row of the same score as the last wanted one is as good as it."""
    wanted = [(row, score) for row, score in wanted if score > 0]
    if not wanted:
        return 1.0
    rows, last = {row for row, _ in wanted}, min(score for _, score in wanted)
    right = sum(row in rows or abs(score - last) <= 1e-5 * last for row, score in found)
    return min(right, len(wanted)) / len(wanted)


def _watched(command: Sequence[str], engine: str) -> tuple[float, float]:
    """Run a step; returns the most memory that it and its children had at once, resident and of that anonymous, in MB.

    It is looked at ten times a second.

    Raises:
        DataError: it failed; says what it said.
    """
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}  # as `mia` does
    if engine == "pyserini":  # used directly, it finds no Java by itself and wants a key at its import
        environment |= {"JAVA_HOME": str(find_java().home), "OPENAI_API_KEY": "none"}
    peak = anon = 0
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(command, stdout=said, stderr=said, env=environment) as process:
            try:
                while process.poll() is None:
                    resident, own = _tree(process.pid)
                    peak, anon = max(peak, resident), max(anon, own)
                    time.sleep(0.1)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            said.seek(0)
            raise DataError(
                f"{' '.join(command[2:5])} ended with {process.returncode}:\n{said.read()[-2000:]}",
                remedy="mend it and run the same command again; what was measured is kept",
                code="failed_step",
            )
    return peak / 1e6, anon / 1e6


def _tree(pid: int) -> tuple[int, int]:
    """Bytes of memory of a process and its children, resident and anonymous. Shared pages count for each."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has just ended
        return 0, 0
    status = dict(line.split(":", 1) for line in lines)
    resident, anon = (int(status.get(name, "0 kB").split()[0]) * 1024 for name in ("VmRSS", "RssAnon"))
    for child in children:
        more = _tree(int(child))
        resident, anon = resident + more[0], anon + more[1]
    return resident, anon


def _outlook(rows: Sequence[Figures], memory_mb: float, rate: float) -> Outlook:
    """Figures at TARGET passages on the line through those of the smallest and the largest corpus measured.

    Args:
        rows: figures of one engine, from the smallest corpus to the largest.
        memory_mb: what its builds keep to, whatever the corpus; 0: nothing.
        rate: passages encoded a second; 0: the engine needs no vectors.
    """
    first, last = rows[0], rows[-1]

    def then(field: str) -> float:
        low, high = float(getattr(first, field)), float(getattr(last, field))
        slope = (high - low) / (last.passages - first.passages) if len(rows) > 1 else high / last.passages
        return high + max(slope, 0.0) * (TARGET - last.passages)

    bound = memory_mb or float("inf")
    build, anon = min(then("build_anon_mb"), bound), min(then("anon_mb"), bound)  # Java's heap has one bound for both
    rss = anon + max(then("rss_mb") - then("anon_mb"), 0.0)
    inside = max(anon, build) <= MEMORY_MB
    return Outlook(
        engine=last.engine,
        disk_gb=then("disk_mb") / 1000,
        anon_gb=anon / 1000,
        rss_gb=rss / 1000,
        build_anon_gb=build / 1000,
        build_h=then("build_s") / 3600,
        encode_h=TARGET / rate / 3600 if rate else 0.0,
        fits="no" if not inside else "yes" if rss <= MEMORY_MB else "mapped",
    )


def _show(as_json: bool, rows: Sequence[Figures], outlooks: Sequence[Outlook], rate: float) -> None:
    notes = [*NOTES, f"Encoding, measured: {rate:.1f} passages a second, {1e6 / rate / 3600:.1f} hours for a million."]
    if as_json:
        table = {"figures": rows, f"outlook_{TARGET}": outlooks}
        shown = {name: [row.model_dump() for row in records] for name, records in table.items()}
        print(json.dumps({**shown, "encoded_per_s": rate, "cores": os.cpu_count(), "notes": notes}, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(_table("measured", rows))
    console.print(_table(f"for {TARGET:,} passages, by the slope from the smallest to the largest corpus", outlooks))
    for note in notes:
        console.print(f"- {note}", highlight=False)


def _table(title: str, rows: Sequence[Figures] | Sequence[Outlook]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in type(rows[0]).model_fields:
        table.add_column(name.replace("_", " "), justify="left" if name == "engine" else "right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.model_dump().values()))
    return table


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    sys.exit(main())
