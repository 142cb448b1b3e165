"""Memories as files: exact round trips, the original's file and its score, training data, old files of ours."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory_serve.config import MemoryConfig
from memory_serve.database import APPLICATION_ID, MIGRATIONS
from memory_serve.hashing import HashEncoder
from memory_serve.portable import planner_rows, read_lines, read_original, walk, write_lines, write_original
from memory_serve.protocol import Draft, Edit, Stored
from memory_serve.store import SqliteMemory
from mia.errors import DataError
from mia.types import Question

Open = Callable[..., SqliteMemory]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens stores, closed at the end."""
    stores: list[SqliteMemory] = []

    def make(name: str = "m.db", encoder: HashEncoder | None = None, **settings: object) -> SqliteMemory:
        config = MemoryConfig.model_validate({"path": tmp_path / name, **settings})
        stores.append(SqliteMemory(config, encoder or HashEncoder()))
        return stores[-1]

    yield make
    for store in stores:
        await store.aclose()


def original_entry(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "data_id": f"d{number}",
        "question": f"Which river flows through town{number}?",
        "image_caption": "",
        "workflow_summary": f"1. find town{number}",
        "plan": "",
        "judgement": "correct",
        "usage_count": 1,
        "success_count": 1,
        "win_rate": 1.0,
        **fields,
    }


ORIGINAL = {
    "text-only": {
        "location": [
            original_entry(1, usage_count=3, success_count=1, win_rate=0.3333),
            original_entry(2, judgement="incorrect"),
            original_entry(3, plan="go", usage_count=7, success_count=7),
        ],
        "human": [original_entry(4, data_id=17, win_rate=0.9, usage_count=2, success_count=1)],
    },
    "text-image": {
        "others": [
            original_entry(5, image_caption="a bridge", judgement="not_attempted", evaluator_1_feedback="good"),
            {k: original_entry(6)[k] for k in ("question", "workflow_summary", "judgement")},
        ]
    },
}


async def contents(store: SqliteMemory) -> list[Stored]:
    return [memory async for memory in walk(store)]


async def test_the_originals_file_comes_back_as_it_was(opened: Open) -> None:
    store = opened()
    memories = read_original(json.dumps(ORIGINAL), "default")
    assert [a.action for a in await store.load(memories)] == ["stored"] * 6
    text, left = write_original(await contents(store))
    assert json.loads(text) == ORIGINAL
    assert left == 0
    (first,) = [m for m in await contents(store) if m.source_id == "d1"]
    assert (first.uses, first.successes, first.workflow, first.trust) == (3, 1, "1. find town1", "model")
    # Read a second time, nothing is stored twice.
    again = await store.load(read_original(json.dumps(ORIGINAL), "default"))
    assert {a.action for a in again} <= {"known", "kept"}
    assert (await store.stats()).memories == 6


async def test_what_changed_since_is_in_the_originals_file(opened: Open) -> None:
    store = opened()
    added = await store.load(read_original(json.dumps(ORIGINAL), "default"))
    await store.credit([added[0].id, added[3].id], success=True)
    await store.update(added[1].id, Edit(workflow="1. another way"), version=1)
    written = json.loads(write_original(await contents(store))[0])
    assert written["text-only"]["location"][0] == original_entry(1, usage_count=4, success_count=2, win_rate=0.5)
    wanted = original_entry(2, judgement="incorrect", workflow_summary="1. another way")
    assert written["text-only"]["location"][1] == wanted
    # The file's own odd win rate gives way to the counted one, as it does in the original.
    assert written["text-only"]["human"][0]["win_rate"] == 0.6667


