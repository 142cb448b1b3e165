"""Staying small, undoing, trust, namespaces, the floor of recall: the rules of the full Manager, in a real store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from memory_serve.category import by_rules
from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.protocol import Action, Added, Draft, Edit, Stored
from memory_serve.rows import Encoded
from memory_serve.store import SqliteMemory
from memory_serve.upkeep import MemoryCore
from memory_serve.writing import Call
from mia.chat.scripted import ScriptedChat
from mia.errors import ConfigError, DataError, MemoryStoreError, ModelError
from mia.types import Question

Open = Callable[..., SqliteMemory]
ASKED = Question(id="new", text="Which river flows through the old town of Vienna?")


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens stores over one file, closed at the end."""
    stores: list[SqliteMemory] = []

    def make(manager: ScriptedChat | None = None, **settings: object) -> SqliteMemory:
        config = MemoryConfig.model_validate({"path": tmp_path / "m.db", **settings})
        stores.append(SqliteMemory(config, HashEncoder(), manager=manager))
        return stores[-1]

    yield make
    for store in stores:
        await store.aclose()


def draft(town: str, **fields: Any) -> Draft:
    given = {"question": f"Which river flows through the old town of {town}?", "workflow": f"1. Search: {town}",
             "outcome": "correct", "source_id": f"q-{town}", "trajectory_id": f"t-{town}-{fields}"}  # fmt: skip
    return Draft.model_validate({**given, **fields})


async def towns(store: SqliteMemory) -> list[str]:
    return sorted(m.source_id.removeprefix("q-") for m in await store.list())


# ---------------------------------------------------------------------------------------------- staying small


async def used(store: SqliteMemory, counts: dict[str, tuple[int, int]]) -> None:
    """Memories in this order, with so many uses and successes."""
    for town, (uses, successes) in counts.items():
        (added,) = await store.add([draft(town)])
        for n in range(uses):
            await store.credit([added.id], success=n < successes)


# Value (s+1)/(u+2): Graz 3/4, Linz 1/4, Wels 1/2. Graz is the oldest, Wels the newest.
COUNTS = {"Graz": (2, 2), "Linz": (2, 0), "Wels": (0, 0)}


@pytest.mark.parametrize(
    ("policy", "half_life", "goes"), [("value", 30, "Linz"), ("age", 30, "Graz"), ("value_age", 30, "Linz")]
)
async def test_what_goes_when_a_bucket_is_full(opened: Open, policy: str, half_life: float, goes: str) -> None:
    store = opened(keep={"capacity": 3, "policy": policy, "half_life_days": half_life})
    await used(store, COUNTS)
    (added,) = await store.add([draft("Enns")])
    assert added.action == "stored"
    assert await towns(store) == sorted({*COUNTS, "Enns"} - {goes})
    assert len((await store.recall(ASKED, k=9)).successes) == 3
    await store.undo()
    assert await towns(store) == sorted(COUNTS)


async def test_age_weighs_by_the_half_life(opened: Open) -> None:
    store = opened(keep={"capacity": 2, "policy": "value_age", "half_life_days": 10})
    # Of equal value; a memory of twice the value goes all the same if it is more than a half life older.
    old, new = [
        Stored(id=name, question=draft(name).question, workflow="1. x", outcome="correct", category="location",
               source_id=f"q-{name}", created=f"2026-01-{day}T00:00:00Z", uses=uses, successes=uses)
        for name, day, uses in (("Old", "01", 8), ("New", "12", 0))
    ]  # fmt: skip
    # Values 9/10 and 1/2, 11 days apart: 0.9 · 2^-1.1 = 0.42 < 0.5
    await store.load([old, new])
    await store.add([draft("Enns")])
    assert await towns(store) == ["Enns", "New"]


async def test_the_new_ones_go_last_but_capacity_holds(opened: Open) -> None:
    store = opened(keep={"capacity": 3, "policy": "value"})
    await used(store, dict.fromkeys(("Graz", "Linz", "Wels"), (1, 1)))
    await store.add([draft(f"New{n}") for n in range(5)])
    found = await towns(store)
    assert len(found) == 3
    assert all(town.startswith("New") for town in found)


