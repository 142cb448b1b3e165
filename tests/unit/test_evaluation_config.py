"""How a dataset is judged when the config does not say."""

from __future__ import annotations

import pytest

from inference.evaluation.config import EvalConfig, with_own_judge
from mia.config import load


@pytest.mark.parametrize(
    ("flags", "method"),
    [
        ({"dataset.name": "hotpotqa"}, "em"),
        ({"dataset.name": "livevqa"}, "accepted"),
        ({"dataset.name": "livevqa", "dataset.form": "choice"}, "choice"),
        ({"dataset.name": "livevqa", "dataset.form": "choice", "judge.tries": 2}, "choice"),
        ({"dataset.name": "livevqa", "dataset.form": "choice", "judge.method": "model"}, "model"),
        ({"dataset.name": "livevqa", "judge.method": "em"}, "em"),
        ({"dataset.name": "gaia"}, "gaia"),
        ({"dataset.name": "jsonl", "dataset.columns.choice": "letter"}, "choice"),
        ({"dataset.name": "jsonl"}, "em"),
    ],
)
def test_a_dataset_is_judged_as_its_makers_do(flags: dict[str, object], method: str) -> None:
    config = with_own_judge(load(EvalConfig, None, flags))
    assert config.judge.method == method
    assert config.judge.tries == flags.get("judge.tries", 3)
