"""kill -9 of a stream wherever it writes or asks, then resume: the same predictions, memory and weights, byte for byte.

Each run is a process of its own. What counts as a moment is a file that is opened, renamed or removed in the run's
folder, or a call of the Executor; so kills fall into playing, recording, memory, updates and checkpoints alike.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_models
from tests.evaluating import lines_of, oracle, write_questions

pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "sqlite3.connect")
QUESTIONS, BATCH = 10, 4


def run(place: Path, asked: Path, out: Path, kill_at: int) -> None:
    """One run, in a process of its own; it kills itself at a moment, 0: not at all. Writes how many there were."""
    from tests.learning import Stage

    moments, inside = 0, str(out)

    def moment() -> None:
        nonlocal moments
        moments += 1
        if moments == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, args: Any) -> None:
        if event in EVENTS and args and str(args[0]).startswith(inside):
            moment()

    def counted(first: str, last: str) -> str:
        moment()
        return oracle(first, last)

    sys.addaudithook(hook)
    _, ended = Stage(place, counted).run(asked, out, resume=out.exists())
    assert ended is None
    out.with_suffix(".moments").write_text(str(moments), encoding="utf-8")


def started(*given: Any) -> int | None:
    """Run in a process that has loaded the libraries already; gives its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.learning", "executor_train.grpo", "peft"])
    process = context.Process(target=run, args=given)
    process.start()
    process.join(300)
    return process.exitcode


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the model, the questions and a run that nobody killed."""
    folder = tmp_path_factory.mktemp("whole")
    place = tiny_models.chat_llama(folder / "model", positions=8192)
    assert started(place, write_questions(folder / "q.jsonl", QUESTIONS), folder / "out", 0) == 0
    return folder


def killed_and_resumed(whole: Path, out: Path, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    total = int((whole / "out.moments").read_text())
    given = whole / "model", whole / "q.jsonl", out
    for _ in range(kills):
        assert started(*given, chance.randrange(1, total // 3)) in (0, -signal.SIGKILL)
    assert started(*given, 0) == 0
    for name in ("epoch-1/predictions.jsonl", "memory.jsonl", "final/adapter_model.safetensors"):
        assert (out / name).read_bytes() == (whole / "out" / name).read_bytes(), name
    # Nothing stands twice: rows, stored runs, batches.
    for name in ("rows", "trajectories"):
        ids = Counter(row["id"] for row in lines_of(out / "epoch-1" / f"{name}.jsonl"))
        assert set(ids.values()) == {1}, name
        assert len(ids) == QUESTIONS
    assert len(list((out / "batches").glob("*.scored.jsonl"))) == -(-QUESTIONS // BATCH)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["000003"]


def test_killed_twice(whole: Path, tmp_path: Path) -> None:
    killed_and_resumed(whole, tmp_path / "out", 1, 2)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 5))
def test_killed_at_five_random_moments(whole: Path, tmp_path: Path, seed: int) -> None:
    killed_and_resumed(whole, tmp_path / "out", seed, 5)
