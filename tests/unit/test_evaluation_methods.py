"""Every method under the runner: the same searches, no failure, and a run that breaks off goes on as if it had not."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from inference.evaluation.compare import Evaluated, method_rows
from inference.methods.config import Name
from tests.evaluating import World, lines_of, oracle, settings, texts, write_questions

METHODS: tuple[Name, ...] = get_args(Name)
COUNT = 14


class Dying(Exception):
    """Stands for a kill between two model calls."""


def world_of(brain: object = oracle) -> World:
    """A world whose judge model is the panel of rules."""
    world = World(brain)  # type: ignore[arg-type]
    world.judge = world.manager
    return world


@pytest.mark.parametrize("method", METHODS)
async def test_a_run_that_broke_off_goes_on_as_if_it_had_not(method: Name, tmp_path: Path) -> None:
    questions = write_questions(tmp_path / "questions.jsonl", COUNT)
    config = settings(questions, method__name=method, eval__batch=4, eval__concurrency=4)
    summary, ended = await world_of().run(config, tmp_path / "whole")
    assert ended is None
    assert (summary["answered"], summary["failed"], summary["memory_failed"]) == (COUNT, 0, 0)
    calls, total = 0, summary["model_calls"]

    def dying(first: str, last: str) -> str:
        nonlocal calls
        calls += 1
        if calls > total * 0.6:
            raise Dying
        return oracle(first, last)

    with pytest.raises(ExceptionGroup):
        await world_of(dying).run(config, tmp_path / "run")
    _, ended = await world_of().run(config, tmp_path / "run", resume=True)
    assert ended is None
    names = ["predictions.jsonl"] + (["memory.jsonl"] if config.learns else [])
    for name in names:
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert config.learns == (tmp_path / "run" / "memory.jsonl").exists()
    if config.learns:
        assert lines_of(tmp_path / "run" / "memory.jsonl"), "the method stored nothing"
        assert any(row["recalled"] for row in lines_of(tmp_path / "run" / "rows.jsonl")), "the method recalled nothing"


@pytest.mark.parametrize("method", ["amem", "expel", "reasoningbank", "rag_traces"])
async def test_what_memory_asks_its_model_is_counted(method: Name, tmp_path: Path) -> None:
    questions = write_questions(tmp_path / "questions.jsonl", COUNT)
    world = World(oracle)
    summary, _ = await world.run(settings(questions, method__name=method, eval__batch=4), tmp_path / "run")
    asked = world.manager.history
    assert (method == "rag_traces") == (not asked)
    words = sum(len(message.text.split()) for messages in asked for message in messages)
    assert (summary["memory_usage"]["calls"], summary["memory_usage"]["prompt_tokens"]) == (len(asked), words)


async def test_all_methods_make_one_table_with_one_budget(tmp_path: Path) -> None:
    questions = write_questions(tmp_path / "questions.jsonl", COUNT)
    for method in METHODS:
        config = settings(questions, method__name=method, agent__reflect=False)
        await world_of().run(config, tmp_path / method)
    rows = method_rows([Evaluated.read(tmp_path / method) for method in METHODS])
    assert [row.method for row in rows] == list(METHODS)
    for row in rows:
        searches = 0 if row.method == "direct" else COUNT
        assert row.counts == {"asked": COUNT, "answered": COUNT, "unjudged": 0, "failed": 0, "searches": searches}


@pytest.mark.parametrize("method", METHODS)
async def test_no_reference_reaches_a_model_or_a_memory(method: Name, tmp_path: Path) -> None:
    questions = write_questions(tmp_path / "questions.jsonl", 6, answer="MARKER-7731")
    world = world_of()
    await world.run(settings(questions, method__name=method, eval__batch=2), tmp_path / "run")
    seen = [*texts(world.model), *texts(world.manager)]
    assert seen
    assert not any("MARKER-7731" in text for text in seen)
    kept = ("memory.jsonl", "trajectories.jsonl", "memory.db", "notes.db")
    for path in (tmp_path / "run" / name for name in kept):
        assert not path.exists() or b"MARKER-7731" not in path.read_bytes(), path.name
