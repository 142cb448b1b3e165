"""How well a small memory recalls: a stream of miniwiki questions and an agent whose success hangs on what it recalls.

The agent is scripted: it succeeds when one of the recalled successes is a workflow for the same form of question, and
else by luck, three times in ten. What it did is stored and what it was shown is credited, as `mia ask` does. Of the
questions of a form that was solved before it is counted how many got a useful memory.
"""

from __future__ import annotations

import importlib
import random
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_search.miniwiki import Question as Asked
from local_search.miniwiki import questions
from memory_serve.config import Keep, MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.protocol import Draft, MemoryStore
from memory_serve.store import SqliteMemory
from mia.errors import ConfigError
from mia.types import Question

LUCK = 0.3
WINDOW = 250


@dataclass(frozen=True)
class Point:
    """What happened with one question: `useful` is None for a form that was not solved before."""

    useful: bool | None
    right: bool
    size: int


async def stream(
    store: MemoryStore, count: int, seed: int = 0, done: Callable[[], object] = lambda: None
) -> list[Point]:
    """Let the agent answer so many questions in random order, beginning with what the store holds."""
    asked = list(questions("train"))
    random.Random(seed).shuffle(asked)
    solved: set[str] = set()
    points = []
    for number, one in enumerate(asked[:count]):
        question = Question(id=one.id, text=one.question)
        recalled = await store.recall(question)
        useful = any(s.memory.provenance["form"] == one.form for s in recalled.successes)
        right = useful or zlib.crc32(f"{seed} {one.id}".encode()) / 2**32 < LUCK
        await store.credit(recalled.ids, right)
        await store.add([_draft(one, right, number)])
        size = (await store.stats()).memories
        points.append(Point(useful if one.form in solved else None, right, size))
        solved |= {one.form} if right else set()
        done()
    return points


async def run(keep: Keep, count: int, done: Callable[[], object] = lambda: None) -> list[Point]:
    """`stream` over a new file with these rules."""
    with tempfile.TemporaryDirectory() as folder:
        config = MemoryConfig(path=Path(folder) / "memory.db", synchronous="normal", keep=keep)
        store = SqliteMemory(config, HashEncoder(384))
        try:
            return await stream(store, count, done=done)
        finally:
            await store.aclose()


def share(points: list[Point]) -> float:
    """How many of the questions that could get a useful memory got one, from 0 to 1."""
    counted = [point.useful for point in points if point.useful is not None]
    return sum(counted) / max(1, len(counted))


def plot(runs: dict[str, list[Point]], file: Path) -> None:
    """Draw the share over a window, and the size, of some runs."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError as error:
        raise ConfigError(
            "matplotlib is not installed", remedy="pip install matplotlib, or leave --plot out"
        ) from error
    matplotlib.use("Agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 6))
    for name, points in runs.items():
        ends = range(1, len(points) + 1)
        above.plot(ends, [100 * share(points[max(0, end - WINDOW) : end]) for end in ends], label=name)
        below.plot(ends, [point.size for point in points], label=name)
    above.set_ylabel(f"useful memory recalled, % of last {WINDOW}")
    below.set_ylabel("memories")
    below.set_xlabel("questions")
    above.legend()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _draft(asked: Asked, right: bool, number: int) -> Draft:
    steps = [f"{place}. Search: {step.query}" for place, step in enumerate(asked.steps, 1)]
    return Draft(
        question=asked.question,
        workflow="\n".join(steps),
        outcome="correct" if right else "incorrect",
        trust="reference",
        source_id=asked.id,
        trajectory_id=f"run-{number}",
        provenance={"form": asked.form},
    )
