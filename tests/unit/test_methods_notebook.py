"""The notebook: likeness, order, all or nothing, foreign files; and the conversations that methods put into it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from inference.methods.notebook import Changed, New, Notebook, Removed
from inference.methods.traces import stored, text, turns
from memory_serve.hashing import HashEncoder
from mia.errors import MemoryStoreError
from mia.types import Failure, Observation, Question, Reply, Step, ToolCall
from tests.methods import PROMPT, finished, notebook

ROOT = Path(__file__).resolve().parents[2]


async def learn(book: Notebook, run: str, *texts: str, source: str = "") -> None:
    await book.learn(run, source or f"q-{run}", [New("fact", {"text": t}, text=t) for t in texts])


async def test_the_likest_comes_first_and_the_older_of_two_alike(tmp_path: Path) -> None:
    book = notebook(tmp_path)
    await learn(book, "1", "the river Danube in Vienna")
    await learn(book, "2", "a mountain in Nepal", "river Danube Vienna", "river Danube Vienna")
    found = await book.nearest("fact", "Danube river Vienna", 3)
    assert [each.item.number for each in found] == [3, 4, 1]
    assert found[0].similarity == 1.0
    exact = HashEncoder().encode(["the river Danube in Vienna", "Danube river Vienna"])
    assert found[2].similarity == pytest.approx(float(exact[0] @ exact[1]), abs=1e-5)
    assert [f.item.number for f in await book.nearest("fact", "Danube river Vienna", 2, skip=1)] == [4, 1]
    assert await book.nearest("other", "Danube", 3) == []
    await book.aclose()


async def test_what_stems_from_the_question_asked_is_left_out(tmp_path: Path) -> None:
    book = notebook(tmp_path)
    await learn(book, "1", "Danube", source="a")
    await learn(book, "2", "Danube", source="b")
    assert [f.item.sources for f in await book.nearest("fact", "Danube", 5, asked="a")] == [("b",)]
    assert len(await book.nearest("fact", "Danube", 5)) == 2
    await book.learn("3", "a", [Changed(2, {"text": "Rhine"}, text="Rhine"), Changed(1, {"votes": 1}, rewritten=False)])
    assert [item.sources for item in await book.items()] == [("a",), ("a", "b")]
    assert await book.nearest("fact", "Danube", 5, asked="a") == []
    assert (await book.nearest("fact", "Rhine", 1))[0].item.data == {"text": "Rhine"}
    await book.aclose()


async def test_a_run_is_learned_once_and_kept_on_disk(tmp_path: Path) -> None:
    book = notebook(tmp_path)
    added = await book.learn("1", "q", [New("fact", {"text": "a"}, text="a")])
    assert added is not None
    assert (added.id, added.action) == ("fact-1", "stored")
    again = await book.learn("1", "q", [New("fact", {"text": "b"}, text="b"), Removed(1)])
    assert again is not None
    assert (again.id, again.action) == ("fact-1", "known")
    assert await book.learn("2", "q", []) is None
    await book.aclose()
    book = notebook(tmp_path)
    assert [item.data for item in await book.items()] == [{"text": "a"}]
    assert [await book.learned(run) for run in ("1", "2", "3")] == ["fact-1", "", None]
    await book.aclose()


async def test_a_change_that_cannot_be_done_undoes_the_whole_run(tmp_path: Path) -> None:
    book = notebook(tmp_path)
    await learn(book, "1", "a")
    with pytest.raises(MemoryStoreError, match="item 99 is gone"):
        await book.learn("2", "q", [Removed(1), New("fact", {"text": "b"}), Changed(99, {})])
    assert [item.data for item in await book.items()] == [{"text": "a"}]
    assert await book.learned("2") is None
    await book.learn("2", "q", [New("fact", {"text": "c"})])
    assert [item.number for item in await book.items()] == [1, 2]
    await book.aclose()


async def test_another_process_is_seen(tmp_path: Path) -> None:
    book, other = notebook(tmp_path), notebook(tmp_path)
    await learn(book, "1", "Danube")
    assert len(await other.nearest("fact", "Danube", 5)) == 1
    await learn(book, "2", "Danube")
    assert len(await other.nearest("fact", "Danube", 5)) == 2
    await book.aclose()
    await other.aclose()


def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    for attempt in range(5):
        with ThreadPoolExecutor(8) as pool:
            books = list(pool.map(lambda _, name=str(attempt): notebook(tmp_path, name), range(8)))
        for book in books:
            book.close()


@pytest.mark.parametrize(
    ("method", "encoder", "code"),
    [("expel", HashEncoder(), "other_method"), ("m", HashEncoder(seed=1), "other_encoder")],
)
async def test_files_are_not_mixed(tmp_path: Path, method: str, encoder: HashEncoder, code: str) -> None:
    await notebook(tmp_path).aclose()
    with pytest.raises(MemoryStoreError) as caught:
        Notebook(tmp_path / "m.db", method, encoder)
    assert caught.value.code == code
    assert "method.path" in caught.value.remedy


async def test_foreign_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "m.db") as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = (tmp_path / "m.db").read_bytes()
    (tmp_path / "n.db").write_text("no database at all, but longer than a header of one\n" * 40)
    (tmp_path / "o.db").mkdir()
    for name, code in (("m", "foreign_file"), ("n", "damaged"), ("o", "cannot_open")):
        with pytest.raises(MemoryStoreError) as caught:
            notebook(tmp_path, name)
        assert caught.value.code == code
    assert (tmp_path / "m.db").read_bytes()[100:] == before[100:]


async def test_vectors_are_those_of_the_encoder(tmp_path: Path) -> None:
    book = notebook(tmp_path)
    given = HashEncoder().encode(["x"])[0]
    await book.learn("1", "q", [New("fact", {}, text="Danube"), New("fact", {}), New("fact", {}, vector=given)])
    assert np.array_equal(await book.vectors("fact"), HashEncoder().encode(["Danube", "x"]))
    await book.aclose()


WRITER = """
import asyncio, pathlib, sys
from inference.methods.notebook import Changed, New, Notebook
from memory_serve.hashing import HashEncoder

