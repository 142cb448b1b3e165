"""Mem0, the package itself: what it is told, what it finds, and that the notebook has all of a run or nothing."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from inference.methods.mem0 import MIN_CONTEXT, Mem0Method, import_mem0
from inference.methods.mem0_models import Extractor
from inference.methods.notes import Manager
from memory_serve.hashing import HashEncoder
from mia.chat.scripted import ScriptedChat
from mia.errors import ConfigError, MemoryStoreError, ModelError, ParseError
from mia.types import Message, Question, Reply, Sampling
from tests.methods import PROMPT, RIGHT, ROOM, UNJUDGED, WRONG, finished, notebook

# Not imported here: telemetry must be off before.
if find_spec("mem0") is None:
    pytest.skip("mem0ai is not installed; `bash scripts/test.sh` installs it", allow_module_level=True)

QUESTION = "Which river flows through the capital of Austria?"
ROOT = Path(__file__).resolve().parents[2]
SIMILAR = "Which river flows through the capital of Hungary?"


def facts(*texts: str) -> str:
    made = [{"id": str(n), "text": text, "attributed_to": "assistant"} for n, text in enumerate(texts)]
    return json.dumps({"memory": made})


def mem0(tmp_path: Path, *replies: Any, user: str = "default") -> tuple[Mem0Method, ScriptedChat]:
    manager = ScriptedChat(replies)
    return Mem0Method(notebook(tmp_path, "mem0"), ROOM, manager, HashEncoder(), user), manager


class Silent(ScriptedChat):
    """Never replies."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def generate(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[Any] = ()) -> Reply:
        """See `ChatModel.generate`."""
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


async def found(
    method: Mem0Method, question: str = SIMILAR, k: int = 3, asked: str = "new", skip: int = 0
) -> list[str]:
    recalled = await method.recall(Question(id=asked, text=question), k, skip)
    return [note.text for note in recalled.notes]


async def test_facts_of_a_run_are_found_again_but_not_by_its_own_question(tmp_path: Path) -> None:
    method, manager = mem0(
        tmp_path,
        facts("The river Danube flows through the capital of Austria", "Vienna is a city"),
        facts("Which river flows through the capital of Hungary is the Danube"),
    )
    added = await method.learn(finished("1", QUESTION), WRONG)
    assert added is not None
    assert added.action == "stored"
    await method.learn(finished("2", SIMILAR), UNJUDGED)
    best, *others = await found(method)
    assert best == "Which river flows through the capital of Hungary is the Danube"
    assert others[0] == "The river Danube flows through the capital of Austria"
    assert await found(method, asked="q-2") == others
    assert await found(method, k=1, skip=1) == others[:1]
    told = manager.history[0][-1].text
    assert "user: Which river flows through the capital of Austria?\nassistant: First words." in told
    assert "Answer: Danube" in told
    assert PROMPT not in str(manager.history)
    assert "secret thought" not in str(manager.history)
    assert "The river Danube flows" in manager.history[1][-1].text  # what the package knows already
    await method.aclose()


async def test_a_run_is_added_once_and_its_facts_outlive_the_process(tmp_path: Path) -> None:
    method, _ = mem0(tmp_path, facts("Vienna lies on the Danube"))
    first = await method.learn(finished("1", QUESTION), RIGHT)
    before, dump = await found(method), await method.dump()
    again = await method.learn(finished("1", QUESTION), RIGHT)
    assert first is not None
    assert again is not None
    assert (again.id, again.action) == (first.id, "known")
    await method.aclose()

    method, manager = mem0(tmp_path, facts("Budapest lies on the Danube"))
    assert await found(method) == before
    assert await method.dump() == dump
    assert await method.learn(finished("1", QUESTION), RIGHT) == again
    assert manager.history == []
    await method.learn(finished("2", SIMILAR), RIGHT)
    assert "assistant: Answer: Danube" in manager.history[0][-1].text.partition("## New Messages")[0]  # of run 1
    assert sorted(await found(method)) == ["Budapest lies on the Danube", "Vienna lies on the Danube"]
    await method.aclose()


async def test_two_runs_alike_store_alike(tmp_path: Path) -> None:
    dumps = []
    for name in ("a", "b"):
        method, _ = mem0(tmp_path / name, facts("A fact", "Another"), facts("A third"))
        await method.learn(finished("1", QUESTION), RIGHT)
        await method.learn(finished("2", SIMILAR), RIGHT)
        dumps.append(await method.dump())
        await method.aclose()
    assert dumps[0] == dumps[1]
    assert [item["data"] for item in dumps[0] if "data" in item] == ["A fact", "Another", "A third"]


async def test_namespaces_do_not_see_each_other(tmp_path: Path) -> None:
    method, _ = mem0(tmp_path, facts("Vienna lies on the Danube"), user="a")
    await method.learn(finished("1", QUESTION), RIGHT)
    await method.aclose()
    other, manager = mem0(tmp_path, facts("Budapest lies on the Danube"), user="b")
    assert await found(other) == []
    await other.learn(finished("2", SIMILAR), RIGHT)
    assert "Vienna" not in manager.history[0][-1].text.partition("## New Messages")[0]
    await other.aclose()


