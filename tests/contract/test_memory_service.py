"""The full Manager as every store offers it: namespaces, edits, undo, import, export; and the service's own edges."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from memory_serve.app import create_app
from memory_serve.client import MemoryClient
from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.open import open_served
from memory_serve.portable import walk
from memory_serve.protocol import Draft, Edit, MemoryStore
from memory_serve.store import SqliteMemory
from mia.errors import ConfigError, DataError
from mia.types import Question
from tests import postgres
from tests.contract.test_memory_contract import KINDS, opening

ASKED = Question(id="asked", text="Which river flows through Vienna?")


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MemoryStore]:
    async with opening(request.param, tmp_path) as (store, _):
        yield store


def draft(town: str, **fields: Any) -> Draft:
    given = {"question": f"Which river flows through {town}?", "workflow": f"1. Search: {town}", "outcome": "correct",
             "source_id": f"q-{town}", "trajectory_id": f"t-{town}-{fields}", "plan": f"plan {town}"}  # fmt: skip
    return Draft.model_validate({**given, **fields})


# ---------------------------------------------------------------------------------------------- every store


async def test_nothing_crosses_from_one_namespace_to_another(store: MemoryStore) -> None:
    one, two = store.scoped("u1"), store.scoped("u2")
    (mine,) = await one.add([draft("Vienna")])
    (theirs,) = await two.add([draft("Vienna")])
    assert (mine.action, theirs.action) == ("stored", "stored")
    assert mine.id != theirs.id
    assert (await one.recall(ASKED)).ids == (mine.id,)
    assert [m.namespace for m in await one.list()] == ["u1"]
    assert await two.get(mine.id) is None
    assert await two.delete([mine.id]) == 0
    assert await two.absorb([mine.id], "x") == 0
    assert [c.known for c in await two.credit([mine.id], success=True, key="k")] == [False]
    assert [c.known for c in await one.credit([mine.id], success=True, key="k")] == [True]
    with pytest.raises(DataError, match="no memory"):
        await two.update(mine.id, Edit(workflow="1. taken over"), version=1)
    assert [m.id for m in await two.export()] == [theirs.id]
    assert (await store.stats()).memories == 0
    assert await one.clear() == 1
    assert [(await s.stats()).memories for s in (one, two)] == [0, 1]
    assert [c.action for c in await two.history()] == ["add"]


async def test_an_edit_needs_the_version_that_was_read(store: MemoryStore) -> None:
    (added,) = await store.add([draft("Vienna")])
    await store.credit([added.id], success=True)
    memory = await store.get(added.id)
    assert memory is not None
    assert memory.version == 1  # a credit is no edit
    edited = await store.update(added.id, Edit(outcome="incorrect", trust="user"), version=1)
    assert (edited.version, edited.outcome, edited.trust, edited.uses) == (2, "incorrect", "user", 1)
    assert await store.get(added.id) == edited
    assert len((await store.recall(ASKED)).failures) == 1
    with pytest.raises(DataError) as caught:
        await store.update(added.id, Edit(workflow="1. lost"), version=1)
    assert (caught.value.code, caught.value.status) == ("conflict", 409)


async def test_undo_brings_back_what_was_deleted(store: MemoryStore) -> None:
    added = await store.add([draft("Vienna"), draft("Graz")])
    before = await store.export()
    await store.delete([added[0].id])
    undone = await store.undo()
    assert (undone.action, undone.memories) == ("delete", (added[0].id,))
    assert await store.export() == before
    assert (await store.recall(ASKED)).successes[0].memory.id == added[0].id
    assert [c.action for c in await store.history()] == ["undo", "delete", "add"]
    await store.undo()
    assert await store.export() == []
    with pytest.raises(DataError, match="nothing to undo"):
        await store.undo()


async def test_undo_gives_a_run_back_to_the_memory_it_was_taken_from(store: MemoryStore) -> None:
    first, moved = draft("Vienna"), {"trajectory_id": "moved"}
    (right, _) = await store.add([first, draft("Vienna", outcome="unjudged", **moved)])
    (wrong,) = await store.add([draft("Vienna", outcome="incorrect", **moved)])
    assert (wrong.action, wrong.id != right.id) == ("stored", True)
    undone = await store.undo()
    (known,) = await store.add([draft("Vienna", outcome="unjudged", **moved)])
    assert (known.id, known.action) == (right.id, "known")
    await store.undo(undone.undone)
    (known,) = await store.add([draft("Vienna", outcome="incorrect", **moved)])
    assert (known.id, known.action) == (wrong.id, "known")
    await store.undo()
    await store.undo()
    assert await store.export() == []


async def test_an_undo_of_an_undo_of_an_undo(store: MemoryStore) -> None:
    (older, newer) = [(await store.add([draft(town)]))[0] for town in ("Vienna", "Graz")]
    undo = await store.undo()
    redo = await store.undo(undo.undone)
    assert (redo.number, redo.action) == (undo.undone, "undo")
    again = await store.undo(redo.undone)
    assert (again.number, again.action) == (redo.undone, "undo")
    last = again.undone
    assert [m.id for m in await store.export()] == [older.id]
    # What counts is whether a change is in effect now: the undo is, so the second addition is not.
    found = {c.number: c.undone for c in await store.history()}
    assert found == {1: None, 2: undo.undone, undo.undone: None, redo.undone: last, last: None}
    assert (await store.undo()).number == 1
    assert await store.export() == []
    with pytest.raises(DataError, match="nothing to undo"):
        await store.undo()
    await store.undo(last)  # the other way round: the second addition is in effect again
    assert [m.id for m in await store.export()] == [newer.id]
    assert (await store.undo()).number == 2


async def test_what_is_exported_can_be_stored_elsewhere(store: MemoryStore) -> None:
    added = await store.add([draft("Vienna"), draft("Graz", caption="a bridge", modality="text-image")])
    await store.credit([added[0].id], success=True)
    memories = [memory async for memory in walk(store)]
    assert [m.id for m in memories] == sorted(a.id for a in added)
    with pytest.raises(DataError, match="another namespace"):
        await store.scoped("u2").load(memories)
    await store.clear()
    assert [a.action for a in await store.scoped("u2").load(memories)] == ["stored", "stored"]
    moved = [memory async for memory in walk(store.scoped("u2"))]
    assert moved == [m.model_copy(update={"namespace": "u2"}) for m in memories]
    assert [a.action for a in await store.scoped("u2").load(moved)] == ["known", "known"]
    other = moved[0].model_copy(update={"workflow": "1. other"})
    assert [a.action for a in await store.scoped("u2").load([other])] == ["kept"]
    assert len((await store.scoped("u2").recall(ASKED)).successes) == 1


async def test_pairs_absorbing_compacting_skipping(store: MemoryStore) -> None:
    added = await store.add([draft("Vienna"), draft("Vienna", outcome="incorrect", plan="bad"), draft("Graz")])
    (pair,) = await store.pairs(ASKED)
    assert (pair.question, pair.correct, pair.incorrect) == (ASKED.text, "plan Vienna", "bad")
    assert await store.absorb([added[0].id], "step-3") == 1
    memory = await store.get(added[0].id)
    assert memory is not None
    assert memory.absorbed == "step-3"
    assert (await store.compact()).model_dump() == {"before": 3, "after": 3, "absorbed": 0, "merged": 0, "evicted": 0}
    assert [s.memory.id for s in (await store.recall(ASKED, k=1, skip=1)).successes] == [added[2].id]


# ---------------------------------------------------------------------------------------------- the service


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[SqliteMemory]:
    core = SqliteMemory(MemoryConfig(path=tmp_path / "m.db"), HashEncoder())
    yield core
    await core.aclose()


def bare(core: SqliteMemory, token: str = "") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(create_app(core, token)), base_url="http://memory")


@pytest.mark.parametrize(
    "body",
    [{}, {"namespace": ""}, {"namespace": None}, {"namespace": "*"}, {"namespace": "u1' OR '1'='1"},
     {"namespace": "u1", "all": True}, {"all": "yes"}, {"namespace": 1}, {"namespace": ["u1"]}],
)  # fmt: skip
async def test_clearing_needs_a_name(core: SqliteMemory, body: dict[str, Any]) -> None:
    await core.scoped("u1").add([draft("Vienna")])
    await core.add([draft("Graz")])
    async with bare(core) as client:
        answer = await client.post("/v1/clear", json=body)
        assert answer.status_code == 422
        assert answer.json()["error"]["code"] in ("bad_request", "bad_namespace")
        assert [(await s.stats()).memories for s in (core, core.scoped("u1"))] == [1, 1]
        assert (await client.post("/v1/clear", json={"namespace": "u1"})).json() == {"count": 1}
        assert (await client.post("/v1/clear", json={"all": True})).json() == {"count": 1}


async def test_an_edit_by_http(core: SqliteMemory) -> None:
    (added,) = await core.add([draft("Vienna")])
    async with bare(core) as client:
        path, body = f"/v1/memories/{added.id}", {"edit": {"workflow": "1. New"}}
        assert (await client.patch(path, json=body)).status_code == 428
        assert (await client.patch(path, json=body, headers={"if-match": '"7"'})).status_code == 409
        assert (await client.patch(path, json={**body, "version": 1}, headers={"if-match": "2"})).status_code == 422
        answer = await client.patch(path, json=body, headers={"if-match": '"1"'})
        assert (answer.status_code, answer.json()["version"]) == (200, 2)
        assert (await client.patch(path, json={**body, "version": 1})).status_code == 409
        assert (await client.patch("/v1/memories/16", json={**body, "version": 1})).status_code == 404


async def test_a_token_is_asked_for(core: SqliteMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = "Bearer sécret".encode()
    async with bare(core, token="sécret") as client:
        for path in ("/v1/stats", "/v1/memories", "/v1/export"):
            for header in ("", "Bearer", "Bearer wrong", "sécret", "Bearer sécretx", "bearer sécret"):
                answer = await client.get(path, headers=[(b"authorization", header.encode())])
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "unauthorized"
            assert (await client.get(path, headers=[(b"authorization", sent)])).status_code == 200
        assert (await client.post("/v1/clear", json={"all": True})).status_code == 401
        assert (await client.get("/health")).status_code == 200
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    app = httpx.ASGITransport(create_app(core, token="s3cret"))
    right = MemoryClient("http://memory", app, retries=0, token_env="MY_TOKEN")
    assert (await right.stats()).memories == 0
    with pytest.raises(DataError) as caught:
        await MemoryClient("http://memory", app, retries=0).stats()
    assert (caught.value.code, caught.value.status) == ("unauthorized", 401)
    with pytest.raises(ConfigError, match="OTHER_TOKEN"):
        MemoryClient("http://memory", token_env="OTHER_TOKEN")


async def test_the_log_says_who_by_http(core: SqliteMemory) -> None:
    async with bare(core) as client:
        body = {"memories": [draft("Vienna").model_dump()], "namespace": "u1"}
        await client.post("/v1/memories", json=body)
        (change,) = (await client.get("/v1/history?namespace=u1")).json()["changes"]
        assert (change["actor"], change["action"], change["namespace"]) == ("http 127.0.0.1", "add", "u1")


async def test_an_undo_that_arrives_twice_undoes_one_change(core: SqliteMemory) -> None:
    await core.add([draft("Vienna")])
    await core.add([draft("Graz")])
    client = MemoryClient("http://memory", httpx.ASGITransport(create_app(core)), retries=0)
    done = await client.undo()
    with pytest.raises(DataError):
        await client.undo(done.number)
    assert [m.source_id for m in await core.list()] == ["q-Vienna"]


# ---------------------------------------------------------------------------------------------- many clients


@pytest.mark.parametrize("operations", [800, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_sixteen_clients_leave_is_what_the_log_tells(tmp_path: Path, operations: int, kind: str) -> None:
    """The log, replayed one change after the other on a plain dictionary, gives the memories that are there."""
    given: dict[str, Any] = {"path": tmp_path / "m.db"} if kind == "sqlite" else postgres.config().model_dump()
    config = MemoryConfig.model_validate({**given, "history": 10**6})
    core = open_served(config, HashEncoder())
    client = MemoryClient("http://memory", httpx.ASGITransport(create_app(core)), retries=0)
    known: list[str] = []

    async def work(number: int) -> None:
        chance = random.Random(number)
        for turn in range(operations // 16):
            kind = chance.random()
            if kind < 0.4 or not known:
                outcome = chance.choice(("correct", "incorrect", "unjudged"))
                town = f"town{chance.randrange(operations // 8)}"
                sent = draft(town, outcome=outcome, trajectory_id=f"{number}-{turn}")
                known.extend(added.id for added in await client.add([sent]))
            elif kind < 0.7:
                await client.credit(chance.sample(known, min(3, len(known))), chance.random() < 0.5)
            elif kind < 0.8:
                await client.delete([chance.choice(known)])
            else:
                await client.recall(ASKED)

    await asyncio.gather(*(work(number) for number in range(16)))
    found = {m.id: m.model_dump(mode="json") for m in [m async for m in walk(core)]}
    await core.aclose()
    replayed = replay(config)
    assert replayed.keys() == found.keys()
    assert len(found) > 10
    for memory_id, state in replayed.items():
        for name in ("question", "workflow", "plan", "outcome", "uses", "successes", "category", "trust"):
            assert state[name] == found[memory_id][name]


def read_log(config: MemoryConfig) -> list[tuple[str, str | None, str | None]]:
    """The images of all changes, in their order, read without our code."""
    query = "SELECT memory_id, before, after FROM images ORDER BY number, memory_id"
    if config.url:
        import psycopg

        with psycopg.connect(config.url, options=f"-c search_path={config.postgres.schema_name}") as database:
            return database.execute(query).fetchall()
    connection = sqlite3.connect(config.path)
    rows = connection.execute(query).fetchall()
    connection.close()
    return rows


def replay(config: MemoryConfig) -> dict[str, dict[str, Any]]:
    """The memories that the changes of a memory add up to."""
    memories: dict[str, dict[str, Any]] = {}
    for memory_id, before, after in read_log(config):
        if before is None:
            assert memory_id not in memories
        else:
            state = memories[memory_id]
            assert {name: state[name] for name in json.loads(before)} == json.loads(before)
        if after is None:
            del memories[memory_id]
        else:
            memories[memory_id] = memories.get(memory_id, {}) | json.loads(after)
    return memories
