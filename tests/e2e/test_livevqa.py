"""LiveVQA from its released files to the report: the real command, an endpoint that records all, a tiny model.

What was sent is held against the picture files and the questions' JSON as they lie on disk, read here and not by the
loader. The answers come from a table that this test makes: it decides which are right.
"""

from __future__ import annotations

import base64
import json
import math
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mia.cli import main
from scripts.bench.stub_vision import Checker, read_questions
from scripts.tiny_vision import QWEN_CONTROL, qwen_vl
from tests.conftest import SHARED
from tests.endpoints import opened, part, pictures, text
from web_tools.stub import Server, serving

ROOT = Path(__file__).resolve().parents[2]
FIXTURE = ROOT / "tests" / "fixtures" / "datasets" / "livevqa"
OWN = {"open": 6, "choice": 5}
"""Questions of our fixture that can be used; the others are there to be reported (see tests/unit)."""


@dataclass(frozen=True)
class Item:
    """A question as its file has it."""

    part: str
    level: str
    file: Path
    raw: Mapping[str, Any]


def items(root: Path) -> dict[str, Item]:
    """All questions by the ids that the rows of a run have."""
    found = {}
    for file in root.glob("*/benchmark.json"):
        for item in json.loads(file.read_text(encoding="utf-8")):
            for level in "12":
                raw = item.get(f"level{level}_qa")
                if raw:
                    name = raw.get("img_path", item["img_path"])
                    folder = next(each for each in file.parent.iterdir() if each.is_dir())
                    identity = f"{file.parent.name}-{item['id']}-{level}"
                    found[identity] = Item(file.parent.name, level, folder / name, raw)
    return found


def table(known: Mapping[str, Item], form: str) -> tuple[dict[str, str], set[str]]:
    """An answer to each question, and the ids of those answered rightly: two of three, in ever other forms."""
    answers, right = {}, set()
    for number, (identity, item) in enumerate(sorted(known.items())):
        letter = item.raw["Ground_Truth"]
        options = item.raw["options"]
        if number % 3 < 2:
            right.add(identity)
            accepted = item.raw["Ground_Truth_List"] or [""]
            forms = {"open": (accepted[-1], f"{accepted[0].upper()}."), "choice": (letter, f"({letter.lower()})")}
            answers[identity] = forms[form][number % 2]
        else:
            other = next(option for option in options if option[0] != letter)
            answers[identity] = other[0] if form == "choice" else "nothing of the kind"
    return answers, right


def evaluate(profile: str, url: str, root: Path, form: str, out: Path) -> int:
    """What scripts/bench_livevqa.sh runs, with a corpus of one passage."""
    made = [sys.executable, str(ROOT / "scripts" / "bench" / "livevqa_pictures.py"), str(root)]
    made += ["--out", str(out.parent / "pictures")]
    pictures_at = subprocess.run(made, capture_output=True, text=True, check=True).stdout.strip()
    corpus = out.parent / "corpus.jsonl"
    corpus.write_text('{"id": "1", "contents": "\\"Larkton\\"\\nLarkton is a town."}\n', encoding="utf-8")
    assert main(["index", "build", str(corpus), "--out", str(out.parent / "index"), "--engines", "bm25"]) == 0
    argv = ["eval", profile, "--dataset.path", str(root), "--dataset.form", form, "--out", str(out)]
    argv += ["--search.index", str(out.parent / "index"), "--search.mode", "bm25"]
    argv += ["--web.images.path", pictures_at, "--web.cache.kind", "off"]
    return main([*argv, "--models.default.url", url])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def plain(words: str) -> str:
    return "".join(words.split())


def is_picture_of(url: str, file: Path) -> bool:
    """Whether a data URL is a file: byte for byte where it fits the endpoint's limits, else the same pixels smaller."""
    with Image.open(file) as kept:
        whole = kept.convert("RGB")
    if max(whole.size) <= 1568:
        return base64.b64decode(url.partition(",")[2]) == file.read_bytes()
    sent = opened(url).convert("RGB")
    if max(sent.size) != 1568 or abs(sent.width / sent.height - whole.width / whole.height) > 0.01:
        return False
    smaller = np.asarray(whole.resize(sent.size, Image.Resampling.BICUBIC), dtype=float)
    return float(np.abs(smaller - np.asarray(sent, dtype=float)).mean()) < 2.0