async def test_a_namespace_has_a_capacity_over_its_buckets(opened: Open) -> None:
    store = opened(keep={"total": 4, "policy": "age"})
    for n in range(3):
        await store.add([draft(f"Old{n}")])
        await store.add([draft(f"New{n}", question=f"Who was born in New{n}?")])
    assert (await store.stats()).by_bucket == {"text-only/human": 2, "text-only/location": 2}
    assert await towns(store) == ["New1", "New2", "Old1", "Old2"]
    other = store.scoped("other")
    await other.add([draft("Graz")])
    assert [(await s.stats()).memories for s in (store, other)] == [4, 1]
    await store.aclose()
    store = opened(keep={"capacity": 1, "total": 1, "policy": "age"})
    assert (await store.compact()).model_dump() == {"before": 4, "after": 1, "absorbed": 0, "merged": 0, "evicted": 3}
    assert await towns(store) == ["New2"]


async def test_failures_have_their_share(opened: Open) -> None:
    store = opened(keep={"capacity": 6, "policy": "age", "failures": 0.4})
    for n in range(8):
        await store.add([draft(f"Bad{n}", outcome="incorrect"), draft(f"Good{n}")])
    # 0.4 · 6 = 2.4, so three failures at most.
    assert await towns(store) == ["Bad5", "Bad6", "Bad7", "Good5", "Good6", "Good7"]
    for n in range(8, 12):
        await store.add([draft(f"Good{n}")])
    # Within their share they go by age like all others.
    assert await towns(store) == ["Bad7", "Good10", "Good11", "Good7", "Good8", "Good9"]


ALIKE = {"question": "Which river flows through the old town of Vienna today?"}  # 0.95 or so


async def test_near_duplicates_become_one(opened: Open) -> None:
    store = opened(keep={"merge": 0.9})
    (first,) = await store.add([draft("Vienna", workflow="1. a\n2. long way")])
    await store.credit([first.id], success=True)
    (second,) = await store.add([draft("Vienna", workflow="1. short", **ALIKE)])
    (merged,) = await store.list()
    # The shorter success stays, counters are summed, and where it came from is known.
    assert (merged.id, merged.workflow, merged.uses, merged.successes) == (second.id, "1. short", 1, 1)
    assert merged.merged_from == (first.id,)
    (third,) = await store.add([draft("Vienna", trajectory_id="t3", workflow="1. a very long way", **ALIKE)])
    assert (third.action, third.id) == ("kept", second.id)
    # A failure is no success, however alike they are; and the runs of what was merged stay known.
    (failed,) = await store.add([draft("Vienna", outcome="incorrect", question=ALIKE["question"])])
    assert failed.action == "stored"
    assert [a.action for a in await store.add([draft("Vienna", workflow="1. a\n2. long way")])] == ["known"]
    changes = await store.history()
    await store.undo(changes[0].number)
    await store.undo()
    await store.undo(next(c.number for c in changes if len(c.memories) == 2 and c.undone is None))
    (alone,) = await store.list()
    assert (alone.id, alone.workflow, alone.merged_from) == (first.id, "1. a\n2. long way", ())


async def test_compacting_reports_what_it_did_and_can_be_undone(opened: Open) -> None:
    store = opened()
    added = await store.add([draft("Vienna"), draft("Vienna", **ALIKE), draft("Graz"), draft("Linz"), draft("Wels")])
    for _ in range(3):
        await store.credit([added[2].id, added[3].id], success=True)
    assert await store.absorb([added[2].id, added[4].id, "unknown"], "step-10") == 2
    assert (await store.stats()).absorbed == 2
    before = await store.export()
    await store.aclose()
    store = opened(keep={"merge": 0.9, "capacity": 2, "policy": "value", "absorbed_uses": 3})
    done = await store.compact()
    # Graz was absorbed and shown thrice, Wels only absorbed; the two of Vienna are one; of three the least useful goes.
    assert done.model_dump() == {"before": 5, "after": 2, "absorbed": 1, "merged": 1, "evicted": 1}
    assert "Linz" in await towns(store)
    assert (await store.history(1))[0].action == "compact"
    await store.undo()
    assert _unversioned(await store.export()) == _unversioned(before)
    assert (await store.recall(ASKED, k=9)).successes[0].similarity == pytest.approx(1.0, abs=1e-6)


def _unversioned(memories: list[Stored]) -> list[Stored]:
    return [m.model_copy(update={"version": 1}) for m in memories]


async def test_fifty_near_identical_questions_leave_one_memory(opened: Open) -> None:
    store = opened(keep={"merge": 0.9})
    (first,) = await store.add([draft("Vienna")])
    for n in range(50):
        recalled = await store.recall(ASKED.model_copy(update={"id": f"ask{n}"}))
        await store.credit(recalled.ids, success=True, key=f"run{n}")
        text = ASKED.text if n % 2 else ALIKE["question"]
        await store.add([draft("Vienna", question=text, source_id=f"ask{n}", trajectory_id=f"run{n}")])
    (only,) = await store.list()
    assert (only.id, only.uses) == (first.id, 50)


