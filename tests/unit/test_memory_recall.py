"""Recall over a big bucket against a full sort in plain Python: quick arrays must not change a score or an order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from memory_serve.coarse import COARSE_FROM
from memory_serve.config import MemoryConfig
from memory_serve.protocol import TRUSTS, Stored
from memory_serve.rows import Encoded
from memory_serve.upkeep import MemoryCore
from memory_serve.vectors import OUTCOMES
from memory_serve.writing import Call

DIM, COUNT = 32, COARSE_FROM + 1000
BUCKET = ("text-image", "human")
RNG = np.random.default_rng(7)


def units(count: int) -> Any:
    vectors = RNG.standard_normal((count, DIM)).astype(np.float32)
    unit: Any = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


# Few vectors, times and counters, so that there are many ties.
FEW, CAPTIONS = units(60), units(20)
MEMORIES = [
    Stored(
        id=f"m{number:05}",
        question=f"Question {number}?",
        caption="a picture" if number % 3 == 0 else "",
        workflow="1. Search",
        outcome=OUTCOMES[int(RNG.integers(0, 3))],
        modality="text-image",
        category="human",
        uses=(uses := int(RNG.integers(0, 4))),
        successes=int(RNG.integers(0, uses + 1)),
        created=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=int(RNG.integers(0, 9))),
        source_id=f"q{number % 50}",
        trust=TRUSTS[int(RNG.integers(0, 5))],
        win_rate=None if number % 2 else round(float(RNG.random()), 2),
    )
    for number in range(COUNT)
]
ENCODED = [
    Encoded(BUCKET, FEW[number * 7 % 60], CAPTIONS[number % 20] if memory.caption else None)
    for number, memory in enumerate(MEMORIES)
]


@pytest.fixture(scope="module", params=[4000, COUNT])
def stored(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, int]:
    """A file of so many memories; of the greater number, recall looks at coarse vectors first."""
    path, count = tmp_path_factory.mktemp("recall") / "m.db", int(request.param)
    core = MemoryCore(MemoryConfig(path=path, synchronous="normal"), "few", DIM)
    for start in range(0, count, 1000):
        some = slice(start, min(start + 1000, count))
        (result,) = core.run([Call(core.load_memories, (MEMORIES[some], ENCODED[some]), "default", "", "import")])
        assert {added.action for added in result} == {"stored"}
    core.close()
    return path, count


def similarity(asked: Encoded, encoded: Encoded) -> float:
    """0.8 and 0.2 if both have a caption; products in single precision, as vectors are stored."""
    cosine = float(np.vecdot(asked.question, encoded.question))
    if asked.caption is not None and encoded.caption is not None:
        cosine = 0.8 * cosine + 0.2 * float(np.vecdot(asked.caption, encoded.caption))
    return min(1.0, max(-1.0, cosine))


def wanted(
    asked: Encoded, source: str, config: MemoryConfig, count: int, k: int, skip: int
) -> list[tuple[str, float, float]]:
    """Id, score and similarity of what should be recalled, by outcome."""
    rows = [
        (m, similarity(asked, e))
        for m, e in zip(MEMORIES[:count], ENCODED[:count], strict=True)
        if m.trust in config.recall_trust and (not source or m.source_id != source)
    ]
    low, high = min(s for _, s in rows), max(s for _, s in rows)

    def score(m: Stored, s: float) -> float:
        similar = 0.7 * ((s - low) / (high - low + 1e-8))
        if config.score == "paper":
            return similar + 0.3 * m.successes / (m.uses + 1) + 0.3 / (m.uses + 1)
        rate = round(m.successes / m.uses, 4) if m.uses else 1.0
        return similar + 0.3 * (rate if m.win_rate is None else m.win_rate)

    found = []
    for outcome in OUTCOMES:
        scored = [(m, s, score(m, s)) for m, s in rows if m.outcome == outcome and s >= config.floor]
        scored.sort(key=lambda row: (-row[2], -row[0].created.timestamp(), row[0].id))
        found += [(m.id, total, s) for m, s, total in scored[skip : skip + k]]
    return found


@pytest.mark.parametrize("captioned", [False, True])
@pytest.mark.parametrize("kind", ["paper", "released"])
@pytest.mark.parametrize(("source", "floor", "trust"), [("", -1.0, TRUSTS), ("q3", 0.05, TRUSTS[:3])])
def test_recall_is_the_full_sort(
    stored: tuple[Path, int], captioned: bool, kind: Literal["paper", "released"], source: str, floor: float, trust: Any
) -> None:
    path, count = stored
    config = MemoryConfig(path=path, score=kind, floor=floor, recall_trust=trust)
    core = MemoryCore(config, "few", DIM)
    for question, caption, k, skip in zip(units(4), units(4), (2, 7, 40, 100), (0, 3, 500, 999), strict=True):
        asked = Encoded(BUCKET, question, caption if captioned else None)
        recalled = core.recall("default", asked, source, k, skip, False)
        scored = (*recalled.successes, *recalled.failures, *recalled.unjudged)
        assert [(s.memory.id, s.score, s.similarity) for s in scored] == wanted(asked, source, config, count, k, skip)
        assert all(sum(s.terms.values()) == pytest.approx(s.score, abs=1e-12) for s in scored)
    core.close()


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[MemoryCore]:
    core = MemoryCore(MemoryConfig(path=tmp_path / "m.db", synchronous="normal"), "few", DIM)
    core.run([Call(core.load_memories, (MEMORIES[:900], ENCODED[:900]), "default", "", "import")])
    core.run([Call(core.load_memories, (MEMORIES[900:1800], ENCODED[900:1800]), "default", "", "import")])
    yield core
    core.close()


def test_credits_and_gaps_count_at_once(changing: MemoryCore, tmp_path: Path) -> None:
    """What is kept in RAM between recalls is what a fresh reading of the file gives."""
    core = changing
    for step in range(12):
        ids = [str(i) for i in RNG.choice([m.id for m in MEMORIES[:1800]], 50)]
        work = core.delete if step % 3 == 2 else core.credit
        core.run([Call(work, (ids,) if step % 3 == 2 else (ids, step % 2 == 0, ""), "default", "", "credit")])
        asked = Encoded(BUCKET, units(1)[0], units(1)[0])
        fresh = MemoryCore(MemoryConfig(path=tmp_path / "m.db"), "few", DIM)
        assert core.recall("default", asked, "q1", 9, 2, False) == fresh.recall("default", asked, "q1", 9, 2, False)
        fresh.close()
