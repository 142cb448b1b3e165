"""miniwiki: a bundled corpus of short encyclopedic passages with questions, generated from tables of facts.

`passages()` gives the corpus, `questions(split)` the questions of a split, `write(out)` both as JSON lines. Everything
is derived from the CSV files in `tables/`: a new row gives new passages and questions and moves no others.
Left out: anything the tables do not say. Standard library only; the same bytes on every run and machine.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from local_search.miniwiki.asking import Question, Step, build_questions, open_book
from local_search.miniwiki.facts import TABLES, FactError, load
from local_search.miniwiki.prose import Passage, build_passages
from local_search.miniwiki.splits import SPLITS, Split

__all__ = ["SPLITS", "TABLES", "FactError", "Passage", "Question", "Split", "Step", "passages", "questions", "write"]


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


def write(out: Path, tables: Path = TABLES) -> dict[str, int]:
    """Writes corpus.jsonl and questions.{train,dev,test}.jsonl into a folder; returns the rows per file."""
    out.mkdir(parents=True, exist_ok=True)
    files: dict[str, list[dict[str, object]]] = {
        "corpus.jsonl": [{"id": passage.id, "contents": passage.contents} for passage in passages(tables)]
    }
    for split in SPLITS:
        files[f"questions.{split}.jsonl"] = [asdict(question) for question in questions(split, tables)]
    for name, rows in files.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (out / name).write_text(text, encoding="utf-8", newline="\n")
    return {name: len(rows) for name, rows in files.items()}
