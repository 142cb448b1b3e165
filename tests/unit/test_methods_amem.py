"""A-Mem: notes, links and evolution, with numbers that are checked; and a read that returns what is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.methods.amem import AMemMethod, read_evolution
from mia.chat.scripted import ScriptedChat
from mia.errors import ParseError
from tests.methods import PROMPT, RIGHT, ROOM, UNJUDGED, WRONG, finished, notebook, shown

QUESTION = "Which river flows through the capital of Austria?"
SIMILAR = "Which river flows through the capital of Hungary?"
OTHER = "Who painted the Mona Lisa?"


def description(word: str) -> str:
    return json.dumps({"keywords": [word], "context": f"About {word}.", "tags": [f"{word}s"]})


def evolution(links: Any = (), tags: Any = (), updates: Any = ()) -> str:
    return json.dumps({"links": list(links), "tags": list(tags), "updates": list(updates)})


def amem(tmp_path: Path, *replies: Any) -> tuple[AMemMethod, ScriptedChat]:
    manager = ScriptedChat(replies)
    return AMemMethod(notebook(tmp_path, "amem"), ROOM, manager), manager


async def test_one_note_is_found_with_all_of_its_conversation(tmp_path: Path) -> None:
    method, manager = amem(tmp_path, description("river"))
    await method.learn(finished("1", QUESTION), UNJUDGED)
    assert await shown(method, SIMILAR) == [
        f'Question: {QUESTION}\nFirst words.\nCall: search {{"query": "capital of Austria"}}\n'
        "Result: Vienna is the capital of Austria.\nAnswer: Danube\n"
        "Context: About river.\nKeywords: river\nTags: rivers"
    ]
    (told,) = manager.history[0]
    assert "First words." in told.text
    assert PROMPT not in told.text
    assert len(manager.history) == 1  # with no neighbour nothing can evolve
    await method.aclose()


async def test_of_long_notes_the_description_stays(tmp_path: Path) -> None:
    manager = ScriptedChat([description("river"), description("capital"), evolution()])
    method = AMemMethod(notebook(tmp_path, "amem"), 1000, manager)
    await method.learn(finished("1", QUESTION, found="word " * 3000), RIGHT)
    await method.learn(finished("2", OTHER, found="word " * 3000), RIGHT)
    notes = await shown(method, QUESTION)
    assert len(notes) == 2
    assert all(len(note.encode()) <= 500 for note in notes)
    assert notes[0].endswith("Context: About river.\nKeywords: river\nTags: rivers")
    assert "First words." in notes[0]
    await method.aclose()


async def test_the_manager_is_not_told_the_outcome(tmp_path: Path) -> None:
    prompts = []
    for name, verdict in (("a", RIGHT), ("b", WRONG)):
        method, manager = amem(tmp_path / name, description("river"))
        await method.learn(finished("1", QUESTION), verdict)
        prompts.append(manager.history)
        await method.aclose()
    assert prompts[0] == prompts[1]


async def test_linked_notes_are_shown_after_the_likest(tmp_path: Path) -> None:
    method, manager = amem(
        tmp_path,
        description("painter"),
        *(description("river"), evolution([1])),
        *(description("capital"), evolution()),
    )
    await method.learn(finished("1", OTHER, answer="Leonardo"), RIGHT)
    await method.learn(finished("2", QUESTION), RIGHT)
    await method.learn(finished("3", "How many people live in Oslo?", answer="700,000"), RIGHT)
    assert f"[1] Question: {OTHER}" in manager.history[2][0].text
    first, second = await shown(method, QUESTION, k=1)
    assert first.startswith(f"Question: {QUESTION}")
    assert second.startswith(f"Question: {OTHER}")
    (only,) = await shown(method, QUESTION, k=1, asked="q-1")  # a link does not lead to the question's own note
    assert only.startswith(f"Question: {QUESTION}")
    assert len(await shown(method, QUESTION, k=3)) == 3  # linked notes that were found themselves stand once
    await method.aclose()


async def test_evolution_rewrites_the_neighbour_that_was_named(tmp_path: Path) -> None:
    update = {"note": 2, "context": "Painted by a polymath.", "tags": ["art", "Italy"]}
    method, manager = amem(
        tmp_path,
        *(description("painter"), description("capital"), evolution()),
        *(description("river"), evolution([2], ["water"], [update])),
    )
    await method.learn(finished("1", OTHER, answer="Leonardo"), RIGHT)
    await method.learn(finished("2", "Which is the capital of Austria?"), RIGHT)
    await method.learn(finished("3", QUESTION), RIGHT)
    told = manager.history[-1][0].text
    assert told.index("[1] Question: Which is the capital") < told.index(f"[2] Question: {OTHER}")
    painter, capital, river = await method.dump()
    assert (painter["context"], painter["tags"]) == ("Painted by a polymath.", ["art", "Italy"])
    assert painter["keywords"] == ["painter"]
    assert (capital["context"], capital["tags"]) == ("About capital.", ["capitals"])
    assert (river["links"], river["tags"]) == ([1], ["water"])
    assert (await shown(method, "polymath Italy", k=1))[0].startswith(f"Question: {OTHER}")  # found by what is new
    assert painter["sources"] == ["q-1", "q-3"]
    assert all(OTHER not in note for note in await shown(method, OTHER, asked="q-3"))
    await method.aclose()


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (evolution([0]), "0 is not the number of a note, there are 2"),
        (evolution([3]), "3 is not the number"),
        (evolution([-1]), "-1 is not the number"),
        (evolution(["1"]), "links.0"),
        (evolution([True]), "links.0"),
        (evolution((), (), [{"note": 3, "context": "x", "tags": ["y"]}]), "3 is not the number"),
        (evolution((), (), [{"note": 1, "context": "x", "tags": ["y"]}] * 2), "stands twice"),
        (evolution((), (), [{"note": 1, "context": "", "tags": ["y"]}]), "context"),
        (json.dumps({"links": [1]}), "tags"),
        ("should_evolve: yes", "JSON"),
    ],
)
def test_evolution_that_makes_no_sense_is_unreadable(reply: str, fault: str) -> None:
    with pytest.raises(ParseError, match=fault):
        read_evolution(reply, 2)


async def test_what_cannot_be_read_stores_nothing(tmp_path: Path) -> None:
    bad = evolution([7])
    method, manager = amem(tmp_path, description("a"), description("b"), bad, bad, bad, "no JSON", "no", "none")
    await method.learn(finished("1", OTHER), RIGHT)
    before = await method.dump()
    for _ in range(2):
        with pytest.raises(ParseError):
            await method.learn(finished("2", QUESTION), RIGHT)
        assert await method.dump() == before
    assert len(manager.history) == 8
    manager.enqueue(description("b"), evolution([1]))
    assert await method.learn(finished("2", QUESTION), RIGHT) is not None
    assert await method.learn(finished("2", QUESTION), RIGHT) is not None
    assert len(await method.dump()) == 2
    await method.aclose()