async def test_the_originals_score_by_hand(opened: Open) -> None:
    """0.7 · (s - min)/(max - min) + 0.3 · win rate, from the cosines of the same vectors."""
    store = opened(score="released")
    await store.load(read_original(json.dumps(ORIGINAL), "default"))
    asked = Question(id="new", text="Which river flows through town1?")
    texts = [asked.text, *(f"Which river flows through town{n}?" for n in (1, 2, 3))]
    vectors = HashEncoder().encode(texts).astype(np.float64)
    cosines = [float(vectors[0] @ v) for v in vectors[1:]]
    low, high = min(cosines), max(cosines)
    rates = (0.3333, 1.0, 1.0)
    wanted = [0.7 * (c - low) / (high - low + 1e-8) + 0.3 * rate for c, rate in zip(cosines, rates, strict=True)]
    found = await store.recall(asked, k=9)
    scores = {s.memory.source_id: s.score for s in (*found.successes, *found.failures)}
    assert scores == {f"d{n}": pytest.approx(w, abs=1e-6) for n, w in zip((1, 2, 3), wanted, strict=True)}
    assert [s.memory.source_id for s in found.successes] == [
        name for _, name in sorted([(wanted[0], "d1"), (wanted[2], "d3")], reverse=True)
    ]
    assert set(found.successes[0].terms) == {"similarity", "win_rate"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[]", "modality"),
        ("{", "modality"),
        ('{"text-only": []}', "modality"),
        ("null", "modality"),
        ("[" * 100_000, "modality"),
        ('{"text-only": {"human": [5]}}', "human, entry 1: it is no object"),
        (json.dumps({"text-only": {"human": [original_entry(1), {"question": "?"}]}}), "human, entry 2"),
        (json.dumps({"text-only": {"human": [original_entry(1, success_count=2)]}}), "human, entry 1"),
        (json.dumps({"video": {"human": [original_entry(1)]}}), "video/human, entry 1"),
    ],
)
def test_a_file_that_is_not_the_originals_is_refused(text: str, named: str) -> None:
    with pytest.raises(DataError, match=named):
        read_original(text, "default")


def draft(number: int, **fields: Any) -> Draft:
    given = {"question": f"Which river flows through town{number}?", "workflow": f"1. {number}", "outcome": "correct",
             "source_id": f"q{number}", "trajectory_id": f"t{number}-{fields}", "plan": f"plan {number}"}  # fmt: skip
    return Draft.model_validate({**given, **fields})


async def test_our_lines_come_back_exactly_with_another_encoder_too(opened: Open) -> None:
    store = opened()
    added = await store.add(
        [draft(1), draft(2, caption="a\u2028bridge", modality="text-image"), draft(3, trust="user")]
    )
    await store.credit([added[0].id], success=True)
    await store.update(added[1].id, Edit(workflow="1. new\n2. lines"), version=1)
    await store.absorb([added[2].id], "step-7")
    await store.load(read_original(json.dumps(ORIGINAL), "default"))
    before = await contents(store)
    text = "\n".join(write_lines(before))
    other = opened("other.db", HashEncoder(32))
    await other.load(read_lines(text))
    assert await contents(other) == before == read_lines("\n".join(write_lines(await contents(other))))
    assert [a.action for a in await other.load(before)] == ["known"] * 9
    # The run of an imported memory is known here too.
    assert [a.action for a in await other.add([draft(1)])] == ["known"]
    with pytest.raises(DataError, match="line 2"):
        read_lines(before[0].model_dump_json() + "\n{}")


async def test_pages_of_an_export_show_each_memory_once(opened: Open) -> None:
    store = opened()
    added = await store.add([draft(n) for n in range(25)])
    pages, after = [], ""
    while page := await store.export(after, 4):
        pages.append(page)
        after = page[-1].id
        if len(pages) <= 5:  # new ids come last, so a store that grows for ever would have pages for ever
            await store.add([draft(100 + len(pages))])
    ids = [m.id for page in pages for m in page]
    assert len(ids) == len(set(ids))
    assert {a.id for a in added} <= set(ids)


async def test_training_data_sets_what_worked_beside_what_failed(opened: Open) -> None:
    store = opened()
    await store.add([draft(1), draft(1, outcome="incorrect", plan="bad"), draft(2), draft(3, outcome="unjudged")])
    one, two = planner_rows(await contents(store))
    assert (one["question_id"], one["success"]["plan"], one["failure"]["plan"]) == ("q1", "plan 1", "bad")
    assert (two["question_id"], two["failure"], len(one["memory_ids"])) == ("q2", None, 2)


