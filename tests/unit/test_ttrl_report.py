"""The report against numbers reckoned by hand: arms, paired differences over order seeds, curve, panel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.datasets import load_dataset
from inference.evaluation.finish import finish
from inference.evaluation.folder import open_folder
from inference.evaluation.row import Row
from inference.evaluation.stream import stream
from inference.statistics import paired_bootstrap
from mia.config import load
from mia.errors import ConfigError, DataError
from mia.types import Failure, Judgement
from tests.evaluating import write_questions
from ttrl.config import TtrlConfig, settled
from ttrl.report import main

FROZEN: dict[str, Any] = {"learn.weights": False, "learn.memory": "off", "learn.n": 1}


async def written(tmp_path: Path, name: str, right: str, seed: int = 0, feedback: str = "", **flags: Any) -> Path:
    """A run of six questions as its folder keeps it: `right` has a letter for each: y, n, ? (unjudged), f (failed)."""
    asked = tmp_path / "q.jsonl"
    if not asked.is_file():
        write_questions(asked, 6)
    given = {"dataset.name": "jsonl", "dataset.path": str(asked), "eval.batch": 4, "eval.seed": seed,
             "eval.order": "shuffled", **{k.replace("__", "."): v for k, v in flags.items()}}  # fmt: skip
    config = settled(load(TtrlConfig, None, given))
    folder = open_folder(tmp_path / name / "epoch-1", config, load_dataset(config.dataset), False)
    verdicts = {"y": True, "n": False}

    def judged(letter: str, method: Any) -> Judgement | None:
        return Judgement(correct=verdicts[letter], method=method) if letter in verdicts else None

    for item in stream(load_dataset(config.dataset), config.eval)[0]:
        number = int(item.example.question.id[1:])
        failure = Failure(boundary="model", code="x", message="x") if right[number] == "f" else None
        await folder.add_row(
            Row(id=item.example.question.id, repeat=0, run=item.run, place=item.place, answer="x", failure=failure,
                stop_reason="answered", judgement=judged(right[number], "em"),
                feedback=judged(feedback[number], "panel") if feedback else None)
        )  # fmt: skip
    await folder.aclose()
    finish(tmp_path / name / "epoch-1", 6)
    return tmp_path / name


def reported(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


async def test_arms_over_seeds_and_what_they_add(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [
        await written(tmp_path, "frozen-0", "ynnny?", 0, **{k.replace(".", "__"): v for k, v in FROZEN.items()}),
        await written(tmp_path, "frozen-1", "nnnnyy", 1, **{k.replace(".", "__"): v for k, v in FROZEN.items()}),
        await written(tmp_path, "full-0", "yyynyy", 0),
        await written(tmp_path, "full-1", "fyynyn", 1),
    ]
    found = reported(capsys, *map(str, paths))
    assert [(arm["name"], arm["seeds"]) for arm in found["arms"]] == [("frozen", [0, 1]), ("full", [0, 1])]
    frozen, full = found["arms"]
    assert frozen["accuracy"]["mean"] == pytest.approx((0.5 + 0 + 0 + 0 + 1 + 1) / 6)
    assert full["accuracy"]["mean"] == pytest.approx((1 + 1 + 1 + 0 + 1 + 0.5) / 6)
    assert (frozen["unjudged"], full["failed"], full["questions"]) == (1, 1, 12)
    # Both have a verdict: seed 0: q0 to q4; seed 1: q1 to q5.
    left, right = [1.0, 0, 0, 0, 1, 1], [1.0, 1, 1, 0, 1, 0]
    told = full["against_base"]
    assert told["n"] == 6
    assert told["difference"] == pytest.approx(sum(right) / 6 - sum(left) / 6)
    expected = paired_bootstrap(left, right, 0)
    assert (told["low"], told["high"]) == (expected.low, expected.high)
    assert frozen["against_base"] is None
    assert frozen["panel"] is None


async def test_the_curve_follows_the_order_of_each_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters = {0: "yynnyy", 1: "nynyny"}
    paths = [await written(tmp_path, f"full-{seed}", some, seed) for seed, some in letters.items()]
    (arm,) = reported(capsys, *map(str, paths))["arms"]
    verdicts: list[list[float]] = [[], []]
    for seed, path in enumerate(paths):
        lines = [json.loads(line) for line in (path / "epoch-1" / "rows.jsonl").read_text().splitlines()]
        for line in lines:
            verdicts[line["place"] // 4].append(float(letters[seed][int(line["id"][1:])] == "y"))
    assert [(c["upto"], c["n"]) for c in arm["curve"]] == [(4, 8), (6, 4)]
    assert [c["accuracy"] for c in arm["curve"]] == pytest.approx([sum(v) / len(v) for v in verdicts])
    assert arm["curve"][-1]["running"] == pytest.approx(sum(map(sum, verdicts)) / 12)


async def test_how_often_the_panel_was_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = await written(tmp_path, "panel", "yyynnn", feedback="yyn?ny", learn__feedback="panel")
    (arm,) = reported(capsys, str(path))["arms"]
    assert arm["name"] == "full, panel"
    assert (arm["panel"]["n"], arm["panel"]["unreadable"]) == (6, 1)
    assert arm["panel"]["accuracy"] == pytest.approx(3 / 5)
    none = await written(tmp_path, "silent", "yynnyy", feedback="??????", learn__feedback="panel", learn__n=2)
    (arm,) = reported(capsys, str(none))["arms"]
    assert (arm["panel"]["n"], arm["panel"]["unreadable"], arm["panel"]["accuracy"]) == (6, 6, None)
    assert main([str(path), "--out", str(tmp_path / "report.md")]) == 0
    assert "How often the panel was right" in (tmp_path / "report.md").read_text()


async def test_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = await written(tmp_path, "full", "yynnyy")
    assert main([str(path), "--plot", str(tmp_path / "curve.png")]) == 0
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


async def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    paths = [str(await written(tmp_path, name, "yynnyy")) for name in ("one", "two")]
    with pytest.raises(ConfigError, match="same arm with the same seed"):
        main(paths)
    with pytest.raises(ConfigError, match="no arm is called 'best'"):
        main([paths[0], "--base", "best"])
    with pytest.raises(DataError, match="holds no run"):
        main([str(tmp_path)])
    (tmp_path / "other").mkdir()
    write_questions(tmp_path / "other" / "q.jsonl", 6, answer="no")
    with pytest.raises(ConfigError, match="read different files"):
        main([paths[0], str(await written(tmp_path / "other", "x", "yynnyy"))])