# ---------------------------------------------------------------------------------------------- undoing


async def test_a_cleared_namespace_comes_back(opened: Open) -> None:
    store = opened()
    one, two = store.scoped("u1"), store.scoped("u2")
    await one.add([draft(f"town{n}") for n in range(148)])
    await two.add([draft(f"town{n}") for n in range(5)])
    before = await one.recall(ASKED, k=100)
    for odd in ("", "*", " u1", "u1 ", "u1' OR '1'='1", "../u1", "ü1", "a" * 65, "-u1", "u1\n"):
        with pytest.raises(DataError, match="namespace") as caught:
            store.scoped(odd)
        assert caught.value.code == "bad_namespace"
    assert await one.clear() == 148
    assert (await one.recall(ASKED)).ids == ()
    assert [(await s.stats()).memories for s in (one, two)] == [0, 5]
    with pytest.raises(DataError, match=f"no change {(await one.history())[0].number}"):
        await two.undo((await one.history())[0].number)
    undone = await one.undo()
    assert (undone.action, len(undone.memories), undone.undone) == ("clear", 148, undone.number + 1)
    assert await one.recall(ASKED, k=100) == before
    assert [a.action for a in await one.add([draft("town7")])] == ["known"]
    assert await store.clear(everything=True) == 153
    await two.undo()
    assert [(await s.stats()).memories for s in (one, two)] == [148, 5]


async def test_a_named_change_unless_something_came_after(opened: Open) -> None:
    store = opened().scoped(actor="me")
    added = await store.add([draft("Vienna"), draft("Graz")])
    await store.credit([added[0].id], success=True)
    await store.delete([added[1].id])
    deleted, credited, stored = await store.history()
    assert [c.action for c in (stored, credited, deleted)] == ["add", "credit", "delete"]
    assert {c.actor for c in (stored, credited, deleted)} == {"me"}
    with pytest.raises(DataError, match="later changes") as caught:
        await store.undo(stored.number)
    assert (caught.value.code, caught.value.status) == ("conflict", 409)
    assert await towns(store) == ["Vienna"]  # nothing was half undone
    await store.undo(credited.number)
    await store.undo(deleted.number)
    with pytest.raises(DataError, match="undone already"):
        await store.undo(deleted.number)
    await store.undo(stored.number)
    assert await towns(store) == []
    again = (await store.history(1))[0]
    assert (again.action, again.undone) == ("undo", None)
    await store.undo(again.number)  # an undo can be undone
    assert await towns(store) == ["Graz", "Vienna"]
    with pytest.raises(DataError, match="no change 99"):
        await store.undo(99)


async def test_a_replaced_memory_gets_its_vectors_back(opened: Open) -> None:
    store = opened()
    (added,) = await store.add([draft("Vienna", outcome="unjudged", trajectory_id="t")])
    edited = await store.update(added.id, Edit(question="Who was born in Graz?", workflow="1. New"), version=1)
    assert (edited.version, edited.category, edited.workflow) == (2, "human", "1. New")
    assert (await store.recall(ASKED)).ids == ()
    for version in (1, 3):
        with pytest.raises(DataError, match="version 2") as caught:
            await store.update(added.id, Edit(workflow="1. Lost"), version)
        assert caught.value.status == 409
    await store.undo()
    (found,) = (await store.recall(ASKED)).unjudged
    assert found.similarity == pytest.approx(1.0, abs=1e-6)
    assert found.memory.workflow == "1. Search: Vienna"
    with pytest.raises(DataError, match="no memory"):
        await store.scoped("other").update(added.id, Edit(workflow="x"), version=3)
    with pytest.raises(DataError, match="new workflow is blank"):
        await store.update(added.id, Edit(workflow=" "), version=3)


async def test_one_of_two_edits_at_once_is_refused(opened: Open) -> None:
    store = opened()
    (added,) = await store.add([draft("Vienna")])
    edits = [store.update(added.id, Edit(workflow=f"1. {n}"), version=1) for n in range(8)]
    results = await asyncio.gather(*edits, return_exceptions=True)
    assert sum(isinstance(result, Stored) for result in results) == 1
    assert sum(isinstance(result, DataError) and result.code == "conflict" for result in results) == 7


