"""The real build command: killed and continued, over processes, within its memory."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_search.index import MANIFEST


def corpus_of(folder: Path, passages: int, seed: int = 0) -> Path:
    """Passages of 60 words: few that are common, many that are rare."""
    rng = random.Random(seed)
    path = folder / "corpus.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(passages):
            words = " ".join(f"w{int(rng.paretovariate(0.6))}" for _ in range(60))
            file.write(json.dumps({"id": f"p{number}", "contents": f'"Passage {number}"\n{words}'}) + "\n")
    return path


def as_parquet(corpus: Path) -> Path:
    """The same rows, in one row group, which a reader must not take as a whole."""
    arrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    rows = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    table = arrow.table({name: [row[name] for row in rows] for name in ("id", "contents")})
    parquet.write_table(table, corpus.with_suffix(".parquet"), row_group_size=len(rows))
    return corpus.with_suffix(".parquet")


def start(corpus: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    words = ["index", "build", str(corpus), "--out", str(out), "--engines", "bm25", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "mia.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str]) -> str:
    """What a process wrote to stderr, after its sound end."""
    _, err = process.communicate()
    assert process.returncode == 0, err
    return err


def content(index: Path) -> dict[str, bytes | dict[str, object]]:
    """All bytes of an index, but for the time of its making."""
    files: dict[str, bytes | dict[str, object]] = {
        path.relative_to(index).as_posix(): path.read_bytes() for path in index.rglob("*") if path.is_file()
    }
    manifest: dict[str, object] = json.loads((index / MANIFEST).read_bytes())
    files[MANIFEST] = {name: value for name, value in manifest.items() if name != "created"}
    return files


def children(process: int) -> Iterator[int]:
    """Ids of all processes below one."""
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found = task.read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        for child in found:
            yield int(child)
            yield from children(int(child))


def resident(process: int) -> int:
    """Bytes of a process in memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def killed_and_continued(folder: Path, passages: int, kills: int, rng: random.Random) -> None:
    """Build, kill at a random time, build again and kill again; the last build is let end."""
    corpus = corpus_of(folder, passages)
    started = time.monotonic()
    finished(start(corpus, folder / "whole", "--memory", "1GB", "--workers", "1"))
    whole = time.monotonic() - started
    for _ in range(kills):
        process = start(corpus, folder / "killed", "--memory", "300MB", "--workers", rng.choice("12"))
        time.sleep(rng.uniform(whole / 10, whole))
        below = list(children(process.pid)) if process.poll() is None else []
        process.send_signal(signal.SIGKILL)
        process.communicate()
        deadline = time.monotonic() + 20
        while any(map(running, below)):  # nobody kills them: they see that their caller is gone
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finished(start(corpus, folder / "killed", "--memory", "300MB", "--workers", "2"))
    assert content(folder / "killed") == content(folder / "whole")
    assert sorted(path.name for path in folder.iterdir()) == ["corpus.jsonl", "killed", "whole"]


def test_killed_build_is_continued_to_the_same_bytes(tmp_path: Path) -> None:
    killed_and_continued(tmp_path, 4000, 2, random.Random(1))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_often_killed_build_is_continued_to_the_same_bytes(tmp_path: Path, seed: int) -> None:
    killed_and_continued(tmp_path, 20_000, 6, random.Random(seed))


def test_shards_that_are_done_are_not_done_again(tmp_path: Path) -> None:
    """Stopped as soon as a shard is there; the next build says that it goes on, and with how many."""
    corpus = corpus_of(tmp_path, 20_000)
    process = start(corpus, tmp_path / "index", "--memory", "135MB", "--workers", "1")
    while process.poll() is None and not list(tmp_path.glob(".index.building-*/shards/000000")):
        time.sleep(0.005)
    process.kill()
    process.communicate()
    done = [path.name for path in tmp_path.glob(".index.building-*/shards/*") if path.name.isdigit()]
    total = json.loads(next(tmp_path.glob(".index.building-*/plan.json")).read_bytes())["shards"]
    assert 1 <= len(done) < total
    err = finished(start(corpus, tmp_path / "index", "--memory", "1GB", "--workers", "2"))
    assert f"continuing an unfinished build, {len(done)} of {total} shards are done" in err


def test_two_commands_at_once_leave_one_index(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, 3000)
    both = [start(corpus, tmp_path / "index", "--workers", "1") for _ in range(2)]
    said = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    first = {out.split()[0] for out, _ in said}
    assert first == {"indexed", str(tmp_path / "index")}  # the second waited, and found it up to date
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


@pytest.mark.long
@pytest.mark.parametrize(("memory", "workers", "source"), [(200, 1, "jsonl"), (250, 1, "parquet"), (400, 2, "jsonl")])
def test_build_stays_within_its_memory(tmp_path: Path, memory: int, workers: int, source: str) -> None:
    """All processes together; pages that they share are counted more than once, which makes it harder."""
    corpus = corpus_of(tmp_path, 60_000)
    if source == "parquet":
        corpus = as_parquet(corpus)
    process = start(corpus, tmp_path / "index", "--memory", f"{memory}MB", "--workers", str(workers))
    said: list[str] = []
    reading = threading.Thread(target=lambda: said.append(finished(process)))
    reading.start()
    most = 0
    while reading.is_alive():
        total = 0
        for pid in (process.pid, *children(process.pid)):
            try:
                total += resident(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
        most = max(most, total)
        time.sleep(0.01)
    reading.join()
    assert len(said) == 1
    assert os.path.getsize(tmp_path / "index" / "bm25" / "data.csc.index.npy") > 5_000_000
    assert 50_000_000 < most < memory * 1_000_000
