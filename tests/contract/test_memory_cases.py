"""What went wrong in other memories, on both stores: junk that is stored again, clears, dangling ids, odd texts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from inference.agent import Agent
from inference.config import JudgeConfig, RunConfig
from inference.methods.mia import MiaMethod
from inference.runs import RunStore
from inference.search import Search
from inference.tools import SearchTool
from local_search.protocol import Vectors
from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.open import open_served
from memory_serve.protocol import MAX_BATCH
from memory_serve.store import SqliteMemory
from mia.chat.scripted import ScriptedChat
from mia.errors import DataError, MemoryStoreError
from mia.examples import Reference
from mia.types import Message, Question
from tests import postgres
from tests.doubles import FixedSearch, call, scripted
from tests.memories import draft

ASKED = Question(id="asked", text="Which river flows through the city of Vienna today?")
Open = Callable[..., SqliteMemory]


@pytest.fixture(params=["sqlite", "postgres"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens stores of one kind over one memory, or over another if `place` says so, closed at the end."""
    stores: list[SqliteMemory] = []
    schemas: dict[str, MemoryConfig] = {}

    def make(encoder: HashEncoder | None = None, place: str = "m", **settings: Any) -> SqliteMemory:
        given: dict[str, Any] = {"path": tmp_path / f"{place}.db"}
        if request.param == "postgres":
            base = schemas.setdefault(place, postgres.config())
            given = {"url": base.url, "postgres": base.postgres.model_dump()}
        stores.append(open_served(MemoryConfig.model_validate({**given, **settings}), encoder or HashEncoder()))
        return stores[-1]

    yield make
    for store in stores:
        await store.aclose()


async def test_a_memory_that_was_merged_from_one_that_is_not_there(opened: Open) -> None:
    store = opened(keep={"capacity": 5, "merge": 0.9})
    (added,) = await store.add([draft("Vienna")])
    (memory,) = await store.export()
    await store.clear()
    dangling = memory.model_copy(update={"merged_from": ("gone", "16")})
    assert [a.action for a in await store.load([dangling])] == ["stored"]
    assert [(c.id, c.known) for c in await store.credit(["gone", added.id, "16"], success=True)] == [
        ("gone", False), (added.id, True), ("16", False),
    ]  # fmt: skip
    assert await store.get("gone") is None
    assert (await store.compact()).after == 1
    (after,) = await store.export()
    assert after == dangling.model_copy(update={"uses": 1, "successes": 1})


async def test_clearing_one_namespace_clears_that_one_and_all_of_it(opened: Open) -> None:
    store = opened()
    one, two = store.scoped("u1"), store.scoped("u2")
    await one.add([draft(f"town{n}") for n in range(148)])
    await two.add([draft(f"town{n}") for n in range(5)])
    before = await one.recall(ASKED, k=100)
    assert len(before.ids) == 100
    assert await one.clear() == 148
    assert [(await s.stats()).memories for s in (one, two)] == [0, 5]
    assert (await one.recall(ASKED, k=100)).ids == ()
    assert (await two.recall(ASKED, k=100)).ids != ()
    undone = await one.undo()
    assert (undone.action, len(undone.memories)) == ("clear", 148)
    assert await one.recall(ASKED, k=100) == before


@pytest.mark.parametrize("odd", ["", "*", "%", "_", "u1' OR '1'='1", "u1\n"])
async def test_what_is_no_name_of_a_namespace_reaches_nothing(opened: Open, odd: str) -> None:
    store = opened()
    await store.scoped("u1").add([draft("Vienna")])
    with pytest.raises(DataError) as caught:
        await store.scoped(odd).clear()
    assert caught.value.code == "bad_namespace"
    assert (await store.scoped("u1").stats()).memories == 1


