"""The stream: predict, then learn; one row a question; what each arm changes and what it leaves as it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mia.errors import ConfigError, MiaError, ModelError, ToolError
from mia.types import Hit
from tests import tiny_models
from tests.doubles import FixedSearch
from tests.evaluating import lines_of, oracle, write_questions
from tests.learning import Stage
from ttrl.records import Asked, BatchFiles

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")

FROZEN: dict[str, Any] = {"learn__weights": False, "learn__memory": "off"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.chat_llama(tmp_path_factory.mktemp("model"), positions=8192)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_questions(tmp_path_factory.mktemp("data") / "q.jsonl", 10)


@pytest.fixture(scope="module")
def whole(tiny: Path, asked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ten questions in batches of four, three, three rollouts each, with all learning on."""
    out = tmp_path_factory.mktemp("whole") / "out"
    summaries, ended = Stage(tiny).run(asked, out)
    assert ended is None
    assert summaries["epoch-1"]["complete"]
    return out


def predicted(out: Path, epoch: int = 1) -> list[dict[str, Any]]:
    return lines_of(out / f"epoch-{epoch}" / "predictions.jsonl")


def batch(out: Path, number: int) -> list[Asked]:
    found = BatchFiles(out / "batches", number).played()
    assert found is not None
    return found


def tokens(out: Path, number: int) -> list[Any]:
    """What was sampled in a batch."""
    return [rolled.tokens for question in batch(out, number) for rolled in question.rolled]


def steps(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((out / "batches").glob("*.step.json"))]


