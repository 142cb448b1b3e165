"""The real command over the real HotpotQA passages: a capable model reaches the right answer through our loop.

The model is a reader on loopback that reasons by rules over exactly the messages it is sent; it is given no answer.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mia.cli import main
from tests.doubles import call, chat_endpoint

NATIONALITY = re.compile(r"\bis an? ([A-Z]\w+)|\bwas an? ([A-Z]\w+)")


def same_nationality(messages: list[dict[str, Any]]) -> str:
    """Searches for both people of the question in one turn, then compares what their passages say."""
    first, last = messages[0]["content"], messages[-1]["content"]
    if "another round" in last:
        return "no. Both passages state it."
    if last.rstrip().endswith("Plan:"):
        return "1. Search for the first person.\n2. Search for the second person.\n3. Compare their nationalities."
    match = re.search(r"Were (.+?) and (.+?) of the same nationality", first)
    assert match is not None
    if "<tool_response>" not in last:
        return "<think>Two people.</think>" + call(match.group(1)) + call(match.group(2))
    found = []
    for person in match.groups():
        passage = re.search(rf"^{re.escape(person)}: (.*)", last, re.MULTILINE)
        nationality = NATIONALITY.search(passage.group(1)) if passage else None
        found.append(next(filter(None, nationality.groups())) if nationality else None)
    verdict = "yes" if found[0] is not None and found[0] == found[1] else "no"
    return f"<think>{found}</think>\n<answer>{verdict}</answer>"


@pytest.fixture(scope="module")
def index(hotpotqa: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BM25 index of the whole sample (dense vectors of it take a minute; the retrieval benchmark covers them)."""
    out = tmp_path_factory.mktemp("hotpotqa") / "index"
    assert main(["index", "build", str(hotpotqa / "corpus.jsonl"), "--out", str(out), "--engines", "bm25"]) == 0
    return out


def test_the_loop_answers_a_real_question(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = "Were Scott Derrickson and Ed Wood of the same nationality?"
    with chat_endpoint(same_nationality) as url:
        argv = ["ask", "--url", url, "--search.index", str(index), "--search.mode", "bm25", "--json", question]
        capsys.readouterr()
        assert main([*argv, "--reference", "yes"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert run["answer"] == "yes"
    assert run["judgement"]["correct"] is True
    titles = {hit["passage"]["title"] for step in run["steps"] for obs in step["observations"] for hit in obs["hits"]}
    assert {"Scott Derrickson", "Ed Wood"} <= titles
    assert run["memory"]["action"] == "stored"
