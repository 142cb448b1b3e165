"""Training in two processes (gloo, CPU) against one: the same rollouts, the same curve."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_models

pytest.importorskip("trl")
ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_two_processes_learn_as_one(tmp_path: Path) -> None:
    place = tiny_models.chat_llama(tmp_path / "model")

    def curve(processes: int, each: int) -> Any:
        out = tmp_path / str(processes)
        launch = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--master_port", "29641"]
        command = [sys.executable, *launch, "-m", "tests.playing", str(place), str(out), str(each)]
        subprocess.run(command, check=True, cwd=ROOT, capture_output=True, timeout=300)
        return json.loads((out / "curve.json").read_text(encoding="utf-8"))

    one, two = curve(1, 8), curve(2, 4)
    assert len(one) == 3
    assert two == [pytest.approx(line, rel=1e-3) for line in one]
    lines = []
    for folder, ranks in (("1", 1), ("2", 2)):
        files = [tmp_path / folder / "rollouts" / f"train-000002-{rank}.jsonl" for rank in range(ranks)]
        found = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
        lines.append([line["tokens"]["completion_ids"] for line in found])
    assert lines[0] == lines[1]
