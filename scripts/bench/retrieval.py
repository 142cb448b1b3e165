"""Measures retrieval on the HotpotQA sample: bm25s used directly, and our BM25, dense and hybrid ranking.

Over the questions with gold passages: recall@k is the mean share of a question's gold titles among the first k
passages, all@5 the share of questions whose gold titles are all among the first 5. Ends with 1 when the hybrid falls
behind the better of its two parts, or our BM25 differs from bm25s. Left out: confidence intervals; with 40 questions
a difference under 0.1 says little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from local_search.build import build_index
from local_search.config import Mode
from local_search.corpus import read_corpus, read_rows
from local_search.engine import SearchEngine
from local_search.index import is_index
from local_search.progress import bar
from mia.cli import report
from mia.errors import DataError, MiaError
from mia.extras import need

EXAMPLES = """examples:
  python scripts/bench/retrieval.py --data ../shared/data/hotpotqa
  python scripts/bench/retrieval.py --data ../shared/data/hotpotqa --index /tmp/hotpotqa-index --json
"""
DEPTH = 5
MODES: tuple[Mode, ...] = ("bm25", "dense", "hybrid")

Searcher = Callable[[str], Awaitable[list[str]]]
"""A question to the titles of its first DEPTH passages."""


class Gold(BaseModel):
    """A question with the titles that answer it."""

    question: str
    supporting_titles: list[str] = []


class Row(BaseModel):
    """Figures of one system over `n` questions; milliseconds per question, one at a time."""

    system: str
    n: int
    recall_2: float
    recall_5: float
    all_5: float
    ms: float


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = argparse.ArgumentParser(
        description="Compare rankings on HotpotQA: recall@2, recall@5, all gold titles in the first 5.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    args.add_argument("--data", type=Path, required=True, help="folder with corpus.jsonl and questions.jsonl")
    args.add_argument("--index", type=Path, help="index to use, built there if missing (default: a temporary one)")
    args.add_argument("--json", action="store_true", help="print rows as JSON")
    given = args.parse_args(argv)
    try:
        return asyncio.run(_run(given.data, given.index, given.json))
    except MiaError as error:
        return report(error)


async def _run(data: Path, index: Path | None, as_json: bool) -> int:
    corpus, golds = data / "corpus.jsonl", read_gold(data / "questions.jsonl")
    with tempfile.TemporaryDirectory() as scratch:
        folder = index or Path(scratch) / "index"
        if not is_index(folder):
            with bar() as step:
                build_index(corpus, folder, step=step)
        rows = [await measured("bm25s used directly", direct(corpus), golds)]
        rows += [await measured(mode, ours(folder, mode), golds) for mode in MODES]
    faults = shortfalls(rows)
    if as_json:
        print(json.dumps({"rows": [row.model_dump() for row in rows], "faults": faults}, indent=2))
    else:
        _print_table(rows)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def read_gold(path: Path) -> list[Gold]:
    """The questions of a file that have gold titles.

    Raises:
        DataError: the file cannot be read or has no such question.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        questions = [Gold.model_validate_json(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}", remedy="check --data") from error
    golds = [question for question in questions if question.supporting_titles]
    if not golds:
        raise DataError(f"{path} has no question with supporting_titles", remedy="check --data")
    return golds


def direct(corpus: Path) -> Searcher:
    """bm25s as its README shows it, on the rows as they are."""
    bm25s, stemmer = need("bm25s", "search"), need("Stemmer", "search").Stemmer("english")
    titles = [passage.title for passage in read_corpus(corpus)]
    retriever: Any = bm25s.BM25()
    tokens = bm25s.tokenize([row.contents for row in read_rows(corpus)], stemmer=stemmer, show_progress=False)
    retriever.index(tokens, show_progress=False)

    async def search(question: str) -> list[str]:
        words = bm25s.tokenize([question], stemmer=stemmer, return_ids=False, show_progress=False)
        rows, _ = retriever.retrieve(words, k=DEPTH, show_progress=False)
        return [titles[row] for row in rows[0]]

    return search


def ours(index: Path, mode: Mode) -> Searcher:
    """Our engine in one of its modes."""
    engine = SearchEngine.open(index, mode)
    engine.warm()

    async def search(question: str) -> list[str]:
        [hits] = await engine.search([question], DEPTH)
        return [hit.passage.title for hit in hits]

    return search


async def measured(system: str, search: Searcher, golds: Sequence[Gold]) -> Row:
    """Figures of one system."""
    started = time.perf_counter()
    found = [await search(gold.question) for gold in golds]
    seconds = time.perf_counter() - started

    def recall(k: int) -> float:
        shares = [
            len(set(gold.supporting_titles) & set(titles[:k])) / len(set(gold.supporting_titles))
            for gold, titles in zip(golds, found, strict=True)
        ]
        return sum(shares) / len(shares)

    complete = [set(gold.supporting_titles) <= set(titles) for gold, titles in zip(golds, found, strict=True)]
    return Row(
        system=system,
        n=len(golds),
        recall_2=recall(2),
        recall_5=recall(5),
        all_5=sum(complete) / len(complete),
        ms=seconds / len(golds) * 1000,
    )


def shortfalls(rows: Sequence[Row]) -> list[str]:
    """What was promised and is not so."""
    reference, bm25, dense, hybrid = rows
    faults = []
    for figure in ("recall_2", "recall_5", "all_5"):
        of = {row.system: float(getattr(row, figure)) for row in rows}
        if of[bm25.system] != of[reference.system]:
            faults.append(f"{figure}: bm25 {of[bm25.system]:.3f} is not bm25s' {of[reference.system]:.3f}")
        if of[hybrid.system] < max(of[bm25.system], of[dense.system]):
            faults.append(f"{figure}: hybrid {of[hybrid.system]:.3f} is behind one of its parts")
    return faults


def _print_table(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("system", "recall@2", "recall@5", "all@5", "ms", title=f"HotpotQA, {rows[0].n} questions")
    for row in rows:
        table.add_row(
            row.system, *(f"{value:.3f}" for value in (row.recall_2, row.recall_5, row.all_5)), f"{row.ms:.1f}"
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