def check_requests(server: Server, known: Mapping[str, Item], count: int) -> None:
    """Each Executor request has its question's picture, no Planner request has any, and each question is all there."""
    asked: Counter[tuple[str, str]] = Counter()
    for body in [seen.json for seen in server.seen if seen.method == "POST"]:
        first, *later = body["messages"]
        kind = part(body)
        if kind in ("plan", "reflect"):
            assert "data:image" not in json.dumps(body)
            assert not any(map(pictures, body["messages"]))
            continue
        [url] = pictures(first)
        told = plain(text(first))
        fitting = [id for id, item in known.items() if plain(item.raw["question"]) in told]
        [identity] = [id for id in fitting if is_picture_of(url, known[id].file)]
        asked[identity, kind] += 1
        found = [message for message in later if pictures(message)]
        assert len(found) <= 1  # image search ran once at most
        assert all(max(opened(each).size) <= 512 for message in found for each in pictures(message))
    assert len(asked) == 2 * count
    assert set(asked.values()) == {1, 3}
    assert all(times == (1 if kind == "caption" else 3) for (_, kind), times in asked.items())


def check_results(out: Path, known: Mapping[str, Item], right: set[str], form: str, count: int) -> None:
    """Rows and report say what the table decided, in all and by part and level."""
    rows = lines(out / "rows.jsonl")
    assert len(rows) == count
    metric = "choice" if form == "choice" else "accepted"
    for row in rows:
        assert row["failure"] is None
        assert row["degraded"] == []
        assert row["judgement"]["method"] == metric
        assert (row["judgement"]["correct"], row["metrics"][metric]) == (row["id"] in right, row["id"] in right)
        assert row["tool_calls"] == {"image_search": 1, "search": 1}
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (summary["complete"], summary["done"], summary["unjudged"], summary["failed"]) == (True, count, 0, 0)
    ids = {row["id"] for row in rows}
    for name in ("part", "level"):
        wanted: dict[str, list[float]] = {}
        for identity in ids:
            wanted.setdefault(getattr(known[identity], name), []).append(identity in right)
        got = {value: (group["judge"]["n"], group["judge"]["mean"]) for value, group in summary["groups"][name].items()}
        assert got == {value: (len(of), pytest.approx(sum(of) / len(of))) for value, of in wanted.items()}
        assert f"## By {name}, in %" in (out / "report.md").read_text(encoding="utf-8")
    assert summary["judge"]["mean"] == pytest.approx(len(ids & right) / count)


def run_and_check(root: Path, form: str, out: Path, count: int) -> None:
    known = items(root)
    answers, right = table(known, form)
    checker = Checker(read_questions(root), answers)
    with serving(checker.respond) as server:
        assert evaluate("eval/livevqa", f"{server.url}/v1", root, form, out) == 0
    assert checker.report() == {
        "requests": {"caption": count, "executor": 3 * count, "planner": 2 * count},
        "pictures_seen": count,
        "image_searches": count,
        "second_searches_refused": count,
        "faults": [],
    }
    check_requests(server, known, count)
    check_results(out, known, right, form, count)


@pytest.mark.parametrize("form", ["open", "choice"])
def test_our_own_questions(form: str, tmp_path: Path) -> None:
    run_and_check(FIXTURE, form, tmp_path / "run", OWN[form])


@pytest.fixture
def sample() -> Path:
    """The real sample of LiveVQA; the test is skipped where it is absent."""
    folder = SHARED / "livevqa"
    if not folder.is_dir():
        pytest.skip(f"no LiveVQA sample at {folder}")
    return folder


@pytest.mark.long
@pytest.mark.parametrize("form", ["open", "choice"])
def test_the_real_sample(form: str, sample: Path, tmp_path: Path) -> None:
    run_and_check(sample, form, tmp_path / "run", 48)


