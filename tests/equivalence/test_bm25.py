"""BM25 against the textbook formula in plain Python, and against bm25s used directly."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bm25s
import pytest
import Stemmer

from local_search.bm25 import Bm25, tokenize
from local_search.bm25_build import merge, write_postings
from local_search.build import build_index
from local_search.corpus import read_rows
from local_search.engine import SearchEngine
from local_search.passages import searched_text

K1, B = 1.5, 0.75


def textbook(documents: Sequence[Sequence[str]], query: Sequence[str]) -> list[float]:
    """Lucene's BM25 (Kamphuis et al. 2020, table 1): idf = ln(1 + (N - df + 0.5) / (df + 0.5)), no factor k1 + 1."""
    mean = sum(map(len, documents)) / len(documents)
    counts = [Counter(document) for document in documents]
    scores = [0.0] * len(documents)
    for word in query:
        having = sum(word in count for count in counts)
        idf = math.log(1 + (len(documents) - having + 0.5) / (having + 0.5))
        for number, (document, count) in enumerate(zip(documents, counts, strict=True)):
            if word in count:
                length = 1 - B + B * len(document) / mean
                scores[number] += idf * count[word] / (count[word] + K1 * length)
    return scores


def _ranker(texts: Sequence[str], folder: Path) -> Bm25:
    (folder / "shard").mkdir()
    (folder / "index").mkdir()
    write_postings(texts, folder / "shard")
    merge([folder / "shard"], folder / "index", 1 << 20, lambda done, total: None)
    return Bm25(folder / "index")


def test_three_documents_worked_out_by_hand(tmp_path: Path) -> None:
    """N = 3, lengths 2, 1, 3 (mean 2); "cat" is in two: idf = ln(1 + 1.5 / 2.5) = 0.470004.

    Length 2: factor 1, tf 1 / (1 + 1.5) = 0.4. Length 3: 1.375 * 1.5 = 2.0625, tf 2 / (2 + 2.0625) = 0.492308.
    """
    ranker = _ranker(["cat dog", "dog", "cat cat mouse"], tmp_path)
    [ranking] = ranker.top(["cat"], 3)
    assert [row for row, _ in ranking] == [2, 0]
    assert [score for _, score in ranking] == pytest.approx([0.470004 * 0.492308, 0.470004 * 0.4], abs=1e-6)


@pytest.fixture(scope="module")
def texts(hotpotqa: Path) -> list[str]:
    return [searched_text(row.passage()) for row in read_rows(hotpotqa / "corpus.jsonl")]


@pytest.fixture(scope="module")
def questions(hotpotqa: Path) -> list[str]:
    lines = (hotpotqa / "questions.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line)["question"] for line in lines if line]


@pytest.fixture(scope="module")
def ranker(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Bm25:
    return _ranker(texts, tmp_path_factory.mktemp("bm25"))


def test_scores_are_the_textbooks(texts: list[str], questions: list[str], ranker: Bm25) -> None:
    documents = tokenize(texts)
    for question in questions[::10]:
        [words] = tokenize([question])
        expected = textbook(documents, words)
        [ranking] = ranker.top([question], len(texts))
        assert [row for row, _ in ranking] != []
        assert {row for row, _ in ranking} == {row for row, score in enumerate(expected) if score > 0}
        for row, score in ranking:
            assert score == pytest.approx(expected[row], rel=1e-5)


def test_top_ten_is_that_of_bm25s_used_directly(hotpotqa: Path, questions: list[str], tmp_path: Path) -> None:
    """bm25s on the rows as they are; only rows of equal score may come in another order, ours being the corpus's."""
    rows = list(read_rows(hotpotqa / "corpus.jsonl"))
    stemmer: Any = Stemmer.Stemmer("english")
    direct = bm25s.BM25()
    direct.index(bm25s.tokenize([r.contents for r in rows], stemmer=stemmer, show_progress=False), show_progress=False)
    tokens = bm25s.tokenize(questions, stemmer=stemmer, return_ids=False, show_progress=False)
    documents, scores = direct.retrieve(tokens, k=10, show_progress=False)

    build_index(hotpotqa / "corpus.jsonl", tmp_path / "index", ["bm25"])
    engine = SearchEngine.open(tmp_path / "index", "bm25")
    found = asyncio.run(engine.find(questions, 10))
    for question, hits in enumerate(found):
        assert [hit.score for hit in hits] == pytest.approx(list(scores[question]), rel=1e-5)
        cut = scores[question][-1] * (1 + 1e-6)
        ours = {hit.row.id for hit in hits if hit.score > cut}
        theirs = {rows[d].id for d, s in zip(documents[question], scores[question], strict=True) if s > cut}
        assert ours == theirs


def test_batch_is_the_singles(questions: list[str], ranker: Bm25) -> None:
    assert ranker.top(questions, 10) == [ranker.top([question], 10)[0] for question in questions]
