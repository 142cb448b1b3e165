"""`mia compare` and `mia show` on runs with known flips, held against scipy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from inference.evaluation.report import write_report
from mia.cli import main
from mia.errors import ModelError
from tests.doubles import call
from tests.evaluating import World, lines_of, settings, write_questions

COUNT = 60
GAINED = {3, 8, 9, 14, 20, 21, 33, 40, 51}
LOST = {5, 30}
WRONG = {n for n in range(COUNT) if n % 4 == 0} - GAINED - LOST


def answering(wrong: set[int], failing: Iterable[int] = (), replanned: Iterable[int] = ()) -> World:
    """A world whose model answers yes, but no to some questions, fails on others, and plans others otherwise."""

    def brain(first: str, last: str) -> str:
        if "another round" in last:
            return "no"
        number = int(re.findall(r"number (\d+)", first)[-1])
        if number in failing:
            raise ModelError("too long", code="http_400")
        if last.rstrip().endswith("Plan:"):
            return "1. Ask." if number in replanned else "1. Look it up."
        if "<tool_response>" not in last:
            return call("Vienna")
        return f"<answer>{'no' if number in wrong else 'yes'}</answer>"

    return World(brain)


@pytest.fixture
async def runs(tmp_path: Path) -> tuple[Path, Path]:
    """React, then MIA with nine questions gained and two lost; one question of each fails."""
    questions = write_questions(tmp_path / "questions.jsonl", COUNT)
    a, b = tmp_path / "a", tmp_path / "b"
    await answering(WRONG | GAINED, {58}).run(settings(questions, method__name="react"), a)
    await answering(WRONG | LOST, {59}).run(settings(questions, agent__max_turns=5), b)
    return a, b


def test_p_value_and_interval_agree_with_scipy(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, runs), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    judge = shown["metrics"]["judge"]
    assert judge["gained"] == [f"q{n}" for n in sorted(GAINED)]
    assert judge["lost"] == [f"q{n}" for n in sorted(LOST)]
    assert (judge["n"], judge["left_out"]) == (58, {"only_a": 0, "only_b": 0, "unknown": 2})
    flips = len(GAINED) + len(LOST)
    assert judge["p_value"] == pytest.approx(stats.binomtest(len(LOST), flips, 0.5).pvalue)
    difference = np.array([(n in GAINED) - (n in LOST) for n in range(COUNT - 2)], dtype=float)
    assert judge["difference"] == pytest.approx(difference.mean())
    wanted = stats.bootstrap((difference,), np.mean, method="percentile", n_resamples=20_000, rng=1)
    assert judge["low"] == pytest.approx(wanted.confidence_interval.low, abs=0.018)  # one question is 0.0172
    assert judge["high"] == pytest.approx(wanted.confidence_interval.high, abs=0.018)
    assert shown["settings"]["method.name"] == ["react", "mia"]
    assert shown["settings"]["agent.max_turns"] == [10, 5]


def test_flips_are_listed_with_both_answers(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, runs)]) == 0
    shown = capsys.readouterr().out
    assert "better  q3  'no' → 'yes'" in shown
    assert "worse  q30  'yes' → 'no'" in shown
    assert "method.name: 'react' in A, 'mia' in B" in shown


async def test_answers_and_plans_that_are_the_same_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = write_questions(tmp_path / "questions.jsonl", 12)
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    await answering({1}).run(settings(questions), folders[0])
    await answering({1, 4}, {7}, replanned={3, 9}).run(settings(questions), folders[1])
    await answering({1}).run(settings(questions, method__name="react"), folders[2])
    assert main(["compare", *map(str, folders[:2]), "--json"]) == 0
    same = json.loads(capsys.readouterr().out)["same"]
    assert {**same["answers"], "differ": sorted(same["answers"]["differ"])} == {"n": 11, "same": 10, "differ": ["q4"]}
    assert (same["plans"]["n"], same["plans"]["same"], sorted(same["plans"]["differ"])) == (11, 9, ["q3", "q9"])
    assert main(["compare", str(folders[0]), str(folders[2])]) == 0
    shown = capsys.readouterr().out
    assert "same answers: 12 of 12\n" in shown
    assert "same plans" not in shown


def test_the_table_has_a_line_for_each_method(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.md"
    assert main(["compare", *map(str, runs), "--table", "--metric", "em", "--out", str(out), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    react, mia = shown["rows"]
    assert (react["method"], mia["method"]) == ("react", "mia")
    em = react["em"]["questions"]
    assert em["mean"] == react["mean"] == pytest.approx((59 - len(WRONG | GAINED)) / 59)
    assert em["low"] < em["mean"] < em["high"]
    assert (react["asked"], react["answered"], react["failed"], react["searches"]) == (60, 59, 1, 59)
    assert any("agent.max_turns is not the same" in note for note in shown["notes"])
    assert f"| react | {100 * em['mean']:.1f} (" in out.read_text(encoding="utf-8")
    assert main(["compare", *map(str, runs), "--table", "--metric", "bleu"]) == 2
    assert "known: accepted, em" in capsys.readouterr().err


async def test_runs_of_different_files_are_not_compared(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_questions(tmp_path / "other.jsonl", COUNT + 1)
    await answering(set()).run(settings(other, method__name="react"), tmp_path / "c")
    assert main(["compare", str(runs[0]), str(tmp_path / "c")]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["compare", str(runs[0]), str(tmp_path / "c"), "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["em"]["left_out"]["only_b"] == 1
    assert main(["compare", str(runs[0]), str(tmp_path)]) == 1
    assert "holds no run" in capsys.readouterr().err


def test_show_prints_the_summary_and_one_question(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(runs[0])]) == 0
    shown = capsys.readouterr().out
    assert "1 runs failed and count in no metric: model/http_400 1" in shown
    assert "title recall" not in shown
    assert main(["show", str(runs[0]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["failed"] == 1
    assert main(["show", str(runs[1]), "q30"]) == 0
    shown = capsys.readouterr().out
    assert "Is number 30 of" in shown
    assert "incorrect (em" in shown
    assert main(["show", str(runs[1]), "q99"]) == 1


def test_the_report_is_one_page_with_plots_and_escapes_what_it_shows(runs: tuple[Path, Path]) -> None:
    rows = lines_of(runs[0] / "rows.jsonl")
    rows[0]["answer"] = "<script>alert(1)</script> | \n x"
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (runs[0] / "rows.jsonl").write_text(text, encoding="utf-8")
    write_report(runs[0])
    page = (runs[0] / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert re.findall(r'(?:src|href)="(?!data:image/png;base64,)', page) == []
    assert page.count("data:image/png;base64,") == (3 if "No plots" not in page else 0)
    assert "By type" in page
    report = (runs[0] / "report.md").read_text(encoding="utf-8")
    assert "| q0 | &lt;script&gt;alert(1)&lt;/script&gt; \\| x |" in report
