"""A question with a picture from end to end: caption, memory, plan, image search, answer, reflection, over real HTTP.

Planner and Executor are endpoints that record what they are sent; once the Executor is a tiny random Qwen2.5-VL.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from inference.agent import Agent
from inference.config import RunConfig
from inference.runs import Run, RunStore
from mia.cli import main
from mia.config import load
from mia.examples import Reference
from mia.pictures import from_data_url
from mia.types import Question
from scripts.tiny_vision import QWEN_CONTROL, qwen_vl
from tests.doubles import call, picture
from tests.endpoints import VLLM, opened, part, pictures, strict, text
from web_tools.stub import Server, serving

RED, GREEN = (255, 0, 0), (0, 128, 0)
CAPTION = "A red tower of iron by a river."


def image_search(**arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': 'image_search', 'arguments': arguments})}</tool_call>"


def executor(body: dict[str, Any]) -> str:
    """Searches pictures, tries it a second time together with a text search, answers."""
    if part(body) == "caption":
        return CAPTION
    turn: int = sum(message["role"] == "assistant" for message in body["messages"])
    replies = [image_search(), image_search(picture=1) + call("Vienna"), "<answer>Danube Tower</answer>"]
    return replies[turn]


def planner(body: dict[str, Any]) -> str:
    return {"plan": "1. Find the tower by its picture.", "reflect": "No, it is supported."}[part(body)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus index, and an image cache for the questions q1 and q2."""
    row = {"id": "1", "contents": '"Vienna"\nVienna, the capital of Austria, has the Danube Tower.'}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    made = ["index", "build", str(tmp_path / "corpus.jsonl"), "--out", str(tmp_path / "index"), "--engines", "bm25"]
    assert main(made) == 0
    for name in ("q1", "q2"):
        kept = tmp_path / "images" / name
        kept.mkdir(parents=True)
        meta = {"search_results": [{"title": "Danube Tower"}], "image_urls": ["https://example.org/t.png"]}
        (kept / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        (kept / "img_000.png").write_bytes(from_data_url(picture("green")))
    return tmp_path


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    with ExitStack() as stack:
        yield (
            stack.enter_context(serving(strict(VLLM, planner))),
            stack.enter_context(serving(strict(VLLM, executor))),
        )


def config(folder: Path, planner_url: str, executor_url: str, **more: Any) -> RunConfig:
    flags = {
        "models.default.url": f"{planner_url}/v1",
        "models.executor.url": executor_url,
        "search.index": str(folder / "index"),
        "search.mode": "bm25",
        "search.images": 3,
        "web.images.kind": "cache",
        "web.images.path": str(folder / "images"),
        "web.cache.kind": "off",
        "memory.path": str(folder / "memory.db"),
        "runs": str(folder / "runs"),
    }
    return load(RunConfig, None, {**flags, **more})


def question(name: str, *images: str) -> Question:
    return Question(id=name, text="Which tower is this?", images=images)


async def ask(settings: RunConfig, asked: Question) -> Run:
    agent = Agent.open(settings)
    try:
        return await agent.ask(asked, Reference(answers=("Danube Tower",)))
    finally:
        await agent.aclose()


def bodies(server: Server) -> list[dict[str, Any]]:
    return [seen.json for seen in server.seen if seen.method == "POST"]


def colours(message: dict[str, Any]) -> list[Any]:
    near = {(254, 0, 0): RED, (0, 128, 1): GREEN}  # as JPEG has them
    found = [opened(url).convert("RGB").getpixel((9, 9)) for url in pictures(message)]
    return [near.get(colour, colour) for colour in found]  # type: ignore[arg-type]


async def test_the_planner_sees_the_caption_and_the_executor_the_picture(
    folder: Path, servers: tuple[Server, Server]
) -> None:
    plans, acts = servers
    settings = config(folder, plans.url, f"{acts.url}/v1")
    run = await ask(settings, question("q1", picture("red")))
    assert run.failure is None, run.failure
    assert run.degraded == ()
    assert (run.answer, run.question.caption) == ("Danube Tower", CAPTION)
    assert run.judgement is not None
    assert run.judgement.correct is True

    described, *turns = bodies(acts)
    assert part(described) == "caption"
    assert colours(described["messages"][0]) == [RED]
    assert len(turns) == 3
    last = turns[-1]["messages"]
    shown = {index: colours(message) for index, message in enumerate(last) if pictures(message)}
    assert shown == {0: [RED], 2: [GREEN]}  # the question's with the task, what was found with its titles
    assert "Picture 1: Danube Tower." in text(last[2])
    assert "Not run: image_search can be used once for each question." in text(last[4])
    assert [made.name for step in run.steps for made in step.calls] == ["image_search", "search"]

    planned, reflected = bodies(plans)
    assert CAPTION in text(planned["messages"][0])
    assert "image_search" in text(planned["messages"][0])
    assert "Danube Tower" in text(reflected["messages"][-1])
    assert "data:image" not in json.dumps([planned, reflected])
    assert run.memory is not None
    assert RunStore(folder / "runs").load(run.id) == run

    again = await ask(settings, question("q2", picture("red")))
    assert [scored.memory.caption for scored in again.recalled.successes] == [CAPTION]
    assert "data:image" not in json.dumps(bodies(plans))


async def test_a_picture_that_cannot_be_read_is_named_before_any_call(
    folder: Path, servers: tuple[Server, Server]
) -> None:
    plans, acts = servers
    settings = config(folder, plans.url, f"{acts.url}/v1")
    for bad in ("data:image/png;base64,AAAA", picture("red")[:-60], "tower.png"):
        run = await ask(settings, question("q7", picture("red"), bad))
        assert run.failure is not None
        assert run.failure.code == "bad_picture"
        assert run.failure.message.startswith("question 'q7': picture 2: ")
        assert run.judgement is None
    assert bodies(plans) == bodies(acts) == []


async def test_addresses_of_pictures_go_to_the_endpoint_as_they_are(
    folder: Path, servers: tuple[Server, Server]
) -> None:
    plans, acts = servers
    settings = config(folder, plans.url, f"{acts.url}/v1")
    run = await ask(settings, question("q1", "https://example.org/tower.jpg"))
    assert run.failure is None, run.failure
    sent = [pictures(body["messages"][0]) for body in bodies(acts)]
    assert sent == [["https://example.org/tower.jpg"]] * 4


async def test_a_tiny_model_that_sees_answers_in_this_process(folder: Path, servers: tuple[Server, Server]) -> None:
    pytest.importorskip("torch")
    plans, _ = servers
    model = qwen_vl(folder / "model")
    settings = config(
        folder,
        plans.url,
        f"local:{model}",
        **{"agent.seed_search": True, "agent.max_turns": 2, "agent.executor.max_tokens": 24},
        **{"agent.answer.max_tokens": 24, "agent.max_reminders": 0, "method.name": "plan_only"},
    )
    asked = question("q1", picture("red", (112, 84)), picture("green"))
    run = await ask(settings, asked.model_copy(update={"caption": "A tower."}))
    assert run.failure is None, run.failure
    acted = [step for step in run.steps if step.role == "executor" and step.reply is not None]
    assert acted
    pad = QWEN_CONTROL.index("<|image_pad|>") + 256
    for step in acted:
        assert step.reply is not None
        assert step.reply.tokens is not None
        assert step.reply.tokens.prompt_ids.count(pad) == 4 * 3 + 2 * 3
