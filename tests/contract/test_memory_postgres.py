"""PostgreSQL beside SQLite: the same calls have the same results; and several replicas over one database."""

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
from memory_serve.protocol import MAX_BATCH, TRUSTS, Draft, Edit, MemoryStore, Stored
from memory_serve.store import SqliteMemory
from mia.errors import ConfigError, DataError, MemoryStoreError
from mia.types import Question
from tests import postgres
from tests.memories import drafts

pytestmark = pytest.mark.skipif(bool(postgres.MISSING), reason=postgres.REASON)
Open = Callable[..., SqliteMemory]
TOWNS = ("Vienna", "Graz", "Linz", "Wels", "Steyr", "Enns", "Krems")
ASKED = Question(id="asked", text="Which river flows through Vienna?")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@pytest.fixture
async def replica() -> AsyncIterator[Open]:
    """Opens stores over one schema, closed at the end."""
    from memory_serve.postgres import PostgresMemory

    base = postgres.config()
    stores: list[SqliteMemory] = []

    def make(encoder: HashEncoder | None = None, **settings: Any) -> SqliteMemory:
        schema = {"schema_name": base.postgres.schema_name} | settings.pop("postgres", {})
        config = MemoryConfig.model_validate({"url": base.url, "postgres": schema, **settings})
        stores.append(PostgresMemory(config, encoder or HashEncoder()))
        return stores[-1]

    yield make
    for store in stores:
        await store.aclose()


# ---------------------------------------------------------------------------------------------- the same as SQLite


class Calls:
    """Random calls on a store, told without ids and times, so that two stores can be compared."""

    def __init__(self, store: MemoryStore, seed: int) -> None:
        self.store = store
        self.chance = random.Random(seed)
        self.ids: list[str] = []

    def _draft(self) -> Draft:
        pick, town = self.chance.choice, self.chance.choice(TOWNS)
        picture = pick(("", "", "a red bridge", "an old bridge"))
        word = pick(("river", "river", "rivers"))
        return Draft(
            question=pick((f"Which {word} flows through {town}?", f"Who was born in {town}?")),
            caption=picture,
            modality="text-image" if picture or pick((True, False, False)) else "text-only",
            workflow=" ".join(["1. Search"] * self.chance.randint(1, 3)),
            plan=pick(("", f"1. plan {self.chance.randint(0, 9)}")),
            outcome=pick(("correct", "incorrect", "unjudged")),
            trust=pick(TRUSTS),
            source_id=pick(("", f"q-{town}")),
            trajectory_id=pick(("", f"t{self.chance.randint(0, 40)}")),
        )

    def _some(self, count: int) -> list[str]:
        return [self.chance.choice(self.ids) for _ in range(count)] if self.ids else ["unknown"]

    async def call(self) -> object:
        """One call, and what came of it."""
        chance, store = self.chance, self.store
        kind = chance.choice(["add"] * 6 + ["credit"] * 4 + ["recall"] * 3 + ["pairs", "delete", "update", "absorb",
                             "compact", "undo", "undo", "other", "clear"])  # fmt: skip
        try:
            match kind:
                case "add":
                    added = await store.add([self._draft() for _ in range(chance.randint(1, 5))])
                    self.ids += [a.id for a in added if a.id not in self.ids]
                    return added
                case "credit":
                    key = chance.choice(("", f"k{chance.randint(0, 9)}"))
                    return await store.credit(self._some(3), chance.random() < 0.6, key)
                case "recall":
                    asked = Question(id=chance.choice(("", "q-Vienna")), text=self._draft().question)
                    asked = asked.model_copy(update={"caption": chance.choice(("", "a red bridge"))})
                    return await store.recall(asked, k=chance.randint(1, 4), skip=chance.randint(0, 1))
                case "pairs":
                    return await store.pairs(ASKED, k=2)
                case "delete":
                    return await store.delete(self._some(2))
                case "update":
                    edit = Edit(question=chance.choice((None, f"Who ruled {chance.choice(TOWNS)}?")), workflow="1. New")
                    return await store.update(self._some(1)[0], edit, chance.randint(1, 2))
                case "absorb":
                    return await store.absorb(self._some(2), "checkpoint")
                case "compact":
                    return await store.compact()
                case "undo":
                    return await store.undo(chance.choice((None, None, chance.randint(1, 30))))
                case "other":
                    return await store.scoped("other").add([self._draft()])
                case _:
                    return await store.clear() if chance.random() < 0.2 else None
        except DataError as error:
            return error.code, re.sub("memory [^ ]+ has changed", "something has changed", str(error))

    def told(self, what: object) -> str:
        """A result as text, with numbers in place of ids and without times and versions of the log."""
        text = repr(what)
        for number, memory_id in enumerate(self.ids):
            text = text.replace(memory_id, f"<{number}>")
        # What was changed and changed back in one call may be named in the log or not.
        return re.sub(r"datetime\([^)]*\)+|at='[^']*'|memories=\([^)]*\)", "", _ID.sub("<id>", text))

    async def state(self) -> str:
        """All that is remembered, and the log."""
        memories = sorted(self.told(memory) for memory in await self.store.list(MAX_BATCH))
        return "\n".join([*memories, self.told(await self.store.stats()), self.told(await self.store.history())])