def changed(asked: Path, path: Path, **labels: str) -> Path:
    """The same questions, with other labels for some."""
    rows = [{**row, "answer": labels.get(row["id"], row["answer"])} for row in lines_of(asked)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_every_question_has_one_row_the_tail_too(whole: Path) -> None:
    assert [row["id"] for row in predicted(whole)] == [f"q{n}" for n in range(10)]
    assert [len(batch(whole, number)) for number in range(3)] == [4, 4, 2]
    assert [step["version"] for step in steps(whole)] == [1, 2, 3]
    assert {rolled.version for question in batch(whole, 2) for rolled in question.rolled} == {2}
    assert all(len(question.rolled) == 3 for number in range(3) for question in batch(whole, number))
    assert {row["answer"] for row in predicted(whole)} == {"yes", "no"}
    record = json.loads((whole / "final" / "training.json").read_text())
    assert (record["role"], record["method"]) == ("planner", "GRPO")


@pytest.mark.parametrize("policy", ["first", pytest.param("majority", marks=pytest.mark.long)])
def test_no_prediction_depends_on_its_own_label_or_later_ones(
    tiny: Path, asked: Path, whole: Path, tmp_path: Path, policy: str
) -> None:
    """Another label of q5, which is in the second of three batches: what it changes comes after its batch only."""
    base = whole
    if policy != "first":
        base = tmp_path / "base"
        Stage(tiny).run(asked, base, learn__policy=policy)
    other = tmp_path / "out"
    Stage(tiny).run(changed(asked, tmp_path / "q.jsonl", q5="no"), other, learn__policy=policy)
    left, right = predicted(base), predicted(other)
    assert [row["answer"] for row in left[:8]] == [row["answer"] for row in right[:8]]
    assert [row for row in left[:8] if row["id"] != "q5"] == [row for row in right[:8] if row["id"] != "q5"]
    assert left[5] != right[5]  # its own verdict
    for number in (0, 1):
        assert tokens(base, number) == tokens(other, number)
        assert [a.chosen for a in batch(base, number)] == [a.chosen for a in batch(other, number)]
    assert tokens(base, 2) != tokens(other, 2)  # but what is learned does depend on it


def test_labels_of_the_last_batch_change_no_answer(tiny: Path, asked: Path, whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "out"
    Stage(tiny).run(changed(asked, tmp_path / "q.jsonl", q8="no", q9="no"), other)
    assert [row["answer"] for row in predicted(other)] == [row["answer"] for row in predicted(whole)]
    assert all(tokens(other, number) == tokens(whole, number) for number in range(3))


def test_without_ground_truth_no_label_matters(tiny: Path, asked: Path, tmp_path: Path) -> None:
    """The panel's verdicts are all that is learned from; labels only say how often it was right."""

    flags: dict[str, Any] = {"learn__feedback": "panel"}
    outs = tmp_path / "yes", tmp_path / "no"
    files = asked, changed(asked, tmp_path / "q.jsonl", **{f"q{n}": "no" for n in range(10)})
    for file, out in zip(files, outs, strict=True):
        summaries, ended = Stage(tiny, judge=panel).run(file, out, **flags)
        assert ended is None
        assert summaries["epoch-1"]["unjudged"] == 0
    assert all(tokens(outs[0], number) == tokens(outs[1], number) for number in range(3))
    assert (outs[0] / "memory.jsonl").read_bytes() == (outs[1] / "memory.jsonl").read_bytes()
    assert {memory["trust"] for memory in lines_of(outs[0] / "memory.jsonl")} == {"panel"}
    rows = [lines_of(out / "epoch-1" / "rows.jsonl") for out in outs]
    for left, right in zip(*rows, strict=True):
        assert left["feedback"] == right["feedback"]
        assert left["feedback"]["method"] == "panel"
        assert left["judgement"]["correct"] != right["judgement"]["correct"]
    scored = [verdict for number in range(3) for each in BatchFiles(outs[0] / "batches", number).scored() or []
              for verdict in each.verdicts]  # fmt: skip
    for verdict in scored:
        assert verdict.feedback is not None
        assert verdict.reward == pytest.approx(0.9 * bool(verdict.feedback.correct) + 0.1 * verdict.scores["format"])
    assert len(scored) == 30
    assert steps(outs[0])[-1]["version"] > 0


def panel(first: str, last: str) -> str:
    """Reviewers quote nothing that is there and like what they like; so does the chair."""
    liked = hashlib.sha256(first.encode()).digest()[0] < 150
    if "chair" in first:
        return json.dumps({"reason": "so", "verdict": "accept" if liked else "reject"})
    return json.dumps({"quote": "x", "reason": "so", "score": 9})


# ---------------------------------------------------------------------------------------------- what fails


class Broken(FixedSearch):
    """Fails on a third of all queries."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `SearchBackend.search`."""
        if hashlib.sha256("".join(queries).encode()).digest()[0] < 85:
            raise ToolError("the search is down", retryable=True)
        return await super().search(queries, k)


def broken_executor(first: str, last: str) -> str:
    if hashlib.sha256(f"{first}{last}".encode()).digest()[1] < 60 or "number 3 " in first:
        raise ModelError("the Executor is down", retryable=True)
    return oracle(first, last)


def broken_judge(first: str, last: str) -> str:
    mark = hashlib.sha256(last.encode()).digest()[2]
    if mark < 60:
        raise ModelError("the judge is down", retryable=True)
    return "perhaps" if mark < 120 else "A" if mark < 190 else "B"


def test_failures_everywhere_are_rows_of_their_own_kind(tiny: Path, asked: Path, tmp_path: Path) -> None:
    stage = Stage(tiny, broken_executor, Broken(), broken_judge)
    flags: dict[str, Any] = {"judge__method": "model", "eval__failures": 1000, "learn__n": 2}
    summaries, ended = stage.run(asked, tmp_path / "out", **flags)
    assert ended is None
    summary, rows = summaries["epoch-1"], predicted(tmp_path / "out")
    assert [row["id"] for row in rows] == [f"q{n}" for n in range(10)]
    assert rows[3]["failure"] == "model/model_failed"
    failed = [row for row in rows if row["failure"] is not None]
    unjudged = [row for row in rows if row["failure"] is None and row["judge"] is None]
    assert summary["failed"] == len(failed) > 0
    assert summary["unjudged"] == len(unjudged) > 0
    assert all(row["judge"] is None and "em" not in row for row in failed)
    rolled = [each for number in range(3) for question in batch(tmp_path / "out", number) for each in question.rolled]
    assert {each.failure.boundary for each in rolled if each.failure is not None} == {"model", "tool"}
    dropped = sum(step["dropped"] for step in steps(tmp_path / "out"))
    assert dropped > sum(each.failure is not None for each in rolled)  # what could not be judged is dropped too


def test_what_is_down_ends_the_run_and_is_asked_again(tiny: Path, asked: Path, whole: Path, tmp_path: Path) -> None:
    """The Executor dies in the second batch: nothing of it is recorded, and the resumed run is the whole one."""

    def dying(first: str, last: str) -> str:
        if any(f"number {n} of" in first for n in range(4, 8)):
            raise ModelError("the Executor is down", retryable=True)
        return oracle(first, last)

    out = tmp_path / "out"
    summaries, ended = Stage(tiny, dying).run(asked, out, eval__failures=3)
    assert ended is not None
    assert "3 questions in a row failed" in str(ended)
    assert not summaries["epoch-1"]["complete"]
    assert summaries["epoch-1"]["done"] == 4
    assert [path.name for path in (out / "batches").glob("*.played.jsonl")] == ["000000.played.jsonl"]
    with pytest.raises(ConfigError, match="holds a run already"):
        Stage(tiny).run(asked, out, eval__failures=3)
    with pytest.raises(ConfigError, match=r"learn\.n was 3 and is 2"):
        Stage(tiny).run(asked, out, resume=True, learn__n=2, eval__failures=3)
    _, ended = Stage(tiny).run(asked, out, resume=True, eval__failures=3)
    assert ended is None
    for name in ("epoch-1/predictions.jsonl", "memory.jsonl", "final/adapter_model.safetensors"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_judge_that_is_down_is_asked_again_and_nothing_else_is(tiny: Path, asked: Path, tmp_path: Path) -> None:
    stage = Stage(tiny, judge=lambda first, last: _down())
    flags: dict[str, Any] = {"judge__method": "model", "eval__failures": 3}
    summaries, ended = stage.run(asked, tmp_path / "out", **flags)
    assert isinstance(ended, MiaError)
    assert summaries["epoch-1"]["done"] == 0
    kept = (tmp_path / "out" / "batches" / "000000.played.jsonl").read_bytes()
    before = len(stage.executor.history)
    again = Stage(tiny, judge=lambda first, last: "A" if "yes" in last else "B")
    _, ended = again.run(asked, tmp_path / "out", resume=True, eval__limit=0, **flags)
    assert ended is None
    assert (tmp_path / "out" / "batches" / "000000.played.jsonl").read_bytes() == kept
    assert before > 0
    assert len(predicted(tmp_path / "out")) == 10


def _down() -> str:
    raise ModelError("the judge is down", retryable=True)


# ---------------------------------------------------------------------------------------------- ablations


def test_frozen_changes_nothing(tiny: Path, asked: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _, ended = Stage(tiny).run(asked, out, learn__n=1, **FROZEN)
    assert ended is None
    assert steps(out) == []
    assert not any((out / name).exists() for name in ("final", "memory.db", "memory.jsonl"))
    assert [path.name for path in (out / "checkpoints" / "000003").iterdir()] == ["cursor.json"]
    firsts = [
        [q.rolled[0].tokens.completion_ids for q in batch(each, 0) if q.rolled[0].tokens] for each in (out, whole)
    ]
    assert firsts[0] == firsts[1]  # the same luck in all arms
    assert {rolled.version for number in range(3) for a in batch(out, number) for rolled in a.rolled} == {0}


def test_best_of_n_is_the_frozen_one_with_more_to_choose_from(tiny: Path, asked: Path, tmp_path: Path) -> None:
    outs = tmp_path / "one", tmp_path / "three"
    for out, n in zip(outs, (1, 3), strict=True):
        Stage(tiny).run(asked, out, learn__n=n, **FROZEN)
    firsts = [[q.rolled[0].tokens for number in range(3) for q in batch(out, number)] for out in outs]
    written = [[each.completion_ids for each in some if each is not None] for some in firsts]
    assert written[0] == written[1]  # log-probabilities may differ in the last bits: the batches are of other sizes
    assert len(written[0]) == 10


def test_memory_alone_and_weights_alone(tiny: Path, asked: Path, tmp_path: Path) -> None:
    memory, weights, frozen = tmp_path / "memory", tmp_path / "weights", tmp_path / "frozen"
    Stage(tiny).run(asked, memory, learn__weights=False)
    Stage(tiny).run(asked, weights, learn__memory="off")
    Stage(tiny).run(asked, frozen, **FROZEN)
    assert steps(memory) == []
    assert len(lines_of(memory / "memory.jsonl")) > 5
    assert not (memory / "final").exists()
    assert not (weights / "memory.db").exists()
    assert len(steps(weights)) == 3
    shown = [
        [len(run.recalled.ids) for a in batch(out, 1) for r in a.rolled if (run := r.run)] for out in (memory, weights)
    ]
    assert sum(shown[0]) > 0
    assert sum(shown[1]) == 0
    assert tokens(memory, 0) == tokens(weights, 0) == tokens(frozen, 0)  # nothing was learned yet
    assert tokens(memory, 1) != tokens(frozen, 1) != tokens(weights, 1)


def test_a_frozen_memory_is_read_only(tiny: Path, asked: Path, whole: Path, tmp_path: Path) -> None:
    """It is the copy of one that an earlier run made; neither that one nor the copy changes."""
    start, out = whole / "memory.db", tmp_path / "out"
    before = start.read_bytes()
    others = changed(asked, tmp_path / "q.jsonl")
    text = others.read_text().replace('"id": "q', '"id": "other')
    others.write_text(text)
    _, ended = Stage(tiny).run(others, out, learn__weights=False, learn__memory="frozen", memory__path=str(start))
    assert ended is None
    assert start.read_bytes() == before
    assert (out / "memory.jsonl").read_bytes() == (whole / "memory.jsonl").read_bytes()
    assert sum(row["recalled"] for row in lines_of(out / "epoch-1" / "rows.jsonl")) > 0
    _, ended = Stage(tiny).run(others, tmp_path / "missing", memory__path=str(tmp_path / "nothing.db"))
    assert isinstance(ended, ConfigError)
    assert "there is no" in str(ended)


def test_epochs_write_files_of_their_own(tiny: Path, tmp_path: Path) -> None:
    asked, out = write_questions(tmp_path / "q.jsonl", 3), tmp_path / "out"
    summaries, ended = Stage(tiny).run(asked, out, learn__epochs=2, eval__batch=2)
    assert ended is None
    assert list(summaries) == ["epoch-1", "epoch-2"]
    assert [[row["id"] for row in predicted(out, epoch)] for epoch in (1, 2)] == [["q0", "q1", "q2"]] * 2
    assert len(steps(out)) == 4
    assert tokens(out, 0) != tokens(out, 2)
    shown = next(question for question in batch(out, 2) if question.id == "q0").rolled[0].run
    assert shown is not None
    recalled = (*shown.recalled.successes, *shown.recalled.failures)
    assert recalled
    assert shown.question.text not in {scored.memory.question for scored in recalled}  # nothing of its own


# ---------------------------------------------------------------------------------------------- the router


def test_the_routers_choice_is_the_answer(tiny: Path, asked: Path, tmp_path: Path) -> None:
    stage = Stage(tiny, router=lambda first, last: "Plan 3.")
    stage.run(asked, tmp_path / "out", learn__policy="router")
    questions = [question for number in range(3) for question in batch(tmp_path / "out", number)]
    assert [question.chosen for question in questions] == [2] * 10
    answers = [question.official.run.answer for question in questions if question.official.run]
    assert answers == [row["answer"] for row in predicted(tmp_path / "out")]
    seen = [history[0].text for history in stage.models["router"].history]
    assert "This plan worked" not in seen[0]
    assert "This plan worked" in seen[-1]


def test_a_router_that_cannot_be_read_leaves_the_first_plan_and_says_so(
    tiny: Path, asked: Path, tmp_path: Path
) -> None:
    stage = Stage(tiny, router=lambda first, last: "the one in the middle")
    _, ended = stage.run(asked, tmp_path / "out", learn__policy="router", eval__failures=100, **FROZEN)
    assert ended is None
    rows = lines_of(tmp_path / "out" / "epoch-1" / "rows.jsonl")
    assert all("judge/router" in row["codes"] and row["failure"] is None for row in rows)
    assert all(question.chosen == 0 for number in range(3) for question in batch(tmp_path / "out", number))


# ---------------------------------------------------------------------------------------------- does it learn


def pleased(first: str, last: str) -> str:
    """An Executor that is right if the plan has a letter e in it."""
    plan = first.partition("speaks against it:")[2].partition("\nQuestion:")[0]
    return f"<answer>{'yes' if 'e' in plan else 'no'}</answer>"


@pytest.mark.long
def test_learning_shows_on_a_stream_that_can_be_learned(tiny: Path, tmp_path: Path) -> None:
    """The same luck in both arms: what differs is learned. Frozen stays as it is, the other gets better."""
    asked = write_questions(tmp_path / "q.jsonl", 96)
    flags: dict[str, Any] = {"eval__batch": 8, "learn__n": 6, "learn__memory": "off", "agent__planner__max_tokens": 4}
    rates: dict[str, float] = {}
    arms: dict[str, dict[str, Any]] = {"frozen": {"learn__weights": False}, "weights": {"grpo__learning_rate": 0.02}}
    for name, more in arms.items():
        _, ended = Stage(tiny, pleased).run(asked, tmp_path / name, **flags, **more)
        assert ended is None
        right = [float(row["judge"]) for row in predicted(tmp_path / name)]
        rates[name] = sum(right[72:]) / 24
        if name == "weights":
            rates["before"] = sum(right[:16]) / 16
    assert rates["weights"] > rates["frozen"] + 0.2
    assert rates["weights"] > rates["before"] + 0.2
