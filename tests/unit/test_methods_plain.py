"""RAG over traces and summaries, and Memento: methods whose learning needs no model."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.methods.memento import MementoMethod
from inference.methods.notes import NotesMethod
from inference.methods.rag import SummaryMethod, TraceMethod
from mia.chat.scripted import ScriptedChat
from mia.errors import DataError, ParseError
from mia.types import Judgement, Plan
from tests.methods import RIGHT, ROOM, UNJUDGED, WRONG, failed, finished, notebook, shown

QUESTION = "Which river flows through the capital of Austria?"
SIMILAR = "Which river flows through the capital of Hungary?"
OTHER = "Who painted the Mona Lisa?"


async def test_traces_are_found_by_likeness_with_their_outcome(tmp_path: Path) -> None:
    method = TraceMethod(notebook(tmp_path), ROOM)
    await method.learn(finished("1", OTHER, answer="Leonardo", query="Mona Lisa"), WRONG)
    await method.learn(finished("2", QUESTION), RIGHT)
    await method.learn(finished("3", SIMILAR, answer=None), UNJUDGED)
    first, second, third = await shown(method, SIMILAR)
    assert first.startswith(f"[Outcome unknown] {SIMILAR}\nFirst words.")
    assert second == (
        f'[This way worked] {QUESTION}\nFirst words.\nCall: search {{"query": "capital of Austria"}}\n'
        "Result: Vienna is the capital of Austria.\nAnswer: Danube"
    )
    assert third.startswith(f"[This way failed] {OTHER}")
    assert await shown(method, SIMILAR, k=1) == [first]
    assert [note.split("]")[0] for note in await shown(method, SIMILAR, asked="q-3")] == [
        "[This way worked",
        "[This way failed",
    ]
    await method.aclose()


async def test_traces_that_are_shown_fit_their_room(tmp_path: Path) -> None:
    method = TraceMethod(notebook(tmp_path), 1000)
    for name in "123":
        await method.learn(finished(name, QUESTION, found="word " * 1000), RIGHT)
    notes = await shown(method, SIMILAR)
    assert len(notes) == 3
    assert sum(len(note.encode()) for note in notes) <= 1000 + 3 * len(" [cut]")
    assert all("First words." in note for note in notes)
    await method.aclose()


async def test_summaries_are_those_of_mia_without_the_answer(tmp_path: Path) -> None:
    method = SummaryMethod(notebook(tmp_path), ROOM, "extractive", ScriptedChat())
    await method.learn(finished("1", QUESTION, query="Danube Vienna"), RIGHT)
    assert await shown(method, SIMILAR) == [
        f"[This way worked] {QUESTION}\n1. Search: [answer] Vienna (found: Vienna)\n2. Answer from what was found."
    ]
    await method.aclose()


async def test_a_summary_that_cannot_be_read_stores_nothing(tmp_path: Path) -> None:
    method = SummaryMethod(notebook(tmp_path), ROOM, "model", ScriptedChat(["no steps", "1. Find the capital."]))
    with pytest.raises(ParseError):
        await method.learn(finished("1", QUESTION), RIGHT)
    assert await method.dump() == []
    await method.learn(finished("1", QUESTION), RIGHT)
    assert "1. Find the capital." in (await shown(method, SIMILAR))[0]
    await method.aclose()


async def test_cases_are_shown_successes_first(tmp_path: Path) -> None:
    method = MementoMethod(notebook(tmp_path), ROOM)
    await method.learn(finished("1", SIMILAR, plan="1. Search for Hungary."), WRONG)
    await method.learn(finished("2", QUESTION, plan="1. Search for Austria."), RIGHT)
    await method.learn(finished("3", OTHER, plan="1. Search for the painting."), RIGHT)
    assert await shown(method, SIMILAR, k=2) == [
        f"[This way worked] {QUESTION}\nPlan:\n1. Search for Austria.",
        f"[This way failed] {SIMILAR}\nPlan:\n1. Search for Hungary.",
    ]
    assert "Vienna" not in str(await method.dump())  # a case holds no trace
    await method.aclose()


async def test_a_case_has_all_plans_and_no_answer(tmp_path: Path) -> None:
    method = MementoMethod(notebook(tmp_path), ROOM)
    run = finished("1", QUESTION, plan="1. Find the capital.")
    run = run.model_copy(update={"plans": (*run.plans, Plan(text="1. Check the Danube.", revision=1))})
    await method.learn(run, RIGHT)
    (case,) = await method.dump()
    assert case["plan"] == "1. Find the capital.\n\nThen:\n1. Check the [answer]."
    await method.aclose()


async def test_no_plan_no_case_and_no_verdict_no_case_yet(tmp_path: Path) -> None:
    method = MementoMethod(notebook(tmp_path), ROOM)
    assert await method.learn(finished("1", QUESTION), RIGHT) is None
    run = finished("2", QUESTION, plan="1. Find it.")
    assert await method.learn(run, UNJUDGED) is None
    assert await method.dump() == []
    added = await method.learn(run, WRONG)
    assert added is not None
    assert (await method.dump())[0]["outcome"] == "incorrect"
    await method.aclose()


@pytest.mark.parametrize("kind", [TraceMethod, MementoMethod])
async def test_learning_is_done_once_and_a_failed_run_never(tmp_path: Path, kind: type[NotesMethod]) -> None:
    method = kind(notebook(tmp_path), ROOM)
    run = finished("1", QUESTION, plan="1. Find it.")
    first = await method.learn(run, RIGHT)
    before = await method.dump()
    again = await method.learn(run, Judgement(correct=False, method="em"))
    assert first is not None
    assert again is not None
    assert (first.action, again.action, again.id) == ("stored", "known", first.id)
    assert await method.dump() == before
    with pytest.raises(DataError) as caught:
        await method.learn(failed(finished("2", QUESTION)), WRONG)
    assert caught.value.code == "failed_run"
    assert await method.dump() == before
    await method.aclose()