@pytest.mark.parametrize(
    ("seed", "settings"),
    [
        (1, {}),
        (2, {"score": "released", "floor": 0.5, "recall_trust": ("reference", "user")}),
        (3, {"keep": {"capacity": 3, "policy": "value", "absorbed_uses": 1}}),
        (4, {"keep": {"capacity": 4, "policy": "value_age", "merge": 0.75, "absorbed_uses": 2}}),
        *(pytest.param(
            n, {"keep": {"capacity": n % 5, "policy": "value_age", "merge": 0.8 * (n % 2), "total": n % 7}},
            marks=pytest.mark.long) for n in range(100, 130)),
    ],
)  # fmt: skip
async def test_the_same_calls_have_the_same_results(
    replica: Open, tmp_path: Path, seed: int, settings: dict[str, Any]
) -> None:
    file = SqliteMemory(MemoryConfig.model_validate({"path": tmp_path / "m.db", **settings}), HashEncoder())
    here, there = Calls(file, seed), Calls(replica(**settings), seed)
    for _ in range(60):
        one, other = await here.call(), await there.call()
        assert there.told(other) == here.told(one)
    assert await there.state() == await here.state()
    await file.aclose()


@pytest.mark.parametrize("capacity", [{"capacity": 30}, {"total": 300}, {"capacity": 200, "total": 290}])
async def test_what_goes_first_is_the_same(replica: Open, tmp_path: Path, capacity: dict[str, int]) -> None:
    keep = {**capacity, "failures": 0.2}
    file = SqliteMemory(MemoryConfig.model_validate({"path": tmp_path / "m.db", "keep": keep}), HashEncoder())
    database, chance = replica(keep=keep), random.Random(7)
    # Times are given, as the two stores would not make their memories at the same moments.
    memories = [
        Stored(id=f"m{n}", question=f"{chance.choice(('Which river', 'Who', 'When'))} is {n} of town{n % 20} it?",
               outcome=chance.choice(("correct", "correct", "incorrect", "unjudged")), workflow="1. go", source_id="",
               category=chance.choice(("location", "human", "time")), uses=9, successes=chance.randint(0, 9),
               created=f"2026-01-{n // 24 + 1:02}T{n % 24:02}:00:00Z")
        for n in range(310)
    ]  # fmt: skip
    for store in (file, database):
        await store.load(memories)
    assert await database.compact() == await file.compact()
    left = await file.export()
    assert await database.export() == left
    # A total of 300 drops one more than must go: a 256th.
    assert len(left) == {30: 90, 300: 299, 200: 289}[next(iter(capacity.values()))]
    await file.aclose()


async def test_scores_and_order_are_those_of_sqlite_in_a_large_bucket(replica: Open, tmp_path: Path) -> None:
    file, database = SqliteMemory(MemoryConfig(path=tmp_path / "m.db"), HashEncoder()), replica()
    sent = [d.model_copy(update={"question": f"Which river flows through town{n % 90} and {n}?"})
            for n, d in enumerate(drafts(600))]  # fmt: skip
    await file.add(sent)
    await database.load([m.model_copy(update={"win_rate": None}) for m in await file.export()])
    chance = random.Random(5)
    ids = [m.id for m in await file.export()]
    for _ in range(100):
        chosen, success = chance.sample(ids, 5), chance.random() < 0.5
        await asyncio.gather(file.credit(chosen, success), database.credit(chosen, success))
    for n in range(40):
        asked = Question(id=f"q{n}", text=f"Which river flows through town{n}?")
        assert await database.recall(asked, k=5, skip=n % 3) == await file.recall(asked, k=5, skip=n % 3)
    assert await database.export() == await file.export()
    await file.aclose()


async def test_a_win_rate_that_a_file_states_counts(replica: Open, tmp_path: Path) -> None:
    file, database = (
        SqliteMemory(MemoryConfig(path=tmp_path / "m.db", score="released"), HashEncoder()),
        replica(score="released"),
    )
    await file.add(drafts(9))
    memories = [m.model_copy(update={"win_rate": n / 32}) for n, m in enumerate(await file.export())]
    await file.clear()
    for store in (file, database):
        await store.load(memories)
        await store.credit([memories[3].id], success=False)
    assert await database.recall(ASKED, k=9) == await file.recall(ASKED, k=9)
    assert await database.load(memories[:3]) == await file.load(memories[:3])
    await file.aclose()