def test_a_call_that_fails_takes_nothing_with_it(tmp_path: Path) -> None:
    """Calls that wait together share a transaction, but not each other's failures."""
    core = MemoryCore(MemoryConfig(path=tmp_path / "m.db"), "hash-64-0", 64)

    def add(town: str) -> Call:
        (vector,) = HashEncoder().encode([draft(town).question])
        encoded = Encoded(("text-only", "location"), vector, None)
        return Call(core.add, ([draft(town)], [encoded]), "default", "", "add")

    def call(action: Action, work: Callable[..., Any], *args: object) -> Call:
        return Call(work, args, "default", "", action)

    ((first,),) = core.run([add("Vienna")])
    results = core.run([
        call("credit", core.credit, [first.id], True, ""),
        add("Graz"),
        call("undo", core.undo, 1),  # refused: the credit came after
        call("update", core.update, first.id, Edit(workflow="1. New"), None, 7),  # refused: another version
        call("credit", core.credit, [first.id], False, ""),
        call("undo", core.undo, 99),  # refused: there is none
        call("clear", core.clear, False),
        call("undo", core.undo, None),
        add("Linz"),
    ])  # fmt: skip
    assert [n for n, result in enumerate(results) if isinstance(result, DataError)] == [2, 3, 5]
    history = core.history("default", 99)
    assert [c.action for c in history] == ["add", "undo", "clear", "credit", "add", "credit", "add"]
    assert [len(c.memories) for c in history] == [1, 2, 2, 1, 1, 1, 1]
    memories = core.page("default", 9, 0)
    assert [m.source_id for m in memories] == ["q-Linz", "q-Graz", "q-Vienna"]
    assert (memories[2].uses, memories[2].successes, memories[2].workflow) == (2, 1, "1. Search: Vienna")
    (vector,) = HashEncoder().encode([ASKED.text])
    asked = Encoded(("text-only", "location"), vector, None)
    before = core.recall("default", asked, "", 9, 0, False)
    assert len(before.ids) == 3
    core.close()
    again = MemoryCore(MemoryConfig(path=tmp_path / "m.db"), "hash-64-0", 64)
    assert again.recall("default", asked, "", 9, 0, False) == before
    again.close()


def test_an_import_that_fails_takes_its_first_memories_back(tmp_path: Path) -> None:
    """What waits to be written when a call fails: only what is of that call goes."""
    core = MemoryCore(MemoryConfig(path=tmp_path / "m.db"), "hash-64-0", 64)

    def encoded(town: str) -> Encoded:
        (vector,) = HashEncoder().encode([draft(town).question])
        return Encoded(("text-only", "location"), vector, None)

    def add(town: str, run: str, namespace: str = "default") -> Call:
        drafts = [draft(town).model_copy(update={"trajectory_id": run})]
        return Call(core.add, (drafts, [encoded(town)]), namespace, "", "add")

    def load(*memories: Stored) -> Call:
        return Call(
            core.load_memories, (memories, [encoded(m.source_id[2:]) for m in memories]), "default", "", "import"
        )

    ((foreign,),) = core.run([add("Vienna", "r0", "other")])
    theirs = core.get("other", foreign.id)
    assert theirs is not None
    mine = theirs.model_copy(update={"id": "mine", "source_id": "q-Rome", "question": draft("Rome").question})
    (graz,), refused, (linz,), (again,) = core.run(
        [add("Graz", "r1"), load(mine, theirs), add("Linz", "r2"), add("Graz", "r1")]
    )
    assert (graz.action, linz.action, again) == ("stored", "stored", Added(id=graz.id, action="known"))
    assert isinstance(refused, DataError)
    for _ in range(2):
        assert {m.id for m in core.page("default", 9, 0)} == {graz.id, linz.id}
        asked = core.recall("default", encoded("Rome"), "", 9, 0, False)
        assert set(asked.ids) == {graz.id, linz.id}
        assert [c.action for c in core.history("default", 9)] == ["add", "add"]
        core.close()
        core = MemoryCore(MemoryConfig(path=tmp_path / "m.db"), "hash-64-0", 64)
        core.load()
    core.close()


async def test_the_log_is_kept_to_its_length(opened: Open, tmp_path: Path) -> None:
    store = opened(history=10, synchronous="normal")
    (added,) = await store.add([draft("Vienna")])
    for _ in range(1010):
        await store.credit([added.id], success=True)
    await store.aclose()
    connection = sqlite3.connect(tmp_path / "m.db")
    (changes,) = connection.execute("SELECT count(*) FROM changes").fetchone()
    (images,) = connection.execute("SELECT count(*) FROM images").fetchone()
    connection.close()
    assert changes == images
    assert changes < 30