async def main():
    book = Notebook(pathlib.Path(sys.argv[1]), "m", HashEncoder())
    first = len(await book.items("fact")) // 20
    print("ready", flush=True)
    for n in range(first, 100_000):
        facts = [New("fact", {"run": n}, text=f"fact {n} {i}") for i in range(20)]
        await book.learn(f"run-{n}", f"q-{n}", [*facts, *([Changed(1, {"run": n})] if n else [])])

asyncio.run(main())
"""


def kill_a_writer(path: Path, moment: float) -> None:
    """Start a process that learns runs, and kill it so many seconds after its first one; any moment will do."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(moment)
    process.kill()
    process.communicate()


async def test_a_killed_process_has_learned_whole_runs(tmp_path: Path) -> None:
    for moment in (0.0, 0.03, 0.07):
        kill_a_writer(tmp_path / "m.db", moment)
        book = notebook(tmp_path)
        items = await book.items()
        runs = len(items) // 20
        assert len(items) == 20 * runs
        assert [item.data["run"] for item in items[1:]] == [place // 20 for place in range(1, 20 * runs)]
        assert [await book.learned(f"run-{n}") is not None for n in range(runs + 1)] == [True] * runs + [False]
        assert not runs or items[0].data["run"] == runs - 1  # the change belongs to the same transaction
        await book.aclose()


def test_a_conversation_has_every_turn_and_no_prompt() -> None:
    made = turns(finished("1", "Which river?"))
    assert made == [
        ("user", "Which river?"),
        ("assistant", 'First words.\nCall: search {"query": "capital of Austria"}'),
        ("user", "Result: Vienna is the capital of Austria."),
        ("assistant", "Answer: Danube"),
    ]
    assert PROMPT not in str(stored(made))
    assert "secret thought" not in str(stored(made))


def test_a_failed_call_says_nothing_and_a_kept_answer_is_named() -> None:
    run = finished("1", "Which river?")
    failure = Observation(call_id="c2", failure=Failure(boundary="tool", code="x", message="secret fault"))
    call = ToolCall(id="c2", name="search", arguments={"query": "x"})
    second = Step(role="executor", purpose="act", reply=Reply(text=""), calls=(call,), observations=(failure,))
    planner = Step(role="planner", purpose="plan", reply=Reply(text="the plan"))
    made = turns(run.model_copy(update={"steps": (planner, *run.steps, second)}))
    assert made[-3:] == [
        ("assistant", 'Call: search {"query": "x"}'),
        ("user", "Result: (the call failed)"),
        ("assistant", "Answer: Danube"),
    ]
    assert "secret fault" not in str(made)
    assert "the plan" not in str(made)


def test_long_results_are_cut_first() -> None:
    run = finished("1", "Which river?", found="word " * 2000)
    assert len(stored(turns(run))[2][1]) < 3100  # type: ignore[index, arg-type]
    short = text(turns(run), 400)
    assert len(short.encode()) <= 400
    assert "First words." in short
    assert short.endswith("Answer: Danube")


def test_a_caption_belongs_to_the_question() -> None:
    run = finished("1", "Who is this?")
    asked = Question(id="q", text="Who is this?", caption="a man with a hat")
    assert turns(run.model_copy(update={"question": asked}))[0] == ("user", "Who is this?\na man with a hat")
