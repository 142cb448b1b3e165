"""Search-R1's own way to call `/retrieve`, written down as data, against `local_search/run.sh` on a real socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from local_search.build import build_index

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "local_search" / "run.sh"
NAMES = [f"Item {number}" for number in range(64)]
CONTENTS = [
    f'"{name}"\n{name} is thing number{number} of the list.\nIt has two lines.' for number, name in enumerate(NAMES)
]

# What Search-R1's loop sends after a turn (search_r1/llm_agent/generation.py, `_batch_search`): all queries of the
# batch at once, always with scores. Its server also promises the form without them.
REQUESTS: list[dict[str, Any]] = [
    {"queries": [f"number{number}" for number in range(count)], "topk": 3, **scores}
    for count in (1, 2, 3, 64)
    for scores in ({"return_scores": True}, {"return_scores": False}, {})
]


def environment(**more: str) -> dict[str, str]:
    """The test's environment, with this very Python's folder as the virtual environment that run.sh uses."""
    return {**os.environ, "MIA_VENV": sys.prefix, **more}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("list")
    rows = (json.dumps({"id": str(number), "contents": text}) for number, text in enumerate(CONTENTS))
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    build_index(folder / "corpus.jsonl", folder / "index", ["bm25"])
    variables = environment(MIA__SEARCH__INDEX=str(folder / "index"), MIA__SEARCH__MODE="bm25", PORT="0")
    with subprocess.Popen(["bash", str(RUN)], stderr=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        try:
            assert said.startswith("serving 64 passages"), said
            yield said.split(" at ")[1].strip()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def passages_to_string(retrieval_result: list[Any]) -> str:
    """How Search-R1 writes the passages of a query for its model."""
    written = ""
    for index, item in enumerate(retrieval_result):
        content = item["document"]["contents"]
        title = content.split("\n")[0]
        text = "\n".join(content.split("\n")[1:])
        written += f"Doc {index + 1}(Title: {title}) {text}\n"
    return written


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda body: f"{len(body['queries'])}-{body.get('return_scores')}")
def test_answers_have_the_shapes_of_search_r1(url: str, request_: dict[str, Any]) -> None:
    response = httpx.post(f"{url}/retrieve", json=request_, timeout=60)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    answer = response.json()
    assert list(answer) == ["result"]
    assert len(answer["result"]) == len(request_["queries"])
    for number, hits in enumerate(answer["result"]):
        own = {"id": str(number), "contents": CONTENTS[number]}
        if request_.get("return_scores"):
            [hit] = hits
            assert list(hit) == ["document", "score"]
            assert hit["document"] == own
            assert isinstance(hit["score"], float)
        else:
            assert hits == [own]


@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_the_loop_reads_what_it_gets(url: str, count: int) -> None:
    queries = [f"number{number}" for number in range(count)]
    payload = {"queries": queries, "topk": 3, "return_scores": True}
    results = httpx.post(f"{url}/retrieve", json=payload, timeout=60).json()["result"]
    assert [passages_to_string(result) for result in results] == [
        f'Doc 1(Title: "Item {number}") Item {number} is thing number{number} of the list.\nIt has two lines.\n'
        for number in range(count)
    ]


def test_three_passages_unless_said_otherwise(url: str) -> None:
    answer = httpx.post(f"{url}/retrieve", json={"queries": ["thing list"]}, timeout=60).json()
    assert [hit["id"] for hit in answer["result"][0]] == ["0", "1", "2"]


# ------------------------------------------------------------------------------------------ run.sh


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(RUN), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**variables), cwd="/", timeout=120)


def test_run_has_help() -> None:
    shown = run("--help")
    assert (shown.returncode, shown.stdout.count("bash run.sh") >= 2, "8001" in shown.stdout) == (0, True, True)
    assert shown.stdout.rstrip().endswith("`mia serve search`.")


def test_run_listens_on_8001_as_the_original_does() -> None:
    text = RUN.read_text(encoding="utf-8")
    assert '--port "${PORT:-8001}"' in text


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"MIA__SEARCH__INDEX": "/nowhere/index"}, "MIA__SEARCH__INDEX=/nowhere/index is no folder"),
        ({"PORT": "http"}, "PORT=http is no number"),
        ({"WORKERS": "-2"}, "WORKERS=-2 is no number"),
        ({"MIA__SEARCH__INDEX": "/usr"}, "index /usr holds no finished index"),
        ({"MIA__SEARCH__MODE": "magic"}, "search.mode"),
    ],
)
def test_run_names_what_is_wrong(variables: dict[str, str], words: str) -> None:
    ended = run(**variables)
    assert ended.returncode in (1, 2)
    assert words in ended.stderr
    assert "remedy: " in ended.stderr


def test_run_tells_an_occupied_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = run(PORT=port)
    assert (ended.returncode, f"cannot listen on 127.0.0.1:{port}" in ended.stderr) == (2, True)
