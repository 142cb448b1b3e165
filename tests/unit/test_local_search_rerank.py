"""Reranking: a pool is read anew by a tiny cross-encoder; a batch is the single queries; hits say so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from local_search.build import build_index
from local_search.config import SearchConfig
from local_search.engine import SearchEngine
from local_search.open import open_search
from local_search.ranking import Ranking
from local_search.rerank import CrossEncoder, Reranked, Reranking
from mia.errors import ModelError
from tests.tiny_models import cross_encoder

PASSAGES = ["the river flows", "a mountain of stone", "capital of the river", "stone", "the river flows", "a a a"]


class Forward:
    """Ranks rows in corpus order, and notes how many were asked for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[int] = []

    def top(self, queries: Sequence[str], k: int) -> list[Ranking]:
        self.asked.append(k)
        return [[(row, 1.0 / (row + 1)) for row in range(min(k, self.count))] for _ in queries]


class Length:
    """Scores a text by its length."""

    def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        return np.array([float(len(text)) for text in texts])


def test_pool_is_ranked_by_the_scorer_and_ties_stay_in_corpus_order() -> None:
    ranker = Forward(6)
    reranked = Reranked(ranker, Reranking(Length(), 5), PASSAGES.__getitem__)
    assert reranked.top(["q"], 3) == [[(2, 20.0), (1, 19.0), (0, 15.0)]]
    assert reranked.top(["q"], 6)[0][2:4] == [(0, 15.0), (4, 15.0)]
    assert ranker.asked == [5, 6]
    assert reranked.top([], 3) == []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cross_encoder(tmp_path_factory.mktemp("cross") / "cross-tiny")


def test_scores_are_those_of_the_model_alone_and_in_a_batch(model: Path) -> None:
    from sentence_transformers import CrossEncoder as Reference

    scorer = CrossEncoder(str(model))
    scores = scorer.scores("the river", PASSAGES)
    expected = Reference(str(model), device="cpu").predict(
        [("the river", text) for text in PASSAGES], show_progress_bar=False
    )
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert scores[0] == scores[4]
    assert len(set(scores)) == 5
    alone = [scorer.scores("the river", [text])[0] for text in PASSAGES]
    np.testing.assert_allclose(alone, scores, atol=2e-5)
    assert scorer.scores("the river", []).shape == (0,)


def test_batch_of_queries_is_exactly_the_single_ones(model: Path) -> None:
    reranked = Reranked(Forward(6), Reranking(CrossEncoder(str(model))), PASSAGES.__getitem__)
    queries = ["the river", "stone", "a much longer query about the capital of a mountain", "the river"]
    batch = reranked.top(queries, 4)
    assert batch == [reranked.top([query], 4)[0] for query in queries]
    assert batch[0] == batch[3] != batch[1]


def test_model_that_classifies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="for 2 passages") as caught:
        CrossEncoder(str(cross_encoder(tmp_path / "three", labels=3))).scores("q", ["a", "b"])
    assert caught.value.code == "bad_scores"


def test_missing_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        CrossEncoder(str(tmp_path / "none")).scores("q", ["a"])


async def test_hits_come_reranked_and_say_so(tmp_path: Path, model: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"id": str(number), "contents": f'"{text[:5]}"\n{text}'} for number, text in enumerate(PASSAGES)]
    corpus.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    build_index(corpus, tmp_path / "index", ["bm25"])
    config = SearchConfig(index=tmp_path / "index", mode="bm25", rerank=str(model), rerank_pool=4)
    engine = open_search(config)
    assert isinstance(engine, SearchEngine)
    engine.warm()
    [hits] = await engine.search(["river stone"], 3)
    assert engine.name == hits[0].backend == "local/bm25+rerank"
    texts = {hit.passage.id: f"{hit.passage.title}\n{hit.passage.text}" for hit in hits}
    scores = CrossEncoder(str(model)).scores("river stone", list(texts.values()))
    np.testing.assert_allclose([hit.score for hit in hits], scores, atol=2e-5)
    assert sorted(scores, reverse=True) == pytest.approx(list(scores), abs=2e-5)