# ---------------------------------------------------------------------------------------------- what is recalled


async def test_trust(opened: Open) -> None:
    store = opened(recall_trust=["reference", "model"])
    drafts = [draft(f"town{n}", trust=t) for n, t in enumerate(("reference", "panel", "model", "user", "unjudged"))]
    await store.add(drafts)
    found = await store.recall(ASKED, k=9)
    assert {s.memory.source_id for s in found.successes} == {"q-town0", "q-town2"}
    assert (await store.stats()).by_trust["panel"] == 1
    # A shorter way of someone without standing does not push the judged one out.
    (poison,) = await store.add([draft("town0", workflow="1. lie", trust="user")])
    assert poison.action == "kept"
    (better,) = await store.add([draft("town3", workflow="1. go", trust="reference")])
    assert better.action == "replaced"


async def test_floor_skip_and_own(opened: Open) -> None:
    store = opened()
    await store.add([draft("Vienna", source_id="new"), draft("Graz"), draft("Linz")])
    ranked = [s.memory.source_id for s in (await store.recall(ASKED, k=9, own=True)).successes]
    assert ranked[0] == "new"
    assert [s.memory.source_id for s in (await store.recall(ASKED, k=1, skip=1, own=True)).successes] == ranked[1:2]
    assert (await store.recall(ASKED, k=2, skip=3, own=True)).ids == ()
    await store.aclose()
    store = opened(floor=0.99)
    assert [s.memory.source_id for s in (await store.recall(ASKED, k=9, own=True)).successes] == ["new"]
    assert (await store.recall(ASKED, k=9)).ids == ()
    await store.aclose()
    store = opened(recall_own=True)
    assert [s.memory.source_id for s in (await store.recall(ASKED, k=1)).successes] == ["new"]
    for skip in (-1, 1001):
        with pytest.raises(DataError, match=f"skip is {skip}"):
            await store.recall(ASKED, skip=skip)


# ---------------------------------------------------------------------------------------------- categories


async def test_the_manager_names_the_category_once(opened: Open) -> None:
    chat = ScriptedChat(['<think>{"category": "human"}</think>\n{"category": "event"}'])
    store = opened(chat, classify="model")
    (added,) = await store.add([draft("Vienna")])
    assert len((await store.recall(ASKED)).successes) == 1  # asked no second time: the script has one reply
    memory = await store.get(added.id)
    assert memory is not None
    assert (memory.category, memory.provenance) == ("event", {})


@pytest.mark.parametrize(
    "reply", ["location", '{"category": "place"}', '{"category": "human", "sure": true}', "", ModelError("down")]
)
async def test_where_the_manager_is_not_understood_the_rules_stand_in_and_it_shows(
    opened: Open, reply: str | ModelError
) -> None:
    store = opened(ScriptedChat([reply]), classify="model")
    (added,) = await store.add([draft("Vienna")])
    memory = await store.get(added.id)
    assert memory is not None
    assert memory.category == by_rules(ASKED) == "location"
    code = "model_failed" if isinstance(reply, ModelError) else "no_category"
    assert memory.provenance == {"classified": f"rules ({code})"}


def test_a_manager_that_is_wanted_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"memory\.classify"):
        SqliteMemory(MemoryConfig(path=tmp_path / "m.db", classify="model"), HashEncoder())


# ---------------------------------------------------------------------------------------------- backups


async def test_a_backup_of_a_memory_in_use(opened: Open, tmp_path: Path) -> None:
    store = opened()
    await store.add([draft(f"town{n}") for n in range(50)])
    copy = tmp_path / "backups" / "copy.db"
    writing = [asyncio.create_task(store.add([draft(f"late{n}")])) for n in range(50)]
    await store.backup(copy)
    await asyncio.gather(*writing)
    with pytest.raises(DataError, match="there already"):
        await store.backup(copy)
    restored = SqliteMemory(MemoryConfig(path=copy), HashEncoder())
    kept = await restored.list(limit=1000)
    await restored.aclose()
    assert {m.id for m in kept} <= {m.id for m in await store.list(limit=1000)}
    assert len(kept) >= 50
    with pytest.raises(MemoryStoreError):
        await store.backup(tmp_path / "m.db" / "no" / "folder.db")