# ---------------------------------------------------------------------------------------------- replicas


async def test_replicas_see_each_other_at_once(replica: Open) -> None:
    one, two = replica(), replica()
    first, second, third = await one.add(drafts(3))
    assert set((await two.recall(ASKED)).ids) == {first.id, second.id, third.id}
    await two.credit([first.id], success=True)
    await two.delete([second.id])
    recalled = await one.recall(ASKED)
    assert set(recalled.ids) == {first.id, third.id}
    assert recalled.successes[0].memory.uses == 1
    assert recalled.successes[0].terms["value"] == pytest.approx(0.15)


async def test_one_question_added_by_many_is_stored_once(replica: Open) -> None:
    replicas = [replica() for _ in range(3)]
    for turn in range(6):
        same = [
            drafts(1, turn)[0].model_copy(
                update={"outcome": "correct", "trajectory_id": f"r{turn}-{n}", "workflow": "1. go" + " on" * n}
            )
            for n in range(12)
        ]
        results = await asyncio.gather(*(replicas[n % 3].add([d]) for n, d in enumerate(same)))
        assert len({a.id for (a,) in results}) == 1
        assert [a.action for (a,) in results].count("stored") == 1
        (kept,) = [m for m in await replicas[0].list() if m.source_id == f"q{turn}"]
        assert kept.workflow == "1. go"  # the shortest, in whatever order they came


async def test_concurrent_calls_end_where_a_serial_replay_ends(replica: Open, tmp_path: Path) -> None:
    one, two = replica(), replica()
    ids = [a.id for a in await one.add(drafts(10))]
    chance = random.Random(3)
    credits = [(tuple(chance.sample(ids, 4)), chance.random() < 0.5, f"k{n % 50}") for n in range(80)]
    # Calls with one key are the same call, sent again.
    credits = [credits[n % 50] for n in range(80)]
    more = [d for n in range(10, 40) for d in drafts(1, n) * 2]
    await asyncio.gather(
        *((one, two)[n % 2].credit(*call) for n, call in enumerate(credits)),
        *((one, two)[n % 2].add([d]) for n, d in enumerate(more)),
        *((one, two)[n % 2].recall(ASKED) for n in range(20)),
    )
    serial = SqliteMemory(MemoryConfig(path=tmp_path / "m.db"), HashEncoder())
    replayed = [a.id for a in await serial.add(drafts(10))]
    for shown, success, key in credits:
        await serial.credit([replayed[ids.index(i)] for i in shown], success, key)
    for d in more:
        await serial.add([d])

    async def told(store: MemoryStore) -> dict[str, tuple[object, ...]]:
        return {m.trajectory_id: (m.question, m.outcome, m.uses, m.successes) for m in await store.list(MAX_BATCH)}

    assert await told(one) == await told(two) == await told(serial)
    assert len(await one.list(MAX_BATCH)) == 40
    await serial.aclose()


async def test_crossing_writes_wait_for_each_other_without_harm(replica: Open) -> None:
    replicas = [replica(keep={"capacity": 4, "merge": 0.9}) for _ in range(2)]
    ids = [a.id for a in await replicas[0].add(drafts(6))]

    async def work(number: int) -> None:
        store, chance = replicas[number % 2], random.Random(number)
        for turn in range(5):
            await store.add(
                [drafts(1, chance.randint(0, 12))[0].model_copy(update={"trajectory_id": f"{number}.{turn}"})]
            )
            await store.credit(chance.sample(ids, 4), success=True)
            await store.compact()

    await asyncio.gather(*(work(number) for number in range(6)))
    memories = await replicas[0].list(MAX_BATCH)
    assert len(memories) <= 4
    assert all(0 <= m.successes <= m.uses for m in memories)


async def test_settings_of_the_store_hold_here_too(replica: Open) -> None:
    store = replica(recall_own=True, namespace="team")
    (added,) = await store.add(drafts(1))
    assert (await store.recall(Question(id="q0", text="Which river flows through town0?"))).ids == (added.id,)
    assert await store.scoped("default").get(added.id) is None
    with pytest.raises(ConfigError, match="no Manager model"):
        replica(classify="model")


# ---------------------------------------------------------------------------------------------- faults


