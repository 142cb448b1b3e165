"""PostgreSQL: calls that share a transaction, and the mirrors that several replicas hold of one database."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.protocol import MAX_BATCH, Draft, Edit, MemoryStore
from memory_serve.store import SqliteMemory
from mia.errors import MemoryStoreError
from mia.types import Question
from tests import postgres
from tests.memories import draft

pytestmark = pytest.mark.skipif(bool(postgres.MISSING), reason=postgres.REASON)
Open = Callable[..., SqliteMemory]
ASKED = Question(id="asked", text="Which river flows through Vienna?")


@pytest.fixture
async def replica() -> AsyncIterator[Open]:
    """Opens stores over one schema, closed at the end; their `schema` is an attribute of the function."""
    from memory_serve.postgres import PostgresMemory

    base = postgres.config()
    stores: list[SqliteMemory] = []

    def make(**settings: Any) -> SqliteMemory:
        config = MemoryConfig.model_validate({"url": base.url, "postgres": base.postgres.model_dump(), **settings})
        stores.append(PostgresMemory(config, HashEncoder()))
        return stores[-1]

    make.schema = base.postgres.schema_name  # type: ignore[attr-defined]
    yield make
    for store in stores:
        await store.aclose()


# ---------------------------------------------------------------------------------------------- one transaction


class Script:
    """Rounds of additions and credits; memories are named by their place among those that were added."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._places = 0

    def round(self) -> list[tuple[Any, ...]]:
        """Some calls. The credits come first: additions are encoded before they wait."""
        chance, calls = self._chance, list[tuple[Any, ...]]()
        known = self._places
        for _ in range(chance.randint(1, 12)):
            if chance.random() < 0.3 and known:
                places = [chance.randrange(known) for _ in range(3)]
                calls.append(("credit", places, chance.random() < 0.6, chance.choice(("", f"k{chance.randint(0, 5)}"))))
                continue
            sent = [self._draft() for _ in range(chance.randint(1, 3))]
            self._places += len(sent)
            calls.append(("add", sent))
        return sorted(calls, key=lambda given: given[0] == "add")

    def _draft(self) -> Draft:
        chance = self._chance
        town = chance.choice(("Vienna", "Graz", "Linz", "Wels"))
        return draft(
            town,
            question=f"Which {chance.choice(('river', 'river', 'rivers'))} flows through {town}?",
            workflow=" ".join(["1. Search"] * chance.randint(1, 3)),
            outcome=chance.choice(("correct", "incorrect", "unjudged")),
            trajectory_id=chance.choice(("", f"t{chance.randint(0, 15)}")),
        )


async def call(store: MemoryStore, given: tuple[Any, ...], ids: list[str]) -> Any:
    kind, what, *rest = given
    if kind == "add":
        return await store.add(what)
    return await store.credit([ids[place] for place in what], *rest)


async def state(store: MemoryStore, ids: list[str]) -> list[str]:
    """All that is remembered, without ids and times, and the log without them and its numbers, which may have gaps."""
    text = "\n".join([
        *sorted(memory.model_dump_json(exclude={"created"}) for memory in await store.list(MAX_BATCH)),
        *(change.model_dump_json(include={"action", "namespace"}) for change in await store.history(MAX_BATCH)),
    ])  # fmt: skip
    for place, memory_id in enumerate(ids):
        text = text.replace(memory_id, f"<{ids.index(memory_id)}>" if memory_id in ids[:place] else f"<{place}>")
    return sorted(re.sub(r'"merged_from":\[[^]]*\]', "", text).splitlines())


@pytest.mark.parametrize(
    ("seed", "keep"),
    [
        (1, {}),
        (2, {"capacity": 3, "policy": "value_age"}),
        (3, {"capacity": 4, "policy": "value_age", "merge": 0.75}),
        *(
            pytest.param(n, {"capacity": n % 4, "policy": "value_age", "merge": 0.8 * (n % 2)}, marks=pytest.mark.long)
            for n in range(10, 40)
        ),
    ],
)
async def test_calls_at_once_are_as_calls_in_a_row(
    replica: Open, tmp_path: Path, seed: int, keep: dict[str, Any]
) -> None:
    database = replica(keep=keep)
    file = SqliteMemory(MemoryConfig.model_validate({"path": tmp_path / "m.db", "keep": keep}), HashEncoder())
    script, here, there = Script(seed), list[str](), list[str]()
    for _ in range(15):
        calls = script.round()
        together = await asyncio.gather(*(call(database, given, there) for given in calls))
        in_a_row = [await call(file, given, here) for given in calls]
        for given, one, other in zip(calls, in_a_row, together, strict=True):
            if given[0] == "add":
                here += [a.id for a in one]
                there += [a.id for a in other]
                assert [a.action for a in other] == [a.action for a in one]
            else:
                assert [c.known for c in other] == [c.known for c in one]
        assert [there.index(i) for i in there] == [here.index(i) for i in here]
    assert await state(database, there) == await state(file, here)
    await file.aclose()


async def test_a_call_that_the_database_refuses_fails_alone(replica: Open) -> None:
    import psycopg

    store = replica()
    await store.add([draft("Vienna")])
    with psycopg.connect(postgres.server().get_uri(), autocommit=True) as admin:
        table = f"{replica.schema}.memories"  # type: ignore[attr-defined]
        admin.execute(f"ALTER TABLE {table} ADD CHECK (question NOT LIKE '%Atlantis%')")
    towns = ("Graz", "Linz", "Atlantis", "Wels", "Steyr")
    results = await asyncio.gather(*(store.add([draft(town)]) for town in towns), return_exceptions=True)
    assert [isinstance(result, MemoryStoreError) for result in results] == [town == "Atlantis" for town in towns]
    assert {m.source_id for m in await store.list()} == {f"q-{town}" for town in ("Vienna", *towns)} - {"q-Atlantis"}
    assert len((await store.recall(ASKED, k=9)).ids) == 5
    assert len(await store.history()) == 5


