"""How well a small memory recalls: a stream of miniwiki questions and an agent whose success hangs on what it recalls.

The stream is the train questions of miniwiki in random order, none of them twice. The agent is scripted: it succeeds
when a useful memory is among what recall returns (`memory.k` successes, 2), and else by luck, three times in ten. What
it did is stored and what it was shown is credited, as `mia ask` does.

A memory is useful if it is of a success and its workflow fits the question: it follows the same chain of relations.
That is the question's form, except that two comparisons of the same values (`film-year-earlier`, `film-year-later`)
need the same searches. Whether one was recalled is counted for the questions whose chain was solved before, be it that
the memory of it is gone by now, or stands in another bucket; for all others there is nothing to recall. So keeping
everything is the bound of what a smaller memory can reach. The store knows nothing of forms: it sees texts.
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
from local_search.miniwiki.forms import COMPARISONS
from memory_serve.config import Keep, MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.protocol import Draft, MemoryStore
from memory_serve.store import SqliteMemory
from mia.errors import ConfigError
from mia.types import Question

LUCK = 0.3
WINDOW = 250
FIRST = 500
"""Questions that are not counted."""
_COMPARED = {c.id: str((c.left, c.left_path, c.right, c.right_path)) for c in COMPARISONS}


@dataclass(frozen=True)
class Point:
    """What happened with one question: `useful` is None for a chain that was not solved before."""

    useful: bool | None
    right: bool
    size: int


def chain(form: str) -> str:
    """Which relations the questions of a form follow."""
    return _COMPARED.get(form, form)


async def stream(
    store: MemoryStore, count: int, seed: int = 0, most: int = 0, done: Callable[[], object] = lambda: None
) -> list[Point]:
    """Let the agent answer so many questions in random order, beginning with what the store holds.

    Args:
        store: the memory.
        count: how many questions.
        seed: of the order and of the agent's luck.
        most: if not 0, memories beyond so many are deleted at random.
        done: called after each question.
    """
    asked = list(questions("train"))
    chance = random.Random(seed)
    chance.shuffle(asked)
    solved: set[str] = set()
    held: list[str] = []
    points = []
    for number, one in enumerate(asked[:count]):
        question, wanted = Question(id=one.id, text=one.question), chain(one.form)
        recalled = await store.recall(question)
        useful = any(s.memory.provenance["chain"] == wanted for s in recalled.successes)
        right = useful or zlib.crc32(f"{seed} {one.id}".encode()) / 2**32 < LUCK
        await store.credit(recalled.ids, right)
        (added,) = await store.add([_draft(one, right, number)])
        held += [added.id] if added.action == "stored" else []
        if most and len(held) > most:
            await store.delete([held.pop(chance.randrange(len(held)))])
        points.append(Point(useful if wanted in solved else None, right, (await store.stats()).memories))
        solved |= {wanted} if right else set()
        done()
    return points


async def run(
    keep: Keep, count: int, seed: int = 0, most: int = 0, done: Callable[[], object] = lambda: None
) -> list[Point]:
    """`stream` over a new file with these rules."""
    with tempfile.TemporaryDirectory() as folder:
        config = MemoryConfig(path=Path(folder) / "memory.db", synchronous="normal", keep=keep)
        store = SqliteMemory(config, HashEncoder(384))
        try:
            return await stream(store, count, seed, most, done)
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
    below.set_yscale("log")
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
        provenance={"chain": chain(asked.form)},
    )
