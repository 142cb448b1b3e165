"""The SQLite store: what is on disk, what two stores on one file see, and what happens to files that are not right."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from memory_serve.config import MemoryConfig
from memory_serve.database import MIGRATIONS, Database
from memory_serve.hashing import HashEncoder
from memory_serve.store import SqliteMemory
from memory_serve.upkeep import MemoryCore
from mia.errors import MemoryStoreError
from mia.types import Question
from tests.memories import drafts

Open = Callable[..., SqliteMemory]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens stores over one file, closed at the end."""
    stores: list[SqliteMemory] = []

    def make(encoder: HashEncoder | None = None, **settings: object) -> SqliteMemory:
        config = MemoryConfig.model_validate({"path": tmp_path / "m.db", **settings})
        stores.append(SqliteMemory(config, encoder or HashEncoder()))
        return stores[-1]

    yield make
    for store in stores:
        await store.aclose()


ASKED = Question(id="new", text="Which river flows through town3 of region3?")


async def test_reopening_gives_the_same_recall_and_encodes_nothing(opened: Open) -> None:
    store = opened()
    added = await store.add(drafts(40))
    await store.credit([added[3].id, added[4].id], success=True)
    await store.delete([added[5].id])
    before = await store.recall(ASKED, k=3)
    await store.aclose()

    encoder = HashEncoder()
    again = opened(encoder)
    assert encoder.encoded == 0
    assert await again.recall(ASKED, k=3) == before
    assert encoder.encoded == 1  # the question that was asked
    assert [len(part) for part in (before.successes, before.failures, before.unjudged)] == [3, 3, 3]


async def test_two_stores_on_one_file_see_each_others_changes(opened: Open) -> None:
    one, two = opened(), opened()
    first, second, third = await one.add(drafts(3))
    assert set((await two.recall(ASKED)).ids) == {first.id, second.id, third.id}
    await two.credit([first.id], success=True)
    await two.delete([second.id])
    recalled = await one.recall(ASKED)
    assert set(recalled.ids) == {first.id, third.id}
    (success,) = recalled.successes
    assert success.memory.uses == 1
    assert success.terms["value"] == pytest.approx(0.15)
    # The duplicate rule knows what the other store wrote a moment ago.
    again = drafts(1)[0].model_copy(update={"trajectory_id": "another", "workflow": "1. Go"})
    assert [(a.id, a.action) for a in await two.add([again])] == [(first.id, "replaced")]
    assert (await one.add([again]))[0].action == "known"


async def test_two_stores_writing_at_once_lose_nothing(opened: Open) -> None:
    one, two = opened(), opened()
    results = await asyncio.gather(*((one, two)[n % 2].add([d]) for n, d in enumerate(drafts(60))))
    assert len({a.id for (a,) in results}) == 60
    for store in (one, two):
        assert (await store.stats()).memories == 60
        assert len((await store.recall(ASKED, k=100)).ids) == 60


async def test_a_run_is_stored_once_but_a_late_verdict_counts(opened: Open) -> None:
    store = opened()
    (run,) = drafts(1)
    unjudged = run.model_copy(update={"outcome": "unjudged"})
    actions = []
    for sent in (unjudged, unjudged, run, run, unjudged, run.model_copy(update={"outcome": "incorrect"})):
        (added,) = await store.add([sent])
        actions.append(added.action)
    assert actions == ["stored", "known", "replaced", "known", "known", "known"]
    assert [m.outcome for m in await store.list()] == ["correct"]


async def test_a_replaced_run_is_still_known(opened: Open) -> None:
    store = opened()
    old = drafts(1)[0].model_copy(update={"outcome": "incorrect"})
    new = old.model_copy(update={"trajectory_id": "t-new", "workflow": "1. newer"})
    assert [a.action for a in await store.add([old, new, old])] == ["stored", "replaced", "known"]
    assert [m.workflow for m in await store.list()] == ["1. newer"]


async def test_a_forgotten_run_may_come_back(opened: Open) -> None:
    store = opened()
    (added,) = await store.add(drafts(1))
    assert await store.delete([added.id, added.id, "unknown"]) == 1
    assert [a.action for a in await store.add(drafts(1))] == ["stored"]


async def test_a_credit_with_a_key_counts_once(opened: Open) -> None:
    store = opened()
    (added,) = await store.add(drafts(1))
    for key, success in (("run-1", True), ("run-1", True), ("run-2", False), ("", True), ("", True)):
        assert [c.known for c in await store.credit([added.id], success, key)] == [True]
    memory = await store.get(added.id)
    assert memory is not None
    assert (memory.uses, memory.successes) == (4, 3)


