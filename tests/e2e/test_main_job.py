"""The main job with the real embedded model over the bundled corpus, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.embedded


def mia(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MIA_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "mia.cli", *argv], capture_output=True, text=True, check=False, env=environment
    )


def test_ask_remembers_and_a_similar_question_recalls(tmp_path: Path) -> None:
    first = mia(tmp_path, "ask", "Which river flows through the capital of Austria?")
    assert first.returncode == 0, first.stderr
    lines = {line.split()[0] for line in first.stdout.splitlines() if line.strip()}
    assert {"plan", "search", "found", "answer", "remember"} <= lines
    found = next(line for line in first.stdout.splitlines() if line.strip().startswith("found"))
    assert "Vienna" in found
    memory_id = first.stdout.split("as memory ")[1].split()[0]

    second = mia(tmp_path, "ask", "Which river flows through the capital of Hungary?", "--json")
    assert second.returncode == 0, second.stderr
    run = json.loads(second.stdout)
    recalled = [scored["memory"]["id"] for scored in run["recalled"]["unjudged"]]
    assert recalled == [memory_id]
    assert run["steps"][0]["reply"]["text"]
