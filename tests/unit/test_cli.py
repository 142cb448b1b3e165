"""The command line: dispatch, exit codes, messages, and the verbs ask, show and doctor over a stub endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference.cli import read_config
from mia.cli import main
from mia.errors import ConfigError
from tests.doubles import chat_endpoint


def answer(messages: list[dict[str, Any]]) -> str:
    """A fixed script: plan, search, answer, no replan."""
    text = messages[-1]["content"]
    if "Plan:" in text:
        return "1. Find the capital.\n2. Find its river."
    if "another round" in text:
        return "no, supported"
    if "<tool_response>" in text:
        return "<answer>Danube</answer>"
    return '<tool_call>{"name": "search", "arguments": {"query": "river of [Vienna]"}}</tool_call>'


@pytest.fixture
def endpoint() -> Iterator[str]:
    with chat_endpoint(answer) as url:
        yield url


CORPUS = [
    {"id": "1", "contents": '"Vienna"\nVienna, the capital of Austria, lies on the Danube.'},
    {"id": "2", "contents": '"Rome"\nRome, the capital of Italy, lies on the Tiber.'},
]


@pytest.fixture
def index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(map(json.dumps, CORPUS)) + "\n", encoding="utf-8")
    assert main(["index", "build", str(corpus), "--out", str(tmp_path / "index")]) == 0
    capsys.readouterr()
    return tmp_path / "index"


def ask(endpoint: str, index: Path, *more: str) -> list[str]:
    return ["ask", "--url", endpoint, "--search.index", str(index), "--search.mode", "bm25", *more]


def test_ask_prints_every_stage_and_show_prints_it_again(
    endpoint: str, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = "Which river flows through the capital of Austria?"
    assert main(ask(endpoint, index, question, "--reference", "Danube")) == 0
    shown = capsys.readouterr().out
    for part in ("nothing similar yet", "1. Find the capital.", '"river of [Vienna]"', "Vienna", "keep the answer"):
        assert part in shown
    assert "answer  Danube" in shown
    assert "correct (em" in shown
    assert "stored as memory" in shown
    run_id = shown.split("mia show ")[1].split(")")[0]

    assert main(["show", run_id]) == 0
    again = capsys.readouterr().out
    for part in (question, "1. Find the capital.", '"river of [Vienna]"', "answer  Danube", "4 model calls"):
        assert part in again

    assert main(["show", "last", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == run_id
    assert main(["show"]) == 0
    assert run_id in capsys.readouterr().out
    assert main(["show", "--json", "--limit", "1"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["answer"] == "Danube"

    assert main(ask(endpoint, index, "Which river flows through the capital of Hungary?")) == 0
    assert f"recall  worked: {question}" in capsys.readouterr().out


def test_json_is_the_whole_trajectory_and_events_go_to_stderr(
    endpoint: str, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ask(endpoint, index, "Which river?", "--json")) == 0
    captured = capsys.readouterr()
    run = json.loads(captured.out)
    assert run["answer"] == "Danube"
    assert [step["purpose"] for step in run["steps"]] == ["plan", "act", "act", "reflect"]
    assert run["steps"][1]["observations"][0]["hits"][0]["passage"]["title"] == "Vienna"
    assert run["memory"]["action"] == "stored"
    assert "answer  Danube" in captured.err


def test_a_dead_endpoint_fails_with_the_remedy(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ask("http://127.0.0.1:9/v1", index, "Which river?", "--models.default.retries", "0")
    assert main(argv) == 1
    captured = capsys.readouterr()
    assert "cannot be reached" in captured.err
    assert "start the endpoint" in captured.err


def test_bad_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["aks"]) == 2
    assert "did you mean `mia ask`" in capsys.readouterr().err
    assert main(["index"]) == 2
    assert "mia index build" in capsys.readouterr().err
    assert main(["index", "--help"]) == 0
    assert main(["ask", "x", "--agent.max_turn", "3"]) == 2
    assert "did you mean 'max_turns'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["ask"])
    assert stop.value.code == 2


def test_blank_question_and_missing_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "  "]) == 2
    assert "the question is blank" in capsys.readouterr().err
    assert main(["ask", "x", "--reference", " "]) == 2
    assert "--reference is blank" in capsys.readouterr().err
    assert main(["ask", "x", "--image", "none.png", "--url", "http://127.0.0.1:9/v1"]) == 2
    assert "cannot read none.png" in capsys.readouterr().err
    assert main(["show", "nope"]) == 1
    assert "no run 'nope'" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip().count(".") == 2


def test_doctor_says_what_is_missing(
    endpoint: str, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--models.default.url", endpoint, "--search.index", str(index), "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["model: endpoint"]["state"] == "ok"
    assert "2 passages" in checks["index"]["detail"]
    assert {"python", "packages: search", "memory", "GPU", "Java"} <= checks.keys()

    dead = "http://127.0.0.1:9/v1"
    argv = ["doctor", "--models.default.url", dead, "--search.index", str(tmp_path / "none")]
    assert main([*argv, "--json"]) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert checks["model: endpoint"]["state"] == "missing"
    assert "does not answer" in checks["model: endpoint"]["detail"]
    assert checks["index"]["state"] == "missing"
    assert "mia index build" in checks["index"]["detail"]
    assert main(argv) == 1
    assert "missing" in capsys.readouterr().out


def test_doctor_names_empty_keys_and_dead_services(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["doctor", "--models.default.url", "http://127.0.0.1:9/v1", "--models.default.api_key_env", "NO_SUCH_KEY"]
    argv += ["--search.url", "http://127.0.0.1:9", "--memory.url", "http://127.0.0.1:9", "--json"]
    assert main(argv) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert "NO_SUCH_KEY is empty" in checks["model"]["detail"]
    assert checks["search service"]["state"] == "missing"
    assert checks["memory service"]["state"] == "missing"


def test_profiles_by_name() -> None:
    assert read_config(None, {}).agent.seed_search is True
    assert read_config(None, {"models.default.url": "http://127.0.0.1:1/v1"}).agent.seed_search is False
    assert read_config("laptop", {}).models.default.url.startswith("http")
    with pytest.raises(ConfigError, match="no profile 'none'"):
        read_config("none", {})


def test_a_picture_that_cannot_be_read_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--url", "http://127.0.0.1:1/v1", "--model", "m"]
    assert main(["ask", "What is this?", "--image", str(tmp_path / "none.png"), *flags]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_pictures_need_a_model_that_sees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "What is this?", "--image", str(tmp_path / "x.png")]) == 2
    assert "reads text only" in capsys.readouterr().err


def test_errors_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "nope", "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["boundary"] == "data"
    assert error["remedy"]


def test_the_list_of_runs_is_short_and_survives_a_broken_file(
    endpoint: str, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = "Which river? " + "\x1b[31m[bold]long " * 500
    assert main(ask(endpoint, index, question)) == 0
    shown = capsys.readouterr().out
    run_id = shown.split("mia show ")[1].split(")")[0]
    runs = tmp_path / "mia-home" / "runs"
    (runs / "29991231-broken.json").write_text("{}")
    (runs / "my notes.json").write_text("{}")
    assert main(["show"]) == 0
    captured = capsys.readouterr()
    assert run_id in captured.out
    assert len(captured.out.splitlines()) < 10
    assert "\x1b" not in captured.out
    assert "29991231-broken.json is not a run" in captured.err
    assert main(["show", run_id]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_runs_that_cannot_be_kept_are_told_before_any_work(
    endpoint: str, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(ask(endpoint, index, "Which river?", "--runs", "/proc/none")) == 1
    assert "runs cannot be kept in /proc/none" in capsys.readouterr().err
    assert main(ask(endpoint, index, "Which river?", "--json", "--memory.path", str(index))) == 1
    assert "--memory.enabled false" in capsys.readouterr().err