def tokens(file: Path, most: int) -> int:
    """Tokens of a picture for Qwen2.5-VL: its sides as multiples of 28, its area between 3,136 and `most`."""
    with Image.open(file) as shown:
        width, height = shown.size
    sides = [max(28, round(side / 28) * 28) for side in (height, width)]
    if sides[0] * sides[1] > most:
        shrink = math.sqrt(height * width / most)
        sides = [max(28, math.floor(side / shrink / 28) * 28) for side in (height, width)]
    elif sides[0] * sides[1] < 3136:
        grow = math.sqrt(3136 / (height * width))
        sides = [math.ceil(side * grow / 28) * 28 for side in (height, width)]
    return sides[0] * sides[1] // 28**2


def check_tiny(root: Path, form: str, count: int, folder: Path) -> None:
    """A model that sees answers every question in this process; its prompts hold each picture's tokens."""
    pytest.importorskip("torch")
    model = qwen_vl(folder / "model", positions=32768)
    out = folder / "run"
    assert evaluate("eval/livevqa_tiny", f"local:{model}", root, form, out) == 0
    known = items(root)
    pad = QWEN_CONTROL.index("<|image_pad|>") + 256
    runs = lines(out / "trajectories.jsonl")
    assert len(runs) == count
    for run in runs:
        assert run["failure"] is None
        wanted = {"executor": tokens(known[run["question"]["id"]].file, 50176), "planner": 0}
        said = [step for step in run["steps"] if step["reply"]]
        assert {step["role"] for step in said} == {"executor", "planner"}
        for step in said:
            assert step["reply"]["tokens"]["prompt_ids"].count(pad) == wanted[step["role"]]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (summary["complete"], summary["done"], summary["failed"]) == (True, count, 0)
    for name in ("part", "level"):
        groups = summary["groups"][name]
        ids = [run["question"]["id"] for run in runs]
        assert {value: group["done"] for value, group in groups.items()} == Counter(
            getattr(known[id], name) for id in ids
        )


def test_a_tiny_model_sees_our_own_pictures(tmp_path: Path) -> None:
    check_tiny(FIXTURE, "choice", OWN["choice"], tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("form", ["open", "choice"])
def test_a_tiny_model_sees_the_real_sample(form: str, sample: Path, tmp_path: Path) -> None:
    check_tiny(sample, form, 48, tmp_path)


def test_a_damaged_picture_costs_its_own_questions_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "livevqa"
    shutil.copytree(FIXTURE, root)
    broken = root / "Paper" / "images" / "2501.00001" / "x1.png"
    broken.write_bytes(broken.read_bytes()[:45])
    checker = Checker(read_questions(FIXTURE))
    with serving(checker.respond) as server:
        assert evaluate("eval/livevqa", f"{server.url}/v1", root, "open", tmp_path / "run") == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["done"], summary["failed"]) == (6, 2)
    assert summary["failed_by"] == {"data/bad_picture": 2}
    assert summary["groups"]["part"]["Paper"]["failed"] == 2
    assert summary["groups"]["part"]["News"]["failed"] == 0
    assert checker.faults == []


def test_pictures_that_are_missing_are_told(tmp_path: Path) -> None:
    shutil.copytree(FIXTURE / "Paper", tmp_path / "Paper")
    shutil.rmtree(tmp_path / "Paper" / "images")
    script = str(ROOT / "scripts" / "bench" / "livevqa_pictures.py")
    for path, said in [
        (tmp_path, "no folder of pictures; looked for"),
        (tmp_path / "Paper" / "none", "no file or folder"),
    ]:
        told = subprocess.run([sys.executable, script, str(path)], capture_output=True, text=True, check=False)
        assert told.returncode == 1
        assert said in told.stderr
        assert "remedy" in told.stderr
        assert "Traceback" not in told.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--questions", "/nowhere"], "no questions at /nowhere"),
        (["--form", "long"], "--form must be open or choice"),
        (["--stub", "--tiny"], "exclude each other"),
        (["--limit", "some"], "--limit must be a whole number"),
        (["--answers", "a.json"], "--answers is for --stub"),
        (["--questions"], "--questions needs a value"),
    ],
)
def test_the_script_refuses_what_cannot_work(words: list[str], said: str) -> None:
    script = ROOT / "scripts" / "bench_livevqa.sh"
    told = subprocess.run(["bash", str(script), *words], capture_output=True, text=True, check=False)
    assert told.returncode in (1, 2)
    assert said in told.stderr
    assert "remedy" in told.stderr
