"""`mia eval` as a command: over a stub endpoint and the bundled corpus, with its exit codes, its stop by a signal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference.cli import read_profile
from inference.evaluation.cli import eval_parser
from inference.evaluation.config import EvalConfig
from mia.cli import main, parse
from mia.config import load
from mia.errors import ConfigError
from tests.doubles import chat_endpoint
from tests.evaluating import lines_of, oracle, wire, write_questions

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def endpoint() -> Iterator[str]:
    with chat_endpoint(wire(oracle)) as url:
        yield url


@pytest.fixture
def index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "contents": "\\"Vienna\\"\\nVienna lies on the Danube."}\n', encoding="utf-8")
    assert main(["index", "build", str(corpus), "--out", str(tmp_path / "index"), "--engines", "bm25"]) == 0
    capsys.readouterr()
    return tmp_path / "index"


def command(questions: Path, url: str, index: Path, *more: str) -> list[str]:
    config = questions.with_name("mine.toml")
    config.write_text(
        f'[dataset]\nname = "jsonl"\npath = "{questions}"\n[models.default]\nurl = "{url}"\nmodel = "stub"\n'
        f'[search]\nindex = "{index}"\nmode = "bm25"\n[method]\nname = "react"\n[eval.price]\ninput = 1000\n',
        encoding="utf-8",
    )
    return ["eval", str(config), *more]


def test_a_run_from_config_to_report(
    endpoint: str, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = write_questions(tmp_path / "questions.jsonl", 6)
    argv = command(questions, endpoint, index, "--limit", "4")
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert "4/4  accuracy" in captured.err
    assert "EM" in captured.out
    out = tmp_path / "mia-home" / "evals" / "mine-react"
    assert str(out) in captured.out
    files = {path.name for path in out.iterdir()}
    assert files >= {"config.json", "dataset.json", "environment.json", "rows.jsonl", "trajectories.jsonl",
                     "predictions.jsonl", "summary.json", "report.md", "report.html"}  # fmt: skip
    kept = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert kept["config"]["eval"]["limit"] == 4
    assert len(kept["digest"]) == 64
    made = (out / "environment.json").read_text(encoding="utf-8") + (out / "dataset.json").read_text(encoding="utf-8")
    assert str(tmp_path) not in made
    assert os.uname().nodename not in made

    assert main(argv) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert main([*argv, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] == 4
    assert main(command(questions, endpoint, index, "--limit", "5", "--resume")) == 2
    assert "eval.limit was 4 and is 5" in capsys.readouterr().err


def test_a_dead_endpoint_exits_with_1_and_keeps_a_summary(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = write_questions(tmp_path / "questions.jsonl", 9)
    argv = command(questions, "http://127.0.0.1:9/v1", index, "--out", str(tmp_path / "run"))
    assert main([*argv, "--models.default.retries", "0", "--json"]) == 1
    captured = capsys.readouterr()
    assert "5 questions in a row failed" in captured.err
    summary = json.loads(captured.out)
    assert (summary["complete"], summary["answered"]) == (False, 0)
    assert summary["failed"] >= 5
    assert summary["ended"]["code"] == "unreachable"
    assert main(["eval", "eval/nothing"]) == 2
    assert "no profile 'eval/nothing'" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_and_what_was_done_is_kept(
    number: signal.Signals, code: int, index: Path, tmp_path: Path
) -> None:
    enough, asked = threading.Event(), 0

    def slow(messages: list[dict[str, Any]]) -> str:
        nonlocal asked
        asked += 1
        if asked >= 12:
            enough.set()
            threading.Event().wait(0.2)
        return wire(oracle)(messages)

    questions = write_questions(tmp_path / "questions.jsonl", 200)
    with chat_endpoint(slow) as url:
        argv = command(questions, url, index, "--out", str(tmp_path / "run"), "--eval.concurrency", "2")
        process = subprocess.Popen(
            [sys.executable, "-m", "mia.cli", *argv],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert enough.wait(60)
        process.send_signal(number)
        shown, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "the run was interrupted" in errors
    assert "--resume" in errors
    assert "The run is not complete" in shown
    rows = lines_of(tmp_path / "run" / "rows.jsonl")
    assert 0 < len(rows) < 200
    assert json.loads((tmp_path / "run" / "summary.json").read_bytes())["ended"]["code"] == "interrupted"


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "eval").glob("*.toml")), ids=lambda path: path.name)
def test_every_profile_is_an_evaluation(path: Path) -> None:
    config = load(EvalConfig, path)
    assert path.read_text(encoding="utf-8").splitlines()[1].startswith("# mia eval eval/")
    assert config.dataset.name in path.name or path.name == "memories.toml"


def test_commands_of_the_readme_are_good_ones() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^(mia (?:eval|compare) .*?|bash scripts/\S+)(?:  +#.*)?$", text, re.MULTILINE)
    assert len(found) >= 4
    for line in found:
        words = line.split()
        if words[0] == "bash":
            assert (ROOT / words[1]).is_file(), line
        elif words[1] == "eval":
            args, flags = parse(eval_parser(), words[2:])
            read_profile(EvalConfig, args.config, flags)


def test_repeats_cannot_share_a_memory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="memories of their own"):
        load(EvalConfig, None, {"eval.repeats": 2, "memory.path": str(tmp_path / "m.db")})
    load(EvalConfig, None, {"eval.repeats": 2, "memory.path": str(tmp_path / "m.db"), "eval.memory": "read-only"})


@pytest.mark.parametrize(
    ("script", "words", "code", "said"),
    [
        ("bench_hotpotqa.sh", ["--questions", "/nowhere/q.jsonl"], 1, "no questions at /nowhere/q.jsonl"),
        ("bench_hotpotqa.sh", ["--questions", str(ROOT / "README.md"), "--corpus", "/nowhere"], 1, "--corpus"),
        ("bench_hotpotqa.sh", ["--limit", "many"], 2, "must be a whole number"),
        ("bench_hotpotqa.sh", ["--limits", "3"], 2, "unknown option --limits"),
        ("bench_memories.sh", ["--config", "/nowhere.toml"], 1, "no config at /nowhere.toml"),
        ("bench_memories.sh", ["--out"], 2, "--out needs a value"),
    ],
)
def test_scripts_fail_sensibly(script: str, words: list[str], code: int, said: str) -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / script), *words], capture_output=True, text=True, check=False, cwd="/"
    )
    assert (done.returncode, said in done.stderr, "remedy:" in done.stderr) == (code, True, True), done.stderr


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    config = tmp_path / "keyed.toml"
    config.write_text('[models.default]\nurl = "https://api.example.org/v1"\napi_key_env = "EXAMPLE_KEY"\n', "utf-8")
    done = subprocess.run(
        ["bash", str(ROOT / "scripts/bench_hotpotqa.sh"), "--config", str(config), "--questions", str(config),
         "--corpus", str(config)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "EXAMPLE_KEY" in done.stderr
