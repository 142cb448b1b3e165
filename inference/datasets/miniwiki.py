"""miniwiki: this project's own questions on the bundled corpus (see `local_search.miniwiki`); no file is read.

`split` is train, dev or test; empty: test. A question has all accepted spellings of its answer, type bridge or
comparison, its number of hops as its level, and the titles of its gold chain. The checksum is that of the file
`questions.SPLIT.jsonl` that `python -m local_search.miniwiki --out DIR` writes. MIT, as this project.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from inference.datasets.rows import Context, example
from local_search import miniwiki
from mia.examples import Example

VERSION = "1"
SPLITS = ("train", "dev", "test")


def examples(context: Context) -> Iterator[Example]:
    """The examples of a split."""
    for question in miniwiki.questions(_split(context.config.split)):
        yield example(
            context,
            id=question.id,
            text=question.question,
            answers=question.answers,
            type=question.type,
            level=f"{question.hops} hops" if question.hops > 1 else "1 hop",
            supporting_titles=question.supporting_titles,
        )


def sha256(split: str) -> str:
    """SHA-256 of the questions of a split as they are written to a file."""
    return hashlib.sha256(miniwiki.lines(miniwiki.questions(_split(split))).encode()).hexdigest()


def _split(split: str) -> miniwiki.Split:
    return next((known for known in miniwiki.SPLITS if known == split), "test")