async def test_a_lost_connection_is_told_and_mended(replica: Open) -> None:
    import psycopg

    store = replica()
    await store.add(drafts(3))
    with psycopg.connect(postgres.server().get_uri(), autocommit=True) as admin:
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mia memory'"
        admin.execute(end)
        assert (await store.stats()).memories == 3  # a new connection was made
        schema = str(store._postgres._database.schema)  # type: ignore[attr-defined]
        admin.execute(f"ALTER TABLE {schema}.memories RENAME TO moved")
        with pytest.raises(MemoryStoreError) as caught:
            await store.stats()
        assert (caught.value.code, caught.value.retryable) == ("database", False)
        assert not store.healthy
        admin.execute(f"ALTER TABLE {schema}.moved RENAME TO memories")
    assert (await store.stats()).memories == 3
    assert store.healthy


async def test_a_database_that_is_not_there() -> None:
    from memory_serve.postgres import PostgresMemory

    config = MemoryConfig(url="postgresql://nobody@127.0.0.1:1/none", busy_s=2)
    with pytest.raises(MemoryStoreError) as caught:
        PostgresMemory(config, HashEncoder())
    assert (caught.value.code, caught.value.retryable, caught.value.status) == ("unreachable", True, 503)
    assert "check that the database is running" in caught.value.remedy
    missing = postgres.config().model_copy(update={"url": postgres.server().get_uri(database="none")})
    with pytest.raises(MemoryStoreError) as caught:
        PostgresMemory(missing, HashEncoder())
    assert (caught.value.code, caught.value.retryable) == ("no_database", False)


async def test_foreign_and_newer_schemas_are_refused(replica: Open) -> None:
    import psycopg

    store = replica()
    schema = str(store._postgres._database.schema)  # type: ignore[attr-defined]
    await store.aclose()
    with psycopg.connect(postgres.server().get_uri(), autocommit=True) as admin:
        admin.execute(f"UPDATE {schema}.mia_schema SET version = 99")
        with pytest.raises(MemoryStoreError, match="schema version 99") as caught:
            replica()
        assert caught.value.code == "newer_file"
        admin.execute(f"DROP TABLE {schema}.mia_schema")
        with pytest.raises(MemoryStoreError, match="another program") as caught:
            replica()
        assert caught.value.code == "foreign_file"


async def test_many_replicas_open_a_new_database_at_once(replica: Open) -> None:
    stores = await asyncio.gather(*(asyncio.to_thread(replica) for _ in range(6)))
    await asyncio.gather(*(store.add(drafts(1, n)) for n, store in enumerate(stores)))
    assert {(await store.stats()).memories for store in stores} == {6}


# ---------------------------------------------------------------------------------------------- encoders


async def test_vectors_of_two_encoders_are_never_compared(replica: Open) -> None:
    old = replica()
    await old.add(drafts(150))
    other = HashEncoder(dim=96, seed=7)
    with pytest.raises(MemoryStoreError, match="150 by hash-64-0") as caught:
        replica(other)
    assert caught.value.code == "other_encoder"
    new = replica(other, reencode=True)
    assert other.encoded == 150
    text = "Which river flows through town3 of region3?"
    found = await new.recall(Question(id="x", text=text), k=1)
    assert [s.similarity for s in found.successes] == [pytest.approx(1.0, abs=1e-6)]
    for call in (old.recall(ASKED), old.add(drafts(1, 500)), old.credit(["x"], True)):
        with pytest.raises(MemoryStoreError, match="another encoder"):
            await call
    assert (await new.stats()).memories == 150


# ---------------------------------------------------------------------------------------------- texts


async def test_ids_of_any_length(replica: Open) -> None:
    store = replica()
    long = drafts(1)[0].model_copy(update={"trajectory_id": "t" * 100_000, "source_id": "s" * 10_000})
    assert [a.action for a in await store.add([long, long])] == ["stored", "known"]
    (memory,) = await store.list()
    for _ in range(2):
        await store.credit([memory.id], True, key="k" * 100_000)
    assert [m.uses for m in await store.list()] == [1]
    with pytest.raises(DataError, match="an id has 501 characters"):
        await store.load([memory.model_copy(update={"id": "i" * 501})])


async def test_the_url_decides_what_is_opened() -> None:
    from memory_serve.client import MemoryClient
    from memory_serve.open import open_memory, open_served
    from memory_serve.postgres import PostgresMemory

    for store in (open_memory(postgres.config(), HashEncoder()), open_served(postgres.config(), HashEncoder())):
        assert isinstance(store, PostgresMemory)
        await store.aclose()
    assert isinstance(open_memory(MemoryConfig(url="http://127.0.0.1:1")), MemoryClient)
    with pytest.raises(ConfigError, match="cannot be served"):
        open_served(MemoryConfig(url="http://127.0.0.1:1"), HashEncoder())
