"""The stream: predict, then learn; one row a question; what each arm changes and what it leaves as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_models
from tests.evaluating import lines_of, write_questions
from tests.learning import Stage

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.chat_llama(tmp_path_factory.mktemp("model"), positions=8192)


def predicted(out: Path, epoch: int = 1) -> list[dict[str, Any]]:
    return lines_of(out / f"epoch-{epoch}" / "predictions.jsonl")


def test_every_question_has_one_row(tiny: Path, tmp_path: Path) -> None:
    asked = write_questions(tmp_path / "q.jsonl", 10)
    summaries, ended = Stage(tiny).run(asked, tmp_path / "out")
    assert ended is None
    assert summaries["epoch-1"]["complete"]
    assert [row["id"] for row in predicted(tmp_path / "out")] == [f"q{n}" for n in range(10)]
    steps = [json.loads(path.read_text()) for path in sorted((tmp_path / "out" / "batches").glob("*.step.json"))]
    assert len(steps) == 3
    assert steps[-1]["version"] == 3