async def test_plan_pairs_the_most_similar_question_first(opened: Open) -> None:
    store = opened()
    drafts = [draft(n, outcome=o, plan=f"{o} {n}") for n in (1, 2, 3) for o in ("correct", "incorrect")]
    await store.add([*drafts, draft(4), draft(5, outcome="incorrect", plan="")])
    asked = Question(id="new", text="Which river flows through town3?")
    pairs = await store.pairs(asked, k=2)
    assert (pairs[0].question, pairs[0].correct, pairs[0].incorrect) == (asked.text, "correct 3", "incorrect 3")
    assert pairs[0].similarity == pytest.approx(1.0, abs=1e-6)
    assert len(pairs) == 2
    assert pairs[1].similarity < 0.9999
    own = await store.pairs(asked.model_copy(update={"id": "q3"}), k=9)
    assert sorted(pair.correct for pair in own) == ["correct 1", "correct 2"]
    assert await store.scoped("other").pairs(asked) == []


# ---------------------------------------------------------------------------------------------- files of version 1


def version_one(path: Path) -> None:
    """A file as the first schema made it, with two memories, a tombstone, runs and a spent credit."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in MIGRATIONS[0]:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 1")
    vectors = HashEncoder().encode(["Which river flows through Vienna?", "Which river flows through Graz?"])
    for number, (town, method) in enumerate((("Vienna", "em"), ("Graz", ""))):
        connection.execute(
            "INSERT INTO memories VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, ?, '', ?, 'a plan', ?)",
            (
                f"m{number}", number + 1, ("correct", "unjudged")[number], "text-only", "location", 3, 2,
                f"2026-01-0{number + 1}T10:00:00.000001+00:00", f"q{number}", f"t{number}", "hash-64-0",
                vectors[number].tobytes(), f"Which river flows through {town}?", f"1. {town}",
                json.dumps({"judged_by": method} if method else {}),
            ),
        )  # fmt: skip
        connection.execute("INSERT INTO trajectories VALUES (?, ?, ?)", (f"t{number}", f"m{number}", "correct"))
    connection.execute("INSERT INTO deleted VALUES ('gone', 3)")
    connection.execute("INSERT INTO credits VALUES ('run-1')")
    connection.execute("UPDATE counters SET value = 3")
    connection.close()


async def test_a_file_of_the_first_version_keeps_everything(opened: Open, tmp_path: Path) -> None:
    version_one(tmp_path / "m.db")
    encoder = HashEncoder()
    store = opened("m.db", encoder)
    newer, older = await store.list()
    assert encoder.encoded == 0
    assert older == Stored(
        id="m0", question="Which river flows through Vienna?", workflow="1. Vienna", plan="a plan", outcome="correct",
        uses=3, successes=2, category="location", created=datetime(2026, 1, 1, 10, 0, 0, 1, UTC), source_id="q0",
        trajectory_id="t0", provenance={"judged_by": "em"}, trust="reference",
    )  # fmt: skip
    assert (newer.id, newer.trust, newer.namespace, newer.version) == ("m1", "unjudged", "default", 1)
    asked = Question(id="new", text="Which river flows through Vienna?")
    assert (await store.recall(asked)).successes[0].similarity == pytest.approx(1.0, abs=1e-6)
    known = await store.add([draft(1, trajectory_id="t0"), draft(2, trajectory_id="new")])
    assert [a.action for a in known] == ["known", "stored"]
    await store.credit(["m0"], True, key="run-1")
    assert (await store.get("m0")) == older
    await store.aclose()
    connection = sqlite3.connect(tmp_path / "m.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


async def test_counters_that_no_store_can_hold_are_refused(opened: Open) -> None:
    store = opened()
    (added,) = await store.add([draft(1)])
    kept = await store.export("", 10)
    huge = kept[0].model_copy(update={"id": "other", "uses": 2**64, "successes": 0})
    with pytest.raises(DataError, match="memory 0 has a counter beyond"):
        await store.load([huge])
    assert [memory.id for memory in await store.export("", 10)] == [added.id]