async def test_the_file_itself_refuses_impossible_counters(opened: Open, tmp_path: Path) -> None:
    await opened().add(drafts(1))
    connection = sqlite3.connect(tmp_path / "m.db")
    for change in ("successes = 1", "uses = -1, successes = -1", "outcome = 'perhaps'"):
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            connection.execute(f"UPDATE memories SET {change}")
    connection.close()


async def test_a_write_ahead_log_and_a_commit_that_waits_for_the_disk(opened: Open, tmp_path: Path) -> None:
    opened()
    connection = sqlite3.connect(tmp_path / "m.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    connection.close()
    for name, number in (("full", 2), ("normal", 1)):
        database = Database(tmp_path / f"{name}.db", "full" if name == "full" else "normal")
        with database.reading() as inside:
            assert inside.execute("PRAGMA synchronous").fetchone() == (number,)
            assert inside.execute("PRAGMA foreign_keys").fetchone() == (1,)
        database.close()


# ---------------------------------------------------------------------------------------------- encoders


async def test_another_encoder_is_refused_unless_allowed(opened: Open, tmp_path: Path) -> None:
    store = opened(HashEncoder(64))
    await store.add(drafts(70))
    await store.aclose()
    for other in (HashEncoder(32), HashEncoder(64, seed=1)):
        with pytest.raises(MemoryStoreError, match=r"(?s)70 by hash-64-0.*reencode") as caught:
            opened(other)
        assert caught.value.code == "other_encoder"

    encoder = HashEncoder(32)
    again = opened(encoder, reencode=True)
    assert encoder.encoded == 70
    best = (await again.recall(ASKED, k=1)).successes[0]
    assert best.memory.question == ASKED.text
    assert best.similarity == pytest.approx(1.0, abs=1e-6)
    connection = sqlite3.connect(tmp_path / "m.db")
    assert connection.execute("SELECT DISTINCT encoder, length(vector) FROM memories").fetchall() == [
        ("hash-32-0", 128)
    ]
    connection.close()


async def test_vectors_are_never_mixed_while_another_program_encodes_anew(opened: Open) -> None:
    mine = opened(HashEncoder(64))
    await mine.add(drafts(3))
    assert mine.healthy
    opened(HashEncoder(64, seed=1), reencode=True)
    for _ in range(2):
        with pytest.raises(MemoryStoreError) as caught:
            await mine.recall(ASKED)
        assert caught.value.code == "other_encoder"
        assert not mine.healthy
    with pytest.raises(MemoryStoreError):
        await mine.add(drafts(1, start=50))
    assert len(await mine.list()) == 3


async def test_encoding_anew_goes_on_where_it_was_cut_off(opened: Open, tmp_path: Path) -> None:
    store = opened(HashEncoder(64))
    await store.add(drafts(5))
    await store.aclose()
    new = HashEncoder(64, seed=1)
    core = MemoryCore(MemoryConfig(path=tmp_path / "m.db"), new.name, new.dim)
    half = core.outdated(2)
    core.set_vectors([(row[0], new.encode([row[1]])[0], None) for row in half])
    core.close()
    with pytest.raises(MemoryStoreError, match="3 by hash-64-0"):
        opened(new)
    new.encoded = 0
    again = opened(new, reencode=True)
    assert new.encoded == 3
    assert len((await again.recall(ASKED, k=5)).ids) == 5


class Broken(HashEncoder):
    """Forgets to normalise."""

    def encode(self, texts, kind="query"):  # type: ignore[no-untyped-def]  # noqa: ANN201
        return super().encode(texts, kind) * np.float32(2)


async def test_an_encoder_that_breaks_its_word_stores_nothing(opened: Open) -> None:
    store = opened(Broken())
    with pytest.raises(MemoryStoreError, match="length 2") as caught:
        await store.add(drafts(1))
    assert caught.value.code == "bad_vectors"
    assert (await store.stats()).memories == 0


# ---------------------------------------------------------------------------------------------- files at fault


def test_a_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE notes (text)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(MemoryStoreError, match="another program") as caught:
        SqliteMemory(MemoryConfig(path=path), HashEncoder())
    assert caught.value.code == "foreign_file"
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"not a database at all, just some text" * 40, b"SQLite format 3\0" + b"\xff" * 4080]
)
def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.db"
    path.write_bytes(content)
    with pytest.raises(MemoryStoreError, match="move the file away") as caught:
        SqliteMemory(MemoryConfig(path=path), HashEncoder())
    assert caught.value.code == "damaged"
    assert path.read_bytes() == content


