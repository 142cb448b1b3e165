"""miniwiki: a bundled corpus of short encyclopedic passages with questions, generated from tables of facts.

`passages()` gives the corpus, `questions(split)` the questions of a split, `write(out)` both as JSON lines. Everything
is derived from the CSV files in `tables/`: a new row gives new passages and questions and moves no others.
Left out: anything the tables do not say. Standard library only; the same bytes on every run and machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from local_search.miniwiki.asking import Question, Step, build_questions, open_book
from local_search.miniwiki.facts import TABLES, FactError, load
from local_search.miniwiki.prose import Passage, build_passages
from local_search.miniwiki.splits import SPLITS, Split

__all__ = [
    "SPLITS",
    "TABLES",
    "FactError",
    "Passage",
    "Question",
    "Split",
    "Step",
    "lines",
    "passages",
    "questions",
    "write",
]


@lru_cache(maxsize=4)
def _build(tables: Path) -> tuple[tuple[Passage, ...], tuple[Question, ...]]:
    world = load(tables)
    built = build_passages(world, tables)
    return built, build_questions(open_book(world, built, tables))


def passages(tables: Path = TABLES) -> tuple[Passage, ...]:
    """All passages, one per record, in table order."""
    return _build(tables)[0]


def questions(split: Split | None = None, tables: Path = TABLES) -> tuple[Question, ...]:
    """The questions of a split, or of all splits; none of a test question's passages serves a train question."""
    return tuple(question for question in _build(tables)[1] if split is None or question.split == split)


def lines(rows: Iterable[Question]) -> str:
    """Questions as JSON lines, a row each."""
    return _lines(asdict(row) for row in rows)


def _lines(rows: Iterable[dict[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write(out: Path, tables: Path = TABLES) -> dict[str, int]:
    """Writes corpus.jsonl and questions.{train,dev,test}.jsonl into a folder; returns the rows per file."""
    out.mkdir(parents=True, exist_ok=True)
    corpus = passages(tables)
    files = {"corpus.jsonl": _lines({"id": each.id, "contents": each.contents} for each in corpus)}
    counts = {"corpus.jsonl": len(corpus)}
    for split in SPLITS:
        asked = questions(split, tables)
        files[f"questions.{split}.jsonl"] = lines(asked)
        counts[f"questions.{split}.jsonl"] = len(asked)
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8", newline="\n")
    return counts