async def test_texts_that_a_database_cannot_hold_are_cleaned_alike(opened: Open) -> None:
    store, other = opened(), opened(place="other")
    odd = draft("Vienna", question="What is \0 in C?", workflow="1. search \0\n2. answer \ud83d", plan="\udc00",
                source_id="q\0", trajectory_id="t\0")  # fmt: skip
    (added,) = await store.add([odd])
    assert [a.action for a in await store.add([odd])] == ["known"]
    (memory,) = await store.export()
    assert (memory.question, memory.workflow, memory.plan) == (
        "What is \ufffd in C?", "1. search \ufffd\n2. answer \ufffd", "\ufffd",
    )  # fmt: skip
    assert (memory.source_id, memory.trajectory_id) == ("q\ufffd", "t\ufffd")
    assert [a.id for a in await other.load([memory])] == [added.id]
    assert await other.export() == [memory]


class Dying(HashEncoder):
    """Gives up after so many texts."""

    def __init__(self, dim: int, lives: int) -> None:
        super().__init__(dim)
        self._lives = lives

    def encode(self, texts: Sequence[str], kind: Literal["query", "passage"] = "query") -> Vectors:
        """See `Encoder`."""
        if self.encoded + len(texts) > self._lives:
            raise MemoryError("the encoder is out of memory")
        return super().encode(texts, kind)


@pytest.mark.parametrize("dim", [96, 64])
async def test_encoding_anew_that_breaks_off_goes_on_and_nothing_is_mixed(opened: Open, dim: int) -> None:
    old = opened()
    await old.add([draft(f"town{n}") for n in range(150)])
    await old.aclose()
    # The dimension may be the same: vectors are told apart by the name of their encoder.
    dying = Dying(dim, lives=100)
    dying.name = "another"
    with pytest.raises(MemoryError):
        opened(dying, reencode=True)
    assert dying.encoded == 64
    for encoder in (None, Dying(dim, 0)):  # half old, half new: nobody may compare them
        with pytest.raises(MemoryStoreError) as caught:
            opened(encoder)
        assert caught.value.code == "other_encoder"
        assert "memory.reencode" in caught.value.remedy
    whole = HashEncoder(dim)
    whole.name = "another"
    store = opened(whole, reencode=True)
    assert whole.encoded == 86
    found = await store.recall(Question(id="x", text="Which river flows through town7?"), k=1)
    assert [s.similarity for s in found.successes] == [pytest.approx(1.0, abs=1e-6)]
    assert len((await store.recall(ASKED, k=100)).ids) == 100


async def test_what_an_agent_recalls_it_does_not_store_again(opened: Open, tmp_path: Path) -> None:
    """Fifty nearly identical questions; the models copy all they see, and think of a fact that nobody told them."""
    memory = opened(keep={"merge": 0.9})
    known = draft("Vienna", question=ASKED.text, workflow="1. Search: Vienna", trust="reference")
    (first,) = await memory.add([known])

    def plan(messages: Sequence[Message]) -> str:
        told = messages[-1].text
        copied = f"<think>Zanzibar lies on the Nile. {told}</think>{told}\n1. Search Vienna"
        return copied if len(messages) == 1 else "no"

    def answer(messages: Sequence[Message]) -> str:
        thought = f"<think>Zanzibar lies on the Nile. {known.workflow}</think>"
        return thought + (call("Vienna") if len(messages) < 2 else "<answer>Danube</answer>")

    backend = FixedSearch()
    agent = Agent(
        RunConfig(judge=JudgeConfig(method="em")),
        scripted(ScriptedChat(always=plan), ScriptedChat(always=answer)),
        Search(backend, (SearchTool(backend, 3),)),
        MiaMethod(memory),
        RunStore(tmp_path / "runs"),
    )
    for n in range(50):
        text = ASKED.text if n % 2 else ASKED.text.replace("today", "now")
        run = await agent.ask(Question(id=f"ask{n}", text=text), Reference(answers=("Danube",)))
        assert (run.answer, run.recalled.ids, run.degraded) == ("Danube", (first.id,), ())
    (only,) = await memory.list(MAX_BATCH)
    assert (only.id, only.uses, only.successes) == (first.id, 50, 50)
    stored = f"{only.workflow}\n{only.plan}"
    for junk in ("Zanzibar", "Notes from earlier", "You are the planner", "This way worked", "<think>"):
        assert junk not in stored