async def test_a_damaged_page_is_refused_at_the_start(opened: Open, tmp_path: Path) -> None:
    store = opened()
    await store.add(drafts(60))
    await store.aclose()
    path = tmp_path / "m.db"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    with pytest.raises(MemoryStoreError) as caught:
        opened()
    assert caught.value.code == "damaged"


@pytest.mark.parametrize(
    ("change", "value"),
    [("vector = ?", b"\0" * 7), ("provenance = ?", "{"), ("created = ?", "yesterday"), ("modality = ?", "smell")],
)
async def test_a_damaged_row_is_an_error_and_not_a_gap(
    opened: Open, tmp_path: Path, change: str, value: object
) -> None:
    store = opened()
    await store.add(drafts(3))
    await store.aclose()
    connection = sqlite3.connect(tmp_path / "m.db")
    connection.execute(f"UPDATE memories SET {change}", (value,))
    connection.commit()
    connection.close()
    with pytest.raises(MemoryStoreError, match="damaged"):
        await opened().list()


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    Database(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(MemoryStoreError, match="update MIA") as caught:
        Database(path)
    assert caught.value.code == "newer_file"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "m.db", tmp_path):
        with pytest.raises(MemoryStoreError, match=r"memory\.path") as caught:
            SqliteMemory(MemoryConfig(path=path), HashEncoder())
        assert caught.value.code == "cannot_open"


def test_a_write_to_what_may_only_be_read(tmp_path: Path) -> None:
    database = Database(tmp_path / "m.db")
    with database.reading() as connection:
        connection.execute("PRAGMA query_only = ON")
    with pytest.raises(MemoryStoreError) as caught, database.writing() as connection:
        connection.execute("DELETE FROM memories")
    assert (caught.value.code, caught.value.retryable) == ("read_only", False)
    database.close()


def test_a_full_disk(tmp_path: Path) -> None:
    database = Database(tmp_path / "m.db")
    with database.reading() as connection:
        connection.execute("PRAGMA max_page_count = 1")
    with pytest.raises(MemoryStoreError) as caught, database.writing() as connection:
        connection.execute("CREATE TABLE big AS SELECT randomblob(200000) AS b")
    assert (caught.value.code, caught.value.retryable) == ("disk_full", True)
    with database.reading() as connection:
        assert connection.execute("SELECT count(*) FROM memories").fetchone() == (0,)
    database.close()


async def test_after_a_failed_write_the_store_is_as_before(opened: Open, tmp_path: Path) -> None:
    store = opened()
    await store.add(drafts(3))
    before = await store.recall(ASKED)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "m.db-wal").stat().st_size, limits[1]))
    try:
        with pytest.raises(MemoryStoreError, match="nothing that was acknowledged is lost") as caught:
            await store.add(drafts(50, start=10))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.retryable
    assert await store.recall(ASKED) == before
    assert {a.action for a in await store.add(drafts(50, start=10))} == {"stored"}
    assert (await store.stats()).memories == 53


async def test_a_file_that_another_program_keeps_locked(opened: Open, tmp_path: Path) -> None:
    store = opened(busy_s=0.05)
    await store.add(drafts(1))
    other = sqlite3.connect(tmp_path / "m.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(MemoryStoreError) as caught:
        await store.add(drafts(1, start=1))
    assert (caught.value.code, caught.value.retryable) == ("busy", True)
    assert len((await store.recall(ASKED)).ids) == 1  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    assert [a.action for a in await store.add(drafts(1, start=1))] == ["stored"]


async def test_closing_waits_for_what_is_under_way(opened: Open, tmp_path: Path) -> None:
    store = opened()
    writing = [asyncio.create_task(store.credit(["x"], True, f"k{n}")) for n in range(20)]
    await asyncio.sleep(0)
    await store.aclose()
    await store.aclose()
    assert not store.healthy
    assert len(await asyncio.gather(*writing)) == 20
    connection = sqlite3.connect(tmp_path / "m.db")
    assert connection.execute("SELECT count(*) FROM credited").fetchone() == (20,)
    connection.close()


async def test_a_cancelled_caller_leaves_the_store_usable(opened: Open) -> None:
    store = opened()
    task = asyncio.create_task(store.add(drafts(200)))
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # All or none, whenever the cancellation came; and sending the same runs again completes them.
    assert (await store.stats()).memories in (0, 200)
    await store.add(drafts(200))
    assert (await store.stats()).memories == 200