async def test_nothing_to_remember_is_learned_as_such(tmp_path: Path) -> None:
    method, manager = mem0(tmp_path, facts())
    await method.learn(finished("1", QUESTION), RIGHT)
    await method.learn(finished("1", QUESTION), RIGHT)
    assert len(manager.history) == 1
    assert await found(method) == []
    await method.aclose()


@pytest.mark.parametrize("reply", ["I remember nothing.", "", '{"memory": [{"id": "0"}]}', '{"memory": "x"}', "[]"])
async def test_a_reply_that_is_no_json_is_an_error_and_no_empty_memory(tmp_path: Path, reply: str) -> None:
    method, manager = mem0(tmp_path, reply, reply, reply, reply, facts("Vienna lies on the Danube"))
    with pytest.raises(ParseError) as caught:
        await method.learn(finished("1", QUESTION), RIGHT)
    assert caught.value.code == "no_note"
    assert len(manager.history) == 3
    assert await method.dump() == []
    assert await method.learn(finished("1", QUESTION), RIGHT) is not None
    assert await found(method) == ["Vienna lies on the Danube"]
    await method.aclose()


async def test_a_dead_manager_is_its_own_error(tmp_path: Path) -> None:
    method, _ = mem0(tmp_path, ModelError("no endpoint", code="unreachable"))
    with pytest.raises(ModelError) as caught:
        await method.learn(finished("1", QUESTION), RIGHT)
    assert caught.value.code == "unreachable"
    await method.aclose()


async def test_a_learner_that_was_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    silent = Silent()
    method = Mem0Method(notebook(tmp_path, "mem0"), ROOM, silent, HashEncoder(), "default")
    task = asyncio.create_task(method.learn(finished("1", QUESTION), RIGHT))
    await silent.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await found(method) == []
    await method.aclose()


async def test_the_manager_is_not_waited_for_by_one_who_has_gone() -> None:
    extractor = Extractor(Manager(Silent()), asyncio.get_running_loop())
    extractor.cancel()  # before the package asks, as may happen
    with pytest.raises(asyncio.CancelledError):
        await asyncio.to_thread(extractor.generate_response, [{"role": "user", "content": "x"}])


async def test_many_recall_while_one_learns(tmp_path: Path) -> None:
    method, _ = mem0(tmp_path, *(facts(f"Vienna is fact {n} on the Danube") for n in range(5)))

    async def learn() -> None:
        for n in range(5):
            await method.learn(finished(str(n), QUESTION), RIGHT)

    results = await asyncio.gather(learn(), *(found(method, "Vienna is on the Danube") for _ in range(30)))
    assert all(len(texts or ()) <= 3 for texts in results)
    assert len(await found(method, "Vienna is on the Danube", k=9)) == 5
    await method.aclose()


async def test_what_the_notebook_could_not_store_is_not_known_either(tmp_path: Path) -> None:
    def breaking(_: Sequence[Message]) -> str:
        with sqlite3.connect(tmp_path / "mem0.db") as connection:
            connection.execute("CREATE TRIGGER full BEFORE INSERT ON items BEGIN SELECT raise(FAIL, 'full'); END")
        connection.close()
        return facts("Vienna lies on the Danube")

    method, _ = mem0(tmp_path, breaking, facts("Vienna lies on the Danube"))
    with pytest.raises(MemoryStoreError, match="full"):
        await method.learn(finished("1", QUESTION), RIGHT)
    assert await found(method) == []
    with sqlite3.connect(tmp_path / "mem0.db") as connection:
        connection.execute("DROP TRIGGER full")
    connection.close()
    assert await method.learn(finished("1", QUESTION), RIGHT) is not None
    assert await found(method) == ["Vienna lies on the Danube"]
    await method.aclose()


def test_nothing_is_sent_anywhere(tmp_path: Path) -> None:
    telemetry = importlib.import_module(import_mem0().__name__ + ".memory.telemetry")
    assert telemetry.MEM0_TELEMETRY is False
    assert telemetry.client_telemetry.posthog is None


def test_a_package_that_was_imported_with_telemetry_is_refused(tmp_path: Path) -> None:
    code = (
        "import os; os.environ['MEM0_TELEMETRY'] = 'True'; import mem0\n"
        "from inference.methods.mem0 import import_mem0\n"
        "mem0.memory.telemetry.client_telemetry.close()\n"
        "import_mem0()"
    )
    environment = {**os.environ, "MEM0_DIR": str(tmp_path), "MIA_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "ConfigError: mem0 was imported with its telemetry on" in done.stderr


def test_a_manager_that_cannot_read_the_prompt_is_refused(tmp_path: Path) -> None:
    book = notebook(tmp_path, "mem0")
    with pytest.raises(ConfigError, match="does not fit"):
        Mem0Method(book, ROOM, ScriptedChat(context=MIN_CONTEXT - 1), HashEncoder(), "default")
    book.close()
