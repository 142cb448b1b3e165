"""The stub that checks what a model that sees is sent: each thing that must not happen is refused."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from mia.prompts import Trusted, prompt
from scripts.bench.stub_vision import OPEN_ANSWER, Checker, read_questions
from tests.doubles import picture
from web_tools.stub import Seen

FIXTURE = Path(__file__).resolve().parents[1] / "fixtures" / "datasets" / "livevqa"
RED, BLUE = picture("red", (2, 1)), picture("blue", (2, 1))
SEARCH = '<tool_call>{"name": "image_search", "arguments": {"picture": 1}}</tool_call>'


def user(words: str, *images: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    return {"role": "user", "content": [{"type": "text", "text": words}, *parts]}


def said(words: str) -> dict[str, Any]:
    return {"role": "assistant", "content": words}


def task(question: str = "Which town is shown?", tools: str = "- image_search(picture, query): finds") -> str:
    return prompt("executor/task").render(tools=Trusted(tools), plan="", question=question)


def respond(checker: Checker, *messages: dict[str, Any]) -> tuple[int, str]:
    """Status, and the reply or the fault."""
    body = json.dumps({"model": "stub", "messages": messages, "stop": ["<tool_response>"]}).encode()
    answer = checker.respond(Seen("POST", "/v1/chat/completions", {}, body, time.monotonic()))
    told = answer.body
    return answer.status, told["choices"][0]["message"]["content"] if answer.status == 200 else told["error"]["message"]


@pytest.fixture
def checker() -> Checker:
    return Checker(read_questions(FIXTURE), {"News-n1-1": "Larkton"})


FOUND = user("Results for image_search:\nPicture 1: Picture from Larkton Post (News).", RED)


def test_it_searches_twice_and_answers_from_its_table(checker: Checker) -> None:
    first = user(task(), RED)
    assert respond(checker, first) == (200, SEARCH)
    status, second = respond(checker, first, said(SEARCH), FOUND)
    assert (status, second.count("image_search"), second.count('"search"')) == (200, 1, 1)
    refused = user("Not run: image_search can be used once for each question.")
    turns = [said(SEARCH), FOUND, said(second), refused]
    assert respond(checker, first, *turns) == (200, "<answer>Larkton</answer>")
    other = user(task("Where was she born?"), RED)
    assert respond(checker, other, *turns) == (200, f"<answer>{OPEN_ANSWER}</answer>")
    letters = user(
        task("Where was she born?\n\nA. Larkton\nB. Fogham\n\nAnswer with the letter of the right option."), RED
    )
    assert respond(checker, letters, *turns) == (200, "<answer>A</answer>")
    assert respond(checker, user(task(tools="- search(query): finds"), RED)) == (200, "<answer>Larkton</answer>")
    assert checker.report() == {
        "requests": {"executor": 6},
        "pictures_seen": 2,
        "image_searches": 1,
        "second_searches_refused": 2,
        "faults": [],
    }


def test_a_caption_names_what_was_seen(checker: Checker) -> None:
    text = prompt("manager/caption").render(question="Which town is shown?")
    assert respond(checker, user(text, RED)) == (200, "A picture of 2 by 1 pixels.")


PLAN = prompt("planner/plan").render(tools="", memories="", question="Which town is shown?", caption="")


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([user(task())], "0 pictures in the first message"),
        ([user(task(), RED, RED)], "2 pictures in the first message"),
        ([user(task(), BLUE)], "not the picture of News-n1-1"),
        ([user(task(), picture("red", (4, 1)))], "not the picture of News-n1-1"),
        ([user(task(), "https://example.org/red.png")], "no base64 data URL of a picture"),
        ([user(task("What else?"), RED)], "no question of the files"),
        ([user(task(), RED), said(SEARCH), user("Nothing was found.")], "image search found no picture"),
        ([user(task(), RED), said(SEARCH), FOUND, said(SEARCH), FOUND], "image search was run 2 times"),
        ([user(task(), RED), said(SEARCH), FOUND, said(SEARCH), user("Vienna")], "was not refused"),
        ([user(PLAN, RED)], "the Planner was sent a picture"),
        ([user(PLAN + RED)], "the Planner was sent a picture"),
        ([user("Write a poem.")], "no rule for this prompt"),
    ],
)
def test_what_is_not_right_is_refused_and_kept(checker: Checker, messages: list[dict[str, Any]], fault: str) -> None:
    status, told = respond(checker, *messages)
    assert status == 400
    assert fault in told
    assert [fault in kept for kept in checker.faults] == [True]