async def test_a_caller_who_gives_up_stops_nobody(replica: Open) -> None:
    store = replica()
    tasks = [asyncio.create_task(store.add([draft(f"town{n}")])) for n in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
    assert [result[0].action for result in results[1::2] if isinstance(result, list)] == ["stored"] * 10
    assert len(await store.list()) >= 10


# ---------------------------------------------------------------------------------------------- mirrors


async def test_every_kind_of_change_reaches_the_other_replicas(replica: Open) -> None:
    one, two = replica(), replica()

    async def same() -> None:
        found = [await store.recall(ASKED, k=9) for store in (one, two)]
        assert found[0] == found[1]

    ids = [a.id for (a,) in [await one.add([draft(town)]) for town in ("Vienna", "Graz", "Linz")]]
    await same()
    await two.credit(ids[:2], success=True)
    await same()
    await one.update(ids[1], Edit(question="Which river flows through Vienna by night?"), version=1)
    await same()
    await two.delete([ids[0]])
    await same()
    await one.undo()
    await same()
    kept = await one.export()
    await two.clear()
    await same()
    await one.load(kept)
    await same()
    assert len((await two.recall(ASKED, k=9)).ids) == 3


async def test_a_replica_that_missed_part_of_the_log_reads_everything_anew(replica: Open) -> None:
    import psycopg

    one, two = replica(), replica()
    (gone, kept) = await one.add([draft("Vienna"), draft("Graz")])
    assert set((await two.recall(ASKED)).ids) == {gone.id, kept.id}
    await one.delete([gone.id])
    (late,) = await one.add([draft("Linz")])
    with psycopg.connect(postgres.server().get_uri(), autocommit=True) as admin:
        admin.execute(f"DELETE FROM {replica.schema}.changes WHERE action = 'delete'")  # type: ignore[attr-defined]
        admin.execute(f"DELETE FROM {replica.schema}.changes WHERE number = 1")  # type: ignore[attr-defined]
    assert set((await two.recall(ASKED)).ids) == {kept.id, late.id}


async def test_recall_among_writes_never_shows_what_is_not_there(replica: Open) -> None:
    """What is recalled is as one commit has left it: outcome and list agree, whoever writes meanwhile."""
    one, two = replica(), replica()
    ids = [a.id for (a,) in [await one.add([draft(f"town{n}")]) for n in range(6)]]
    done = asyncio.Event()

    async def write(store: MemoryStore, mine: list[str]) -> None:
        for turn in range(25):
            for memory_id in mine:
                found = await store.get(memory_id)
                assert found is not None
                outcome = ("incorrect", "correct")[turn % 2]
                await store.update(memory_id, Edit.model_validate({"outcome": outcome}), found.version)
        done.set()

    async def read(store: MemoryStore) -> None:
        while not done.is_set():
            found = await store.recall(ASKED, k=9)
            assert sorted(found.ids) == sorted(ids)
            assert all(s.memory.outcome == "correct" for s in found.successes)
            assert all(s.memory.outcome == "incorrect" for s in found.failures)

    await asyncio.gather(write(one, ids[:3]), write(two, ids[3:]), read(one), read(two))


async def test_a_schema_of_the_first_version_is_brought_up_to_date(replica: Open) -> None:
    import psycopg

    from memory_serve.postgres_schema import MIGRATIONS

    schema, vector = replica.schema, HashEncoder().encode([ASKED.text])[0].tolist()  # type: ignore[attr-defined]
    with psycopg.connect(postgres.server().get_uri(), autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA {schema}")
        admin.execute("CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public")
        admin.execute(f"SET search_path = {schema}, public")
        for statement in MIGRATIONS[0]:
            admin.execute(statement)
        admin.execute("INSERT INTO mia_schema VALUES (1)")
        admin.execute("INSERT INTO facts VALUES ('encoder', %s)", (HashEncoder().name,))
        admin.execute(
            "INSERT INTO memories (id, namespace, modality, category, outcome, uses, successes, created, source_id, "
            "trajectory_id, revision, trust, absorbed, encoder, cell, vector, question, caption, workflow, plan, "
            "provenance, merged_from, original) VALUES ('old', 'default', 'text-only', 'location', 'correct', 4, 3, "
            "'2026-01-02T03:04:05.000006+00:00', 'q', 't', 1, 'user', '', %s, 'cell', %s::real[]::vector, %s, '', "
            "'1. Go', '', '{}', '[]', '{}')",
            (HashEncoder().name, vector, ASKED.text),
        )
    store = replica()
    (found,) = (await store.recall(ASKED)).successes
    assert (found.memory.id, found.memory.uses) == ("old", 4)
    assert found.similarity == pytest.approx(1.0, abs=1e-6)
    (twin,) = await store.add([draft("Vienna", workflow="1. Search and search again")])
    assert (twin.id, twin.action) == ("old", "kept")
    with psycopg.connect(postgres.server().get_uri()) as admin:
        assert admin.execute(f"SELECT version FROM {schema}.mia_schema").fetchall() == [(len(MIGRATIONS),)]
