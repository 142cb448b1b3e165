"""What every memory store must do: SQLite, PostgreSQL, and the client over ASGI and over a real socket."""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_serve.app import create_app
from memory_serve.client import MemoryClient
from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.protocol import MAX_BATCH, MAX_CHARACTERS, MAX_K, Draft, MemoryStore, ServedStore
from memory_serve.store import SqliteMemory
from mia.errors import DataError, MemoryStoreError, MiaError
from mia.types import Outcome, Question, ScoredMemory
from tests import postgres

Kind = Literal["core", "postgres", "asgi", "socket"]
KINDS: tuple[Kind, ...] = ("core", "postgres", "asgi", "socket")


@contextmanager
def serving(store: ServedStore) -> Iterator[str]:
    """The service on a real socket, in a thread; gives its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(store), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def in_postgres() -> SqliteMemory:
    """A store in a new schema of a real database."""
    config = postgres.config()  # skips the test where there is none
    from memory_serve.postgres import PostgresMemory

    return PostgresMemory(config, HashEncoder())


@asynccontextmanager
async def opening(kind: Kind, folder: Path) -> AsyncIterator[tuple[MemoryStore, SqliteMemory]]:
    """A store of a kind, and the core behind it."""
    core = in_postgres() if kind == "postgres" else SqliteMemory(MemoryConfig(path=folder / "m.db"), HashEncoder())
    try:
        if kind in ("core", "postgres"):
            yield core, core
        elif kind == "asgi":
            client = MemoryClient("http://memory", httpx.ASGITransport(create_app(core)), retries=0)
            yield client, core
            await client.aclose()
        else:
            with serving(core) as url:
                client = MemoryClient(url, retries=0)
                yield client, core
                await client.aclose()
    finally:
        await core.aclose()


@pytest.fixture(params=KINDS)
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[MemoryStore, SqliteMemory]]:
    async with opening(request.param, tmp_path) as pair:
        yield pair


@pytest.fixture
def store(both: tuple[MemoryStore, SqliteMemory]) -> MemoryStore:
    return both[0]


def draft(town: str, outcome: Outcome = "correct", **fields: Any) -> Draft:
    given = {"source_id": f"q-{town}", "trajectory_id": f"t-{town}-{outcome}", "workflow": f"1. Search: {town}"}
    question = f"Which river flows through {town}?"
    return Draft.model_validate({"question": question, "outcome": outcome, **given, **fields})


ASKED = Question(id="asked", text="Which river flows through Vienna?")


def towns(scored: Sequence[ScoredMemory]) -> list[str]:
    return [s.memory.source_id.removeprefix("q-") for s in scored]


# ---------------------------------------------------------------------------------------------- recall


async def test_two_of_each_outcome_the_best_first(store: MemoryStore) -> None:
    names = ("Vienna", "Graz", "Linz", "Wels")
    await store.add([draft(name) for name in names])
    await store.add([draft(name, "incorrect") for name in names[:3]])
    await store.add([draft("Enns", "unjudged")])
    found = await store.recall(ASKED)
    assert [len(part) for part in (found.successes, found.failures, found.unjudged)] == [2, 2, 1]
    assert towns(found.successes)[0] == towns(found.failures)[0] == "Vienna"
    assert [s.memory.outcome for s in found.failures] == ["incorrect", "incorrect"]
    for part in (found.successes, found.failures):
        assert [s.score for s in part] == sorted((s.score for s in part), reverse=True)
    best = found.successes[0]
    assert best.similarity == pytest.approx(1.0, abs=1e-6)
    assert best.terms == {"similarity": pytest.approx(0.7, abs=1e-6), "value": 0.0, "frequency": pytest.approx(0.3)}
    assert best.score == pytest.approx(sum(best.terms.values()))
    assert len((await store.recall(ASKED, k=1)).ids) == 3


async def test_score_after_credit_by_hand(store: MemoryStore) -> None:
    proven, fresh = await store.add([draft("Vienna"), draft("Graz")])
    for success in (True, True, False):
        await store.credit([proven.id], success)
    found = {s.memory.id: s for s in (await store.recall(ASKED)).successes}
    # 2 successes in 3 uses: value 2/4, frequency 1/4; similarity is 1 for the one and 0 for the other of two.
    assert found[proven.id].score == pytest.approx(0.7 + 0.3 * 0.5 + 0.3 * 0.25, abs=1e-6)
    assert found[fresh.id].score == pytest.approx(0.0 + 0.0 + 0.3, abs=1e-6)


async def test_a_question_never_sees_its_own_memory(store: MemoryStore) -> None:
    await store.add([draft("Vienna", source_id="asked"), draft("Vienna", "incorrect", source_id="asked")])
    assert (await store.recall(ASKED)).ids == ()
    await store.add([draft("Graz"), draft("Linz")])
    found = (await store.recall(ASKED)).successes
    assert sorted(towns(found)) == ["Graz", "Linz"]
    # Nor does it take part in the normalisation: one of the two left has 0, the other 1.
    assert sorted(s.terms["similarity"] for s in found) == pytest.approx([0.0, 0.7], abs=1e-6)
    # An unknown source keeps nothing out.
    assert len((await store.recall(ASKED.model_copy(update={"id": ""}))).successes) == 2
    assert len((await store.recall(ASKED.model_copy(update={"id": "else"}), k=3)).successes) == 3


async def test_only_the_bucket_of_the_question_is_looked_at(store: MemoryStore) -> None:
    await store.add([
        draft("Vienna", question="Who was born in Vienna?"),
        draft("Graz", modality="text-image", caption="a bridge"),
        draft("Linz"),
    ])  # fmt: skip
    assert towns((await store.recall(ASKED)).successes) == ["Linz"]
    pictured = ASKED.model_copy(update={"images": ("data:image/png;base64,AAAA",)})
    assert towns((await store.recall(pictured)).successes) == ["Graz"]
    assert towns((await store.recall(ASKED.model_copy(update={"caption": "a bridge"}))).successes) == ["Graz"]


async def test_captions_count_a_fifth(store: MemoryStore) -> None:
    await store.add([
        draft("Vienna", modality="text-image", caption="a red bridge", trajectory_id="1"),
        draft("Vienna", modality="text-image", caption="an old man", trajectory_id="2"),
        draft("Vienna", modality="text-image", trajectory_id="3"),
    ])  # fmt: skip
    found = (await store.recall(ASKED.model_copy(update={"caption": "a red bridge"}), k=3)).successes
    similar = {s.memory.caption: s.similarity for s in found}
    assert similar["a red bridge"] == pytest.approx(1.0, abs=1e-6)
    assert similar[""] == pytest.approx(1.0, abs=1e-6)
    one, other = HashEncoder().encode(["a red bridge", "an old man"])
    assert similar["an old man"] == pytest.approx(0.8 + 0.2 * float(one @ other), abs=1e-6)


async def test_nothing_remembered_nothing_recalled(store: MemoryStore) -> None:
    assert (await store.recall(ASKED)).ids == ()


# ---------------------------------------------------------------------------------------------- adding, reading


async def test_what_is_stored_comes_back_whole(store: MemoryStore) -> None:
    sent = draft("Vienna", plan="1. plan", provenance={"summary": "extractive", "judge": "em"})
    (added,) = await store.add([sent])
    memory = await store.get(added.id)
    assert memory is not None
    assert (memory.id, memory.uses, memory.successes, memory.category) == (added.id, 0, 0, "location")
    assert Draft.model_validate(memory.model_dump(include=set(Draft.model_fields))) == sent
    assert await store.list() == [memory]
    assert (await store.recall(ASKED)).successes[0].memory == memory.memory


async def test_the_newest_is_listed_first(store: MemoryStore) -> None:
    ids = [added.id for added in await store.add([draft(f"town{n}") for n in range(7)])]
    assert [m.id for m in await store.list()] == ids[::-1]
    assert [m.id for m in await store.list(limit=3, offset=2)] == ids[::-1][2:5]
    assert await store.list(limit=3, offset=7) == []


async def test_one_result_for_each_draft_in_order(store: MemoryStore) -> None:
    sent = [
        draft("Vienna"),
        draft("Graz"),
        draft("Vienna"),
        draft("Vienna", trajectory_id="", workflow="1. longer way"),
    ]
    added = await store.add(sent)
    assert [a.action for a in added] == ["stored", "stored", "known", "kept"]
    assert added[0].id == added[2].id == added[3].id != added[1].id
    assert await store.add([]) == []


@pytest.mark.parametrize("fields", [{"workflow": " \n"}, {"question": "\t"}])
async def test_a_blank_draft_refuses_the_batch(store: MemoryStore, fields: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=f"draft 1 has a blank {next(iter(fields))}"):
        await store.add([draft("Vienna"), draft("Graz", **fields)])
    assert (await store.stats()).memories == 0


async def test_forgetting(store: MemoryStore) -> None:
    first, second = await store.add([draft("Vienna"), draft("Graz")])
    assert await store.delete([]) == 0
    assert await store.delete([first.id, first.id, "unknown", ""]) == 1
    assert await store.get(first.id) is None
    assert (await store.recall(ASKED)).ids == (second.id,)
    assert await store.delete([first.id]) == 0


async def test_stats(store: MemoryStore) -> None:
    await store.add([draft("Vienna"), draft("Graz", "incorrect"), draft("Linz", question="Who was born in Linz?")])
    stats = await store.stats()
    assert stats.memories == 3
    assert stats.by_outcome == {"correct": 2, "incorrect": 1, "unjudged": 0}
    assert stats.by_bucket == {"text-only/location": 2, "text-only/human": 1}
    assert stats.encoder == "hash-64-0"


@pytest.mark.parametrize("memory_id", ["", "unknown", "..", "a/b", "a?b=c", "%2e", "ü", "\ud83d", "x" * 5000])
async def test_an_unknown_id_is_none(store: MemoryStore, memory_id: str) -> None:
    await store.add([draft("Vienna")])
    assert await store.get(memory_id) is None
    assert await store.delete([memory_id]) == 0
    assert [c.known for c in await store.credit([memory_id], success=True)] == [False]


# ---------------------------------------------------------------------------------------------- credit


async def test_credit(store: MemoryStore) -> None:
    one, two = await store.add([draft("Vienna"), draft("Graz")])
    credited = await store.credit([one.id, "16", one.id, "00000000-0000-0000-0000-000000000000"], success=True)
    assert [(c.id, c.known) for c in credited] == [
        (one.id, True), ("16", False), ("00000000-0000-0000-0000-000000000000", False),
    ]  # fmt: skip
    assert await store.credit([], success=True) == []
    await store.credit([one.id, two.id], success=False)
    counts = {m.id: (m.uses, m.successes) for m in await store.list()}
    assert counts == {one.id: (2, 1), two.id: (1, 0)}


# ---------------------------------------------------------------------------------------------- bounds and errors


async def test_bounds_are_the_same_everywhere(store: MemoryStore) -> None:
    for k in (0, -1, MAX_K + 1):
        with pytest.raises(DataError, match=f"k is {k}"):
            await store.recall(ASKED, k=k)
    with pytest.raises(DataError, match="blank"):
        await store.recall(Question(id="1", text="  "))
    with pytest.raises(DataError, match="characters"):
        await store.recall(Question(id="1", text="x" * (MAX_CHARACTERS + 1)))
    with pytest.raises(DataError, match="characters"):
        await store.add([draft("Vienna", plan="x" * MAX_CHARACTERS)])
    with pytest.raises(DataError, match=f"{MAX_BATCH + 1} drafts"):
        await store.add([draft("Vienna")] * (MAX_BATCH + 1))
    with pytest.raises(DataError, match=f"{MAX_BATCH + 1} ids"):
        await store.credit(["x"] * (MAX_BATCH + 1), success=True)
    with pytest.raises(DataError):
        await store.delete("abc")
    for limit, offset in ((0, 0), (MAX_BATCH + 1, 0), (1, -1), (1, 2**63)):
        with pytest.raises(DataError, match=f"limit {limit}, offset {offset}"):
            await store.list(limit, offset)
    assert (await store.stats()).memories == 0


async def test_errors_keep_their_class_code_and_remedy(both: tuple[MemoryStore, SqliteMemory]) -> None:
    store, core = both
    await core.aclose()
    calls = [store.recall(ASKED), store.add([draft("Vienna")]), store.credit(["x"], True), store.get("x"),
             store.list(), store.delete(["x"]), store.stats()]  # fmt: skip
    for call in calls:
        with pytest.raises(MemoryStoreError) as caught:
            await call
        error: MiaError = caught.value
        assert (error.code, error.message, error.remedy) == ("closed", "the memory is closed", "open it again")
        assert error.status == 503


# ---------------------------------------------------------------------------------------------- many tasks


async def test_sixteen_tasks_at_once(store: MemoryStore) -> None:
    (shared,) = await store.add([draft("Vienna", trajectory_id="shared")])
    right = []

    async def work(number: int) -> None:
        chance = random.Random(number)
        for turn in range(6):
            (added,) = await store.add([draft(f"town{number}x{turn}")])
            assert added.action == "stored"
            success = chance.random() < 0.5
            right.append(success)
            await asyncio.gather(store.credit([shared.id, added.id], success), store.recall(ASKED))

    await asyncio.gather(*(work(number) for number in range(16)))
    memories = await store.list(limit=MAX_BATCH)
    assert len(memories) == len({m.source_id for m in memories}) == 97
    counts = {m.id: (m.uses, m.successes) for m in memories}
    assert counts.pop(shared.id) == (96, sum(right))
    assert sorted(counts.values()) == sorted((1, int(success)) for success in right)
    assert len((await store.recall(ASKED, k=MAX_K)).successes) == 97


# ---------------------------------------------------------------------------------------------- any text

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=12)


@settings(max_examples=40, deadline=None)
@given(
    texts=st.tuples(*[ANY_TEXT] * 6),
    kind=st.sampled_from(("core", "asgi", *([] if postgres.MISSING else ["postgres"]))),
)
def test_any_text_comes_back_as_unicode(texts: tuple[str, ...], kind: Kind) -> None:
    question, caption, workflow, plan, source_id, note = texts

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with opening(kind, Path(folder)) as (store, _):
                (added,) = await store.add([
                    Draft(question="Q" + question, caption=caption, workflow="W" + workflow, plan=plan,
                          outcome="correct", source_id=source_id, trajectory_id=source_id, provenance={note: note})
                ])  # fmt: skip
                memory = await store.get(added.id)
                assert memory is not None
                stored = (memory.question[1:], memory.caption, memory.workflow[1:], memory.plan, memory.source_id)
                assert stored == tuple(unicode(text) for text in texts[:5])
                assert memory.provenance == {unicode(note): unicode(note)}
                recalled = await store.recall(Question(id="x" + source_id, text="Q" + question, caption=caption))
                assert len(recalled.ids) == (memory.modality == recalled_modality(caption))
                own = await store.recall(Question(id=source_id, text="Q" + question, caption=caption))
                assert own.ids == (recalled.ids if not source_id else ())

    asyncio.run(run())


def recalled_modality(caption: str) -> str:
    return "text-image" if caption.strip() else "text-only"


def unicode(text: str) -> str:
    """Surrogate pairs joined, lone ones and NUL replaced, one character at a time."""
    out = ""
    for unit in (c for char in text for c in halves(char)):
        if 0xDC00 <= unit <= 0xDFFF and out and 0xD800 <= ord(out[-1]) <= 0xDBFF:
            out = out[:-1] + chr(0x10000 + ((ord(out[-1]) - 0xD800) << 10) + unit - 0xDC00)
        else:
            out += chr(unit)
    return "".join("\ufffd" if c == "\0" or 0xD800 <= ord(c) <= 0xDFFF else c for c in out)


def halves(char: str) -> tuple[int, ...]:
    """UTF-16 units of a character."""
    code = ord(char) - 0x10000
    return (ord(char),) if code < 0 else (0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF))
