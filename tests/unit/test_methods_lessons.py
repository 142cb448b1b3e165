"""ReasoningBank and ExpeL: what the Manager is told, what its replies change, and replies that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.methods.expel import OVERFULL, ExpelMethod, Operation, read_operations, revise
from inference.methods.notebook import Changed, Item, New, Removed
from inference.methods.reasoningbank import ReasoningBankMethod
from mia.chat.scripted import ScriptedChat
from mia.errors import ModelError, ParseError
from tests.methods import RIGHT, ROOM, UNJUDGED, WRONG, finished, notebook, shown

QUESTION = "Which river flows through the capital of Austria?"
SIMILAR = "Which river flows through the capital of Hungary?"
OTHER = "Who painted the Mona Lisa?"


def lessons(*titles: str) -> str:
    items = [{"title": t, "description": f"{t} described.", "content": f"{t} in full."} for t in titles]
    return json.dumps({"why": "because", "items": items})


def operations(*made: dict[str, Any]) -> str:
    return json.dumps({"operations": list(made)})


def add(text: str) -> dict[str, Any]:
    return {"operation": "ADD", "text": text}


def bank(tmp_path: Path, manager: ScriptedChat) -> ReasoningBankMethod:
    return ReasoningBankMethod(notebook(tmp_path, "reasoningbank"), ROOM, manager)


def expel(tmp_path: Path, manager: ScriptedChat) -> ExpelMethod:
    return ExpelMethod(notebook(tmp_path, "expel"), ROOM, manager)


# ---------------------------------------------------------------------------------------------- ReasoningBank


async def test_a_failure_is_learned_as_a_failure(tmp_path: Path) -> None:
    manager = ScriptedChat([lessons("Check names"), lessons("Two steps", "Short queries")])
    method = bank(tmp_path, manager)
    await method.learn(finished("1", OTHER, answer="Raphael"), WRONG)
    await method.learn(finished("2", QUESTION), RIGHT)
    told = [history[0].text for history in manager.history]
    assert "failed to answer" in told[0]
    assert "correctly. Write down what can be learned from it" in told[1]
    assert "succe" not in told[0]
    assert [item["outcome"] for item in await method.dump()] == ["incorrect", "correct"]
    assert await shown(method, SIMILAR, k=1) == [
        f"[This way worked] Lessons from: {QUESTION}\nTwo steps: Two steps described. Two steps in full.\n"
        "Short queries: Short queries described. Short queries in full."
    ]
    assert (await shown(method, OTHER, k=1))[0].startswith(f"[This way failed] Lessons from: {OTHER}\nCheck names:")
    await method.aclose()


async def test_the_manager_reads_the_run_and_not_our_prompts(tmp_path: Path) -> None:
    manager = ScriptedChat([lessons("A")])
    method = bank(tmp_path, manager)
    await method.learn(finished("1", QUESTION), RIGHT)
    (told,) = manager.history[0]
    assert 'First words.\nCall: search {"query": "capital of Austria"}' in told.text
    assert "Answer the question with the help of tools" not in told.text
    await method.aclose()


async def test_lessons_do_not_name_the_answer(tmp_path: Path) -> None:
    method = bank(tmp_path, ScriptedChat([lessons("The Danube")]))
    await method.learn(finished("1", QUESTION, answer="the Danube"), RIGHT)
    assert "Danube" not in str(await method.dump())
    await method.aclose()


@pytest.mark.parametrize(
    "reply",
    [
        "The agent did well.",
        "",
        "<think>" + lessons("A"),
        lessons("A") + " That is all.",
        lessons("A", "B", "C", "D"),
        lessons(),
        json.dumps({"why": "x", "items": [{"title": "A", "description": "B"}]}),
        json.dumps({"why": "x", "items": [{"title": "", "description": "B", "content": "C"}]}),
    ],
)
async def test_unreadable_lessons_are_asked_for_again_and_then_an_error(tmp_path: Path, reply: str) -> None:
    manager = ScriptedChat([reply, reply, lessons("Read at last"), reply, reply, reply])
    method = bank(tmp_path, manager)
    assert await method.learn(finished("1", QUESTION), RIGHT) is not None
    assert "could not be read" in manager.history[1][0].text
    before = await method.dump()
    with pytest.raises(ParseError, match="Manager model") as caught:
        await method.learn(finished("2", QUESTION), RIGHT)
    assert caught.value.code == "no_note"
    assert len(manager.history) == 6
    assert await method.dump() == before
    manager.enqueue(lessons("Later"))
    again = await method.learn(finished("2", QUESTION), RIGHT)
    assert again is not None
    assert again.action == "stored"
    await method.aclose()


@pytest.mark.parametrize("make", [bank, expel])
async def test_no_verdict_no_lesson_yet_and_a_dead_manager_is_an_error(tmp_path: Path, make: Any) -> None:
    method = make(tmp_path, ScriptedChat([ModelError("no endpoint")]))
    assert await method.learn(finished("1", QUESTION), UNJUDGED) is None
    with pytest.raises(ModelError):
        await method.learn(finished("1", QUESTION), RIGHT)
    assert await method.dump() == []
    await method.aclose()


# ---------------------------------------------------------------------------------------------- ExpeL


async def test_rules_and_the_likest_successes_are_shown(tmp_path: Path) -> None:
    manager = ScriptedChat(
        [
            operations(add("Search the middle step first."), add("Keep queries short.")),
            operations({"operation": "AGREE", "rule": 2}),
            operations({"operation": "EDIT", "rule": 2, "text": "Search for the unnamed thing first."}),
        ]
    )
    method = expel(tmp_path, manager)
    await method.learn(finished("1", QUESTION), RIGHT)
    await method.learn(finished("2", OTHER, answer="Raphael"), WRONG)
    rules, *traces = await shown(method, SIMILAR)
    assert rules.endswith("1. Keep queries short.\n2. Search the middle step first.")
    assert [trace.splitlines()[0] for trace in traces] == [f"[This way worked] {QUESTION}"]  # never a failure
    await method.learn(finished("3", SIMILAR), RIGHT)
    assert "1. Keep queries short.\n2. Search the middle step first." in manager.history[2][0].text
    # EDIT 2 is the second of the list as it was shown: the rule that was added first (the original took the last one).
    assert [(i["text"], i["votes"]) for i in await method.dump() if "votes" in i] == [
        ("Search for the unnamed thing first.", 3),
        ("Keep queries short.", 3),
    ]
    assert len(await shown(method, QUESTION, k=1)) == 2
    await method.aclose()


async def test_success_and_failure_are_told_apart_and_contrasted(tmp_path: Path) -> None:
    manager = ScriptedChat(always=operations())
    method = expel(tmp_path, manager)
    first = finished("1", QUESTION, answer="Rhine")
    await method.learn(first, WRONG)
    assert "Failed trial" in manager.history[0][0].text
    assert "Successful trial" not in manager.history[0][0].text
    await method.learn(finished("1", QUESTION).model_copy(update={"id": "run-again"}), RIGHT)
    told = manager.history[1][0].text
    assert told.index("Successful trial") < told.index("Answer: Danube") < told.index("Failed trial")
    assert told.index("Failed trial") < told.index("Answer: Rhine")
    await method.learn(finished("2", OTHER), RIGHT)
    assert "Failed trial" not in manager.history[2][0].text
    await method.aclose()


async def test_a_rule_that_stems_from_the_question_is_not_shown_to_it(tmp_path: Path) -> None:
    method = expel(tmp_path, ScriptedChat([operations(add("A rule.")), operations({"operation": "AGREE", "rule": 1})]))
    await method.learn(finished("1", QUESTION), RIGHT)
    await method.learn(finished("2", OTHER), RIGHT)
    assert "A rule." in (await shown(method, SIMILAR))[0]
    assert "A rule." in (await shown(method, OTHER, asked="q-2"))[0]  # a vote is no content
    assert all("A rule." not in note for note in await shown(method, QUESTION, asked="q-1"))
    await method.aclose()


async def test_rules_do_not_name_the_answer(tmp_path: Path) -> None:
    method = expel(tmp_path, ScriptedChat([operations(add("Rivers in capitals: the Danube."))]))
    await method.learn(finished("1", QUESTION, answer="Danube"), RIGHT)
    assert "Rivers in capitals: the [answer]." in (await shown(method, SIMILAR))[0]
    await method.aclose()


def rule(number: int, text: str, votes: int) -> Item:
    return Item(number, "rule", (), {"text": text, "votes": votes})


def op(operation: Any, number: int | None = None, text: str = "") -> Operation:
    return Operation(operation=operation, rule=number, text=text)


def test_votes_are_counted_as_in_expel() -> None:
    rules = [rule(7, "A", 3), rule(4, "B", 2), rule(9, "C", 1)]
    changes = revise(rules, [op("REMOVE", 3), op("AGREE", 1), op("EDIT", 2, "B better"), op("ADD", None, "D")])
    assert changes == [
        Changed(7, {"text": "A", "votes": 4}, rewritten=False),
        Changed(4, {"text": "B better", "votes": 3}, rewritten=True),
        Removed(9),
        New("rule", {"text": "D", "votes": 2}),
    ]


def test_a_rule_is_not_there_twice() -> None:
    rules = [rule(1, "Keep it short.", 2), rule(2, "Look twice", 2)]
    assert revise(rules, [op("ADD", None, "keep it  SHORT"), op("ADD", None, "New"), op("ADD", None, "new.")]) == [
        New("rule", {"text": "New", "votes": 2})
    ]
    assert revise(rules, [op("EDIT", 2, "Keep it short")]) == [
        Changed(1, {"text": "Keep it short.", "votes": 3}, rewritten=False)
    ]


def test_in_an_overfull_list_a_removal_weighs_three() -> None:
    rules = [rule(n, f"R{n}", 3) for n in range(1, OVERFULL + 1)]
    assert revise(rules, [op("REMOVE", 2)]) == [Removed(2)]
    assert revise(rules[:-1], [op("REMOVE", 2)]) == [Changed(2, {"text": "R2", "votes": 2}, rewritten=False)]


async def test_a_full_list_says_so(tmp_path: Path) -> None:
    manager = ScriptedChat([operations(*(add(f"Rule {n}{m}") for m in "abcd")) for n in range(5)] + [operations()])
    method = expel(tmp_path, manager)
    for n in range(6):
        await method.learn(finished(str(n), QUESTION), RIGHT)
    assert ["The list is full" in history[0].text for history in manager.history] == [False] * 5 + [True]
    await method.aclose()


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (operations({"operation": "EDIT", "rule": 3, "text": "x"}), "3 is not the number of a rule, there are 2"),
        (operations({"operation": "AGREE", "rule": 0}), "rule"),
        (operations({"operation": "AGREE", "rule": -1}), "rule"),
        (operations({"operation": "AGREE", "rule": "1"}), "rule"),
        (operations({"operation": "AGREE", "rule": 1}, {"operation": "REMOVE", "rule": 1}), "two operations"),
        (operations({"operation": "EDIT", "rule": 1}), "text"),
        (operations({"operation": "EDIT", "text": "x"}), "rule"),
        (operations({"operation": "ADD", "rule": 1, "text": "x"}), "rule"),
        (operations({"operation": "ADD", "text": "  "}), "text"),
        (operations({"operation": "AGREE", "rule": 1, "text": "x"}), "text"),
        (operations({"operation": "DROP", "rule": 1}), "operation"),
        (operations(*(add(str(n)) for n in range(5))), "operations"),
        ("ADD: a rule", "JSON"),
    ],
)
def test_operations_that_make_no_sense_are_unreadable(reply: str, fault: str) -> None:
    with pytest.raises(ParseError, match=fault):
        read_operations(reply, 2)


@given(st.data())
def test_revising_keeps_votes_positive_and_numbers_known(data: st.DataObject) -> None:
    rules = [rule(n, f"R{n}", data.draw(st.integers(1, 4))) for n in range(1, data.draw(st.integers(0, 30)) + 1)]
    places = data.draw(st.lists(st.integers(1, max(1, len(rules))), unique=True, max_size=4)) if rules else []
    kinds = st.sampled_from(["AGREE", "REMOVE", "EDIT"])
    made = [(kind, place) for place in places for kind in [data.draw(kinds)]]
    changes = revise(rules, [op(kind, place, f"edit {place}" if kind == "EDIT" else "") for kind, place in made])
    changed = [change.number for change in changes if isinstance(change, Changed | Removed)]
    assert sorted(changed) == sorted(places)
    assert all(change.data["votes"] > 0 for change in changes if isinstance(change, Changed))  # type: ignore[operator]
