"""The runner: order, batches, failures, resuming; every answer depends on all its model saw, so nothing can slip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inference.evaluation.answering import Here
from inference.evaluation.config import EvalConfig
from inference.evaluation.journal import Journal
from inference.evaluation.stream import run_id, stream
from mia.errors import ConfigError, DataError, ModelError, ToolError
from tests.doubles import FixedSearch
from tests.evaluating import World, lines_of, oracle, settings, texts, write_questions


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return write_questions(tmp_path / "questions.jsonl", 20)


def same(a: Path, b: Path, *names: str) -> bool:
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in names)


async def test_a_run_answers_all_in_order_and_sums_up(questions: Path, tmp_path: Path) -> None:
    summary, ended = await World().run(settings(questions, eval__concurrency=4), tmp_path / "run")
    assert ended is None
    rows = lines_of(tmp_path / "run" / "predictions.jsonl")
    assert [row["id"] for row in rows] == [f"q{n}" for n in range(20)]
    right = sum(row["answer"] == "yes" for row in rows)
    assert 0 < right < 20
    assert summary["judge"]["mean"] == summary["em"]["mean"] == right / 20
    assert summary["em"]["n"] == 20
    assert (summary["complete"], summary["answered"], summary["failed"], summary["unjudged"]) == (True, 20, 0, 0)
    assert summary["groups"]["type"]["odd"]["done"] == 7
    assert summary["tool_calls"]["search"] >= 20
    assert summary["memory"]["stored"] > 0
    assert summary["curves"]["running"][-1] == pytest.approx(right / 20)
    assert summary["curves"]["with_memory"][0] < summary["curves"]["with_memory"][-1] == 1.0


async def test_two_runs_give_the_same_files_whatever_the_timing(questions: Path, tmp_path: Path) -> None:
    for name, concurrency in (("a", 5), ("b", 2)):
        config = settings(questions, eval__concurrency=concurrency, eval__batch=5)
        await World().run(config, tmp_path / name)
    assert same(tmp_path / "a", tmp_path / "b", "predictions.jsonl", "memory.jsonl")


async def test_memory_of_a_batch_is_that_of_its_beginning(questions: Path, tmp_path: Path) -> None:
    world = World()
    await world.run(settings(questions, eval__batch=10, eval__concurrency=10), tmp_path / "run")
    recalled = [row["recalled"] for row in lines_of(tmp_path / "run" / "rows.jsonl")]
    assert recalled[:10] == [0] * 10
    assert all(recalled[10:])


async def test_a_run_is_not_gone_on_with_by_another_model(questions: Path, tmp_path: Path) -> None:
    class Renamed(World):
        def open(self, config: EvalConfig) -> Here:
            self.model.name = "other-model"
            return super().open(config)

    config = settings(questions, eval__batch=5, eval__concurrency=5)
    calls = 0

    def dying(first: str, last: str) -> str:
        nonlocal calls
        calls += 1
        if calls > 40:
            raise ZeroDivisionError  # stands for a kill
        return oracle(first, last)

    with pytest.raises(ExceptionGroup):
        await World(dying).run(config, tmp_path / "run")
    kept = (tmp_path / "run" / "rows.jsonl").read_bytes()
    _, ended = await Renamed().run(config, tmp_path / "run", resume=True)
    assert isinstance(ended, ConfigError)
    assert ended.code == "other_run"
    assert "scripted; now other-model answers" in ended.message
    assert (tmp_path / "run" / "rows.jsonl").read_bytes() == kept
    _, ended = await World().run(config, tmp_path / "run", resume=True)
    assert ended is None
    assert len(lines_of(tmp_path / "run" / "predictions.jsonl")) == 20


async def test_read_only_memory_learns_nothing(questions: Path, tmp_path: Path) -> None:
    await World().run(settings(questions, eval__memory="read-only"), tmp_path / "run")
    assert not (tmp_path / "run" / "memory.jsonl").exists()
    assert not any(row["recalled"] for row in lines_of(tmp_path / "run" / "rows.jsonl"))


async def test_no_answer_depends_on_labels(tmp_path: Path) -> None:
    world = World()
    marked = write_questions(tmp_path / "marked.jsonl", 20, answer="MARKER-7731")
    await world.run(settings(marked), tmp_path / "run")
    assert not any("MARKER-7731" in text for text in texts(world.model))
    assert b"MARKER-7731" not in (tmp_path / "run" / "memory.jsonl").read_bytes()


@pytest.mark.parametrize("memory", ["online", "read-only"])
async def test_a_complete_run_is_resumed_without_a_call(questions: Path, tmp_path: Path, memory: str) -> None:
    config = settings(questions, eval__memory=memory)
    first, _ = await World().run(config, tmp_path / "run")
    world = World()
    again, ended = await world.run(config, tmp_path / "run", resume=True)
    assert (again, ended, world.opened) == (first, None, 0)


class Dying(Exception):
    """Stands for a kill between two model calls."""


@pytest.mark.parametrize("after", [1, 7, 23, 40, 61])
async def test_a_run_that_broke_off_goes_on_as_if_it_had_not(questions: Path, tmp_path: Path, after: int) -> None:
    config = settings(questions, eval__batch=6, eval__concurrency=3)
    await World().run(config, tmp_path / "whole")
    calls = 0

    def dying(first: str, last: str) -> str:
        nonlocal calls
        calls += 1
        if calls > after:
            raise Dying
        return oracle(first, last)

    with pytest.raises(ExceptionGroup):
        await World(dying).run(config, tmp_path / "run")
    summary, ended = await World().run(config, tmp_path / "run", resume=True)
    assert ended is None
    assert summary["done"] == 20
    assert same(tmp_path / "whole", tmp_path / "run", "predictions.jsonl", "memory.jsonl")


async def test_scoring_that_failed_costs_no_answer(questions: Path, tmp_path: Path) -> None:
    def down(first: str, last: str) -> str:
        raise ModelError("the judge is down", code="unreachable", retryable=True)

    config = settings(questions, judge__method="model", eval__memory="read-only")
    summary, ended = await World(judge=down).run(config, tmp_path / "run")
    assert ended is None
    assert (summary["answered"], summary["unjudged"], summary["failed"]) == (20, 20, 0)
    assert "judge" not in summary
    assert summary["em"]["n"] == 20
    assert summary["degraded_by"]["judge"] == 20
    world = World(judge=lambda first, last: "A")
    summary, _ = await world.run(config, tmp_path / "run", resume=True)
    assert world.model.history == []
    assert len(world.judge.history) == 20
    assert summary["judge"] == {"mean": 1.0, "low": pytest.approx(0.8389, abs=1e-4), "high": 1.0, "n": 20}
    assert summary["unjudged"] == 0


async def test_an_online_run_ends_when_the_judge_it_learns_from_is_down(questions: Path, tmp_path: Path) -> None:
    def down(first: str, last: str) -> str:
        raise ModelError("the judge is down", code="unreachable", retryable=True)

    config = settings(questions, judge__method="model", eval__batch=5, eval__concurrency=5)
    summary, ended = await World(judge=down).run(config, tmp_path / "run")
    assert isinstance(ended, ModelError)
    assert summary["complete"] is False
    world = World(judge=lambda first, last: "B")
    summary, ended = await world.run(config, tmp_path / "run", resume=True)
    assert (ended, summary["complete"], summary["judge"]["n"]) == (None, True, 20)
    await World(judge=lambda first, last: "B").run(config, tmp_path / "whole")
    assert same(tmp_path / "whole", tmp_path / "run", "predictions.jsonl", "memory.jsonl")


async def test_a_verdict_that_cannot_be_read_is_final_and_counts_nowhere(questions: Path, tmp_path: Path) -> None:
    config = settings(questions, judge__method="model", judge__tries=3)

    def judge(first: str, last: str) -> str:
        return "This is a B" if "number 4 " in first else "A"

    world = World(judge=judge)
    summary, _ = await world.run(config, tmp_path / "run")
    assert (summary["unjudged"], summary["judge"]["n"], summary["judge"]["mean"]) == (1, 19, 1.0)
    assert summary["over_all"]["judge"] == 19 / 20
    assert len(world.judge.history) == 22
    again = World()
    await again.run(config, tmp_path / "run", resume=True)
    assert again.judge.history == again.model.history == []


@pytest.mark.parametrize("after", [0, 30, 31, 32, 33])
async def test_a_dead_endpoint_ends_the_run_and_resume_asks_again(questions: Path, tmp_path: Path, after: int) -> None:
    asked = 0

    def dies(first: str, last: str) -> str:
        nonlocal asked
        asked += 1
        if asked > after:
            raise ModelError("refused", remedy="start it", code="unreachable", retryable=True)
        return oracle(first, last)

    config = settings(questions, eval__batch=2, eval__concurrency=2, eval__failures=5)
    summary, ended = await World(dies).run(config, tmp_path / "run")
    assert isinstance(ended, ModelError)
    assert ended.message in (
        "5 questions in a row failed: refused",
        "a question that was answered before fails now: refused",  # it died in the middle of a batch
    )
    assert "--resume" in ended.remedy
    assert summary["failed"] + summary["degraded"] >= 1
    assert summary["ended"]["code"] == "unreachable"
    assert summary.get("em", {"n": 0})["n"] == summary["done"] - summary["failed"]
    summary, ended = await World().run(config, tmp_path / "run", resume=True)
    assert (ended, summary["failed"], summary["complete"]) == (None, 0, True)
    await World().run(config, tmp_path / "whole")
    assert same(tmp_path / "whole", tmp_path / "run", "predictions.jsonl", "memory.jsonl")


async def test_a_dead_search_ends_the_run(questions: Path, tmp_path: Path) -> None:
    class Dead(FixedSearch):
        async def search(self, queries: object, k: int) -> list[list[object]]:  # type: ignore[override]
            raise ToolError("no search", code="unreachable", retryable=True)

    summary, ended = await World(search=Dead()).run(settings(questions), tmp_path / "run")
    assert isinstance(ended, ToolError)
    assert summary["failed_by"] == {"tool/unreachable": summary["failed"]}
    assert "em" not in summary


async def test_a_single_failure_is_a_failure_and_no_wrong_answer(questions: Path, tmp_path: Path) -> None:
    def fails(first: str, last: str) -> str:
        if "number 7 " in first:
            raise ModelError("too long", code="http_400")
        return oracle(first, last)

    config = settings(questions, eval__batch=4)
    summary, ended = await World(fails).run(config, tmp_path / "run")
    assert ended is None
    row = lines_of(tmp_path / "run" / "predictions.jsonl")[7]
    assert (row["failure"], row["answer"], row["judge"]) == ("model/http_400", None, None)
    assert "em" not in row
    assert (summary["failed"], summary["em"]["n"], summary["judge"]["n"]) == (1, 19, 19)
    assert summary["over_all"]["em"] == pytest.approx(summary["em"]["mean"] * 19 / 20)
    world = World()
    again, _ = await world.run(config, tmp_path / "run", resume=True)
    assert world.model.history == []  # memory has learned from later questions
    assert again["failed"] == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"eval__limit": 7}, "eval.limit was 5 and is 7"),
        ({"eval__seed": 1}, "eval.seed was 0 and is 1"),
        ({"models__default__model": "other"}, "models.default.model was '' and is 'other'"),
        ({"method__name": "react"}, "method.name was 'mia' and is 'react'"),
        ({"eval__batch": 3}, "eval.batch"),
    ],
)
async def test_another_run_is_not_resumed(
    questions: Path, tmp_path: Path, change: dict[str, object], named: str
) -> None:
    await World().run(settings(questions, eval__limit=5), tmp_path / "run")
    with pytest.raises(ConfigError, match=named):
        await World().run(settings(questions, **{"eval__limit": 5, **change}), tmp_path / "run", resume=True)
    with pytest.raises(ConfigError, match="holds a run already"):
        await World().run(settings(questions, eval__limit=5), tmp_path / "run")
    write_questions(questions, 21)
    with pytest.raises(ConfigError, match="another dataset: sha256"):
        await World().run(settings(questions, eval__limit=5), tmp_path / "run", resume=True)


async def test_what_no_answer_depends_on_may_change(questions: Path, tmp_path: Path) -> None:
    common = {"eval__limit": 5, "eval__batch": 2}
    await World().run(settings(questions, **common), tmp_path / "run")
    changed = {"eval__concurrency": 3, "eval__failures": 9, "models__default__timeout_s": 5}
    await World().run(settings(questions, **common, **changed), tmp_path / "run", resume=True)


async def test_a_folder_with_other_files_is_refused(questions: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="is not empty and holds no run"):
        await World().run(settings(questions), tmp_path / "run")


@pytest.mark.parametrize("left", [["config.json.part"], ["dataset.json"], ["dataset.json", "config.json.part"]])
async def test_a_start_that_was_killed_at_once_can_be_made_again(
    questions: Path, tmp_path: Path, left: list[str]
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for name in left:
        (out / name).write_text("{", encoding="utf-8")
    summary, ended = await World().run(settings(questions), out, resume=True)
    assert ended is None
    assert summary["complete"]
    assert {path.name for path in out.iterdir()} >= {"config.json", "dataset.json"}


async def test_repeats_have_memories_of_their_own(questions: Path, tmp_path: Path) -> None:
    config = settings(questions, eval__repeats=2, eval__batch=5)
    summary, _ = await World().run(config, tmp_path / "run")
    rows = lines_of(tmp_path / "run" / "predictions.jsonl")
    assert [row["repeat"] for row in rows] == [0] * 20 + [1] * 20
    assert [row["answer"] for row in rows[:20]] == [row["answer"] for row in rows[20:]]
    assert (summary["questions"], summary["em"]["n"]) == (40, 20)
    assert len(lines_of(tmp_path / "run" / "memory-0.jsonl")) == len(lines_of(tmp_path / "run" / "memory-1.jsonl"))


async def test_no_trajectories_are_kept_if_not_wanted(questions: Path, tmp_path: Path) -> None:
    await World().run(settings(questions, eval__keep_traces=False), tmp_path / "run")
    assert not (tmp_path / "run" / "trajectories.jsonl").exists()


def test_the_shuffled_order_follows_the_seed_and_a_limit_takes_the_first(questions: Path) -> None:
    from inference.datasets import load_dataset

    def order(**flags: object) -> list[str]:
        config = settings(questions, eval__order="shuffled", **flags)
        (items,) = stream(load_dataset(config.dataset), config.eval)
        return [item.example.question.id for item in items]

    assert order() != [f"q{n}" for n in range(20)]
    assert sorted(order()) == sorted(f"q{n}" for n in range(20))
    assert order(eval__limit=6) == order()[:6]
    assert order(eval__seed=1) != order()


def test_ids_of_runs_are_file_names_and_distinct() -> None:
    assert run_id("hotpotqa", "5a80", 1) == "hotpotqa-5a80-1"
    strange = [run_id("d", name, 0) for name in ("a/b", "a?b", "ä", "x" * 300, "x" * 301)]
    assert len(set(strange)) == 5
    assert all(len(name) <= 80 and name.isascii() and "/" not in name for name in strange)


async def test_a_torn_line_is_cut_off_and_unicode_line_ends_are_none(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    text = json.dumps("a\u2028b\u0085c", ensure_ascii=False)
    await journal.append(text)
    second = journal.end
    await journal.append("2")
    await journal.aclose()
    assert path.read_bytes()[second:] == b"2\n"
    path.write_bytes(path.read_bytes() + b'{"torn": "li')
    await Journal(path).aclose()
    assert path.read_bytes() == f"{text}\n2\n".encode()


async def test_a_journal_has_one_writer(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    with pytest.raises(DataError, match="another process is writing"):
        Journal(tmp_path / "j.jsonl")
    await journal.aclose()


async def test_lines_are_written_in_order_even_if_nobody_waits(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    written = [journal.append(str(n)) for n in range(50)]
    written[3].cancel()
    await journal.aclose()
    assert (tmp_path / "j.jsonl").read_text(encoding="utf-8").split() == [str(n) for n in range(50)]
    assert written[10].done()
    assert written[3].cancelled()
