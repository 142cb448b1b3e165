"""`mia serve search --workers N`: several processes, one port, one index; faults are told as by one process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from local_search.build import build_index


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moons")
    rows = [{"id": str(n), "contents": f'"{name}"\n{name} is a moon.'} for n, name in enumerate(["Io", "Europa"])]
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    build_index(folder / "corpus.jsonl", folder / "index", ["bm25"])
    return folder / "index"


@contextmanager
def served(index: Path, workers: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A service with its address; it is ended by an interrupt, which must give exit code 0."""
    command = [sys.executable, "-m", "local_search", "--search.index", str(index), "--search.mode", "bm25"]
    command += ["--port", "0", "--workers", str(workers)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        try:
            assert said.startswith("serving 2 passages of corpus.jsonl (bm25), mode bm25, with 2 workers at "), said
            yield process, said.split(" at ")[1].strip()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()


def children(process: subprocess.Popen[str]) -> list[int]:
    """Process ids of the workers; the tracker that Python adds for shared resources is none."""
    pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in pids if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


def ask(url: str) -> str:
    answer = httpx.post(f"{url}/retrieve", json={"queries": ["Europa"], "topk": 1}, timeout=20)
    return str(answer.json()["result"][0][0]["id"])


def test_workers_answer_count_together_and_are_replaced(index: Path) -> None:
    with served(index, 2) as (process, url):
        assert [ask(url) for _ in range(12)] == ["1"] * 12  # each on a connection of its own
        assert httpx.get(f"{url}/health", timeout=20).json()["status"] == "ok"
        shown = {httpx.get(f"{url}/metrics", timeout=20).text for _ in range(6)}
        counts = {re.findall(r'mia_requests_total{route="/retrieve",.*status="200"} (\S+)', text)[0] for text in shown}
        assert counts == {"12.0"}  # whichever worker was asked
        first = children(process)
        assert len(first) == 2
        os.kill(first[0], signal.SIGKILL)
        deadline = time.monotonic() + 20
        while len(now := children(process)) < 2 or first[0] in now:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert [ask(url) for _ in range(6)] == ["1"] * 6
        assert process.stderr is not None
        assert process.stderr.readline() == "a worker ended with code -9; another starts\n"
    assert alive(now) == []


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_workers_end_with_a_parent_that_was_killed(index: Path) -> None:
    command = [sys.executable, "-m", "local_search", "--search.index", str(index), "--search.mode", "bm25"]
    with subprocess.Popen([*command, "--port", "0", "--workers", "2"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("serving")
        workers = children(process)
        process.kill()
        process.wait(20)
    deadline = time.monotonic() + 20
    while alive(workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("workers", "words"), [(2, "holds no finished index"), (0, "--workers 0 serves nothing")])
def test_faults_are_told_as_by_one(tmp_path: Path, workers: int, words: str) -> None:
    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "local_search", "--search.index", str(tmp_path / "empty"), "--port", "0"]
    ended = subprocess.run([*command, "--workers", str(workers)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == (1 if workers else 2)
    assert words in ended.stderr
    assert "remedy:" in ended.stderr
    assert "Traceback" not in ended.stderr
