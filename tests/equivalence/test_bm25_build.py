"""The bounded BM25 build against bm25s' own in-memory index: the same bits, however the corpus is cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest
import Stemmer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from local_search.bm25 import Bm25, tokenize
from local_search.bm25_build import Totals, merge, write_postings
from local_search.build import build_index
from local_search.corpus import read_rows
from local_search.engine import SearchEngine
from local_search.passages import searched_text

BITS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = st.text(alphabet="abcäß中é0_", min_size=2, max_size=4)
TEXTS = st.lists(st.lists(WORDS, max_size=12).map(" ".join), min_size=1, max_size=12)


def built(texts: Sequence[str], folder: Path, size: int, memory: int = 1 << 20) -> tuple[Path, Totals]:
    """An index of shards of `size` texts."""
    shards = []
    for start in range(0, len(texts), size):
        shards.append(folder / f"{start:06}")
        shards[-1].mkdir(parents=True)
        write_postings(texts[start : start + size], shards[-1])
    (folder / "index").mkdir()
    return folder / "index", merge(shards, folder / "index", memory, lambda done, total: None)


def columns(scores: dict[str, Any], vocabulary: dict[str, int]) -> dict[str, tuple[bytes, bytes]]:
    """Rows and scores of each word, as bytes."""
    spans = {word: slice(*scores["indptr"][number : number + 2]) for word, number in vocabulary.items() if word}
    return {word: (scores["indices"][s].tobytes(), scores["data"][s].tobytes()) for word, s in spans.items()}


def direct(texts: Sequence[str]) -> Any:
    """bm25s' own index."""
    retriever: Any = bm25s.BM25()
    stemmer: Any = Stemmer.Stemmer("english")
    retriever.index(bm25s.tokenize(list(texts), stemmer=stemmer, show_progress=False), show_progress=False)
    return retriever


def same_as_direct(texts: Sequence[str], folder: Path) -> None:
    ours: Any = bm25s.BM25.load(folder, mmap=True, show_progress=False)
    theirs = direct(texts)
    assert ours.scores["num_docs"] == len(texts)
    for name in ("data", "indices", "indptr"):
        assert ours.scores[name].dtype == theirs.scores[name].dtype
    assert columns(ours.scores, ours.vocab_dict) == columns(theirs.scores, theirs.vocab_dict)


@pytest.fixture(scope="module")
def texts(hotpotqa: Path) -> list[str]:
    return [searched_text(row.passage()) for row in read_rows(hotpotqa / "corpus.jsonl")]


@pytest.fixture(scope="module")
def questions(hotpotqa: Path) -> list[str]:
    lines = (hotpotqa / "questions.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line)["question"] for line in lines if line]


@pytest.mark.parametrize(("size", "memory"), [(10_000, 1 << 26), (700, 100_000), (97, 20_000)])
def test_hotpotqa_has_the_bits_of_bm25s(texts: list[str], tmp_path: Path, size: int, memory: int) -> None:
    same_as_direct(texts, built(texts, tmp_path, size, memory)[0])


def test_words_are_those_of_bm25s(texts: list[str], questions: list[str]) -> None:
    stemmer: Any = Stemmer.Stemmer("english")
    for sample in (texts, questions):
        assert tokenize(sample) == bm25s.tokenize(sample, stemmer=stemmer, return_ids=False, show_progress=False)


@given(TEXTS, st.integers(1, 5), st.sampled_from([1, 300, 1 << 20]))
@BITS
def test_any_corpus_has_the_bits_of_bm25s(tmp_path_factory: Any, texts: list[str], size: int, memory: int) -> None:
    texts = [*texts, "one word at least"]
    folder = tmp_path_factory.mktemp("any")
    index, totals = built(texts, folder, size, memory)
    same_as_direct(texts, index)
    words = tokenize(texts)
    assert totals.words == sum(map(len, words))
    assert totals.vocabulary == len({word for each in words for word in each})
    assert totals.postings == sum(len(set(each)) for each in words)


@given(TEXTS, st.integers(1, 5), st.integers(1, 5))
@BITS
def test_cuts_and_memory_change_no_byte(tmp_path_factory: Any, texts: list[str], one: int, other: int) -> None:
    first, second = (
        built(texts, tmp_path_factory.mktemp("cut"), size, memory)[0] for size, memory in ((one, 1), (other, 1 << 20))
    )
    files = sorted(path.name for path in first.iterdir())
    assert files == sorted(path.name for path in second.iterdir())
    for name in files:
        assert (first / name).read_bytes() == (second / name).read_bytes()


@given(TEXTS, st.lists(WORDS, min_size=1, max_size=6), st.integers(1, 15))
@BITS
def test_numba_ranks_as_numpy_does(tmp_path_factory: Any, texts: list[str], words: list[str], k: int) -> None:
    """With equal scores aplenty: the best k, and of equals the first."""
    texts = texts * 3
    index, _ = built(texts, tmp_path_factory.mktemp("numba"), 4)
    query = " ".join(words)
    [numpy] = Bm25(index, numba=False).top([query], k)
    assert Bm25(index, numba=True).top([query], k) == [numpy]
    scores = dict(Bm25(index, numba=False).top([query], 1000)[0])
    expected = sorted(scores, key=lambda row: (-scores[row], row))[:k]
    assert [row for row, _ in numpy] == expected


def test_numba_finds_what_bm25s_finds(texts: list[str], questions: list[str], tmp_path: Path) -> None:
    """The same rows as bm25s' numba backend, but for rows of equal score at the cut."""
    index, _ = built(texts, tmp_path, 1000)
    retriever: Any = bm25s.BM25.load(index, mmap=True, show_progress=False, backend="numba")
    documents, scores = retriever.retrieve(tokenize(questions), k=10, show_progress=False)
    for row, ranking in enumerate(Bm25(index, numba=True).top(questions, 10)):
        assert np.array_equal(np.array([score for _, score in ranking], dtype=np.float32), scores[row])
        cut = scores[row][-1]
        theirs = {document for document, score in zip(documents[row], scores[row], strict=True) if score > cut}
        assert {found for found, score in ranking if score > cut} == theirs


def test_a_corpus_without_any_word_is_searched_in_vain(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "a", "contents": "!?"}\n{"id": "b", "contents": "the a of"}\n')
    manifest, _ = build_index(corpus, tmp_path / "index", ["bm25"])
    assert manifest.counts == {"words": 0, "vocabulary": 0, "postings": 0}
    engine = SearchEngine.open(tmp_path / "index", "bm25")
    assert asyncio.run(engine.search(["anything"], 3)) == [[]]
