"""The stream of questions: which, in what order, and under which run ids. The same settings give the same stream."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from inference.datasets import Dataset
from inference.evaluation.config import EvalSection
from inference.evaluation.row import Item
from mia.examples import Example

_ID = 80
"""Characters of a run's id, at most."""


def stream(dataset: Dataset, section: EvalSection) -> list[list[Item]]:
    """The questions of each repeat, in order. All repeats have the same order.

    A shuffled order is that of the hashes of seed and id: it needs no generator whose numbers may change, and a limit
    gives the first of it, so that a smaller sample is part of a larger one.
    """
    examples: Sequence[Example] = dataset.examples
    if section.order == "shuffled":
        examples = sorted(examples, key=lambda example: _hash(f"{section.seed}:{example.question.id}"))
    if section.limit:
        examples = examples[: section.limit]
    return [
        [
            Item(example, repeat, repeat * len(examples) + place, run_id(dataset.name, example.question.id, repeat))
            for place, example in enumerate(examples)
        ]
        for repeat in range(section.repeats)
    ]


def run_id(dataset: str, question: str, repeat: int) -> str:
    """The id of a run: `<dataset>-<question>-<repeat>`; what no file name can hold is replaced, and a hash added."""
    plain = f"{dataset}-{question}-{repeat}"
    clean = re.sub(r"[^A-Za-z0-9_.\-]", "_", plain)
    if clean == plain and len(clean) <= _ID:
        return clean
    mark = f"-{_hash(plain)[:12]}-{repeat}"
    return f"{clean[: _ID - len(mark)]}{mark}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
