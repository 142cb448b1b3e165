"""kill -9 of a run at random moments, then resume: the same predictions and the same memory, byte for byte.

The run is a process of its own. Its model answers on loopback by a hash of all it is sent, so that any difference in a
plan, a memory or a passage would show; the memory is MIA's own, on disk.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import chat_endpoint
from tests.evaluating import lines_of, oracle, write_questions

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = 60
RUN = """
import asyncio, sys
from pathlib import Path
from mia.chat.openai import OpenAIChat
from mia.errors import MiaError
from tests.evaluating import World, settings

questions, out, url = sys.argv[1:4]
flags = {"models.default.url": url, "models.default.model": "stub", "models.default.retries": 0}
config = settings(Path(questions), eval__batch=6, eval__concurrency=6, **flags)
world = World()
world.model = world.judge = OpenAIChat(config.models.default)
summary, ended = asyncio.run(world.run(config, Path(out), resume="--resume" in sys.argv))
if ended:
    print(f"{type(ended).__name__}: {ended}", file=sys.stderr)
    sys.exit(1)
"""


class Endpoint:
    """Counts what it is asked, and says when a number is reached."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.reached = threading.Event()
        self.limit = 10**9
        self._lock = threading.Lock()

    def answer(self, messages: list[dict[str, Any]]) -> str:
        with self._lock:
            self.asked["all"] += 1
            if self.asked["all"] >= self.limit:
                self.reached.set()
        return oracle(messages[0]["content"], messages[-1]["content"])


def start(questions: Path, out: Path, url: str, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(questions), str(out), url, *more],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def finished(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def killed_and_resumed(tmp_path: Path, seed: int, kills: int) -> None:
    """The uninterrupted run beside one that is killed so many times."""
    questions = write_questions(tmp_path / "questions.jsonl", QUESTIONS)
    chance, endpoint = random.Random(seed), Endpoint()
    whole, out = tmp_path / "whole", tmp_path / "killed"
    with chat_endpoint(endpoint.answer) as url:
        finished(start(questions, whole, url))
        total = endpoint.asked["all"]
        resume: tuple[str, ...] = ()
        for _ in range(kills):
            endpoint.reached.clear()
            # Half of the work at most before the last kill: there is always enough left to be killed in.
            endpoint.limit = endpoint.asked["all"] + chance.randrange(1, total // (2 * kills))
            process = start(questions, out, url, *resume)
            assert endpoint.reached.wait(120)
            threading.Event().wait(chance.random() * 0.1)  # somewhere in writing, judging, learning
            process.send_signal(signal.SIGKILL)
            process.communicate()
            resume = ("--resume",)
        finished(start(questions, out, url, *resume))
    for name in ("predictions.jsonl", "memory.jsonl"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    ids = [row["id"] for row in lines_of(out / "rows.jsonl")]
    assert ids == [f"q{n}" for n in range(QUESTIONS)]
    assert json.loads((out / "summary.json").read_bytes())["done"] == QUESTIONS
    # What is on disk is not asked again: each kill costs at most the questions of one batch.
    assert endpoint.asked["all"] - total <= total + kills * 6 * 7


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_five_random_moments(tmp_path: Path, seed: int) -> None:
    killed_and_resumed(tmp_path, seed, 5)


def test_killed_twice(tmp_path: Path) -> None:
    killed_and_resumed(tmp_path, 7, 2)


def test_a_full_disk_ends_the_run_and_space_lets_it_go_on(tmp_path: Path) -> None:
    questions = write_questions(tmp_path / "questions.jsonl", 30)
    with chat_endpoint(Endpoint().answer) as url:
        finished(start(questions, tmp_path / "whole", url))

        def little_space() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        process = subprocess.Popen(
            [sys.executable, "-B", "-c", RUN, str(questions), str(tmp_path / "run"), url],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=little_space,
        )
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 1
        assert (
            "File too large" in errors or "disk I/O error" in errors
        )  # a trajectory or the memory, whichever is first
        assert "--resume" in errors
        done = len(lines_of(tmp_path / "run" / "rows.jsonl"))
        assert 0 < done < 30
        finished(start(questions, tmp_path / "run", url, "--resume"))
    for name in ("predictions.jsonl", "memory.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
