"""Reranking: a cross-encoder reads the query beside each of the best passages and ranks them anew."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from local_search.encoders import load_model
from local_search.ranking import Ranker, Ranking, best
from mia.errors import ModelError
from mia.types import clean_text

_BATCH = 32
_DECIMALS = 5
"""Scores are rounded to this: equal texts must score alike wherever they stand in a batch."""


class Scorer(Protocol):
    """Says how well passages answer a query. Safe to call from many threads."""

    def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """One score for each text (n,), greater is better."""
        ...


class CrossEncoder:
    """A `Scorer` by any cross-encoder that sentence-transformers can load, loaded at first use.

    Args:
        model: its folder or its name on the Hugging Face hub, such as cross-encoder/ms-marco-MiniLM-L12-v2.
    """

    def __init__(self, model: str) -> None:
        self.name = model
        self._lock = threading.Lock()
        self._model: Any = None

    def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """See `Scorer`. The score is what the model's own last function gives, often a probability.

        Raises:
            ModelError: the model cannot be loaded, or it does not give one score for each text.
            ConfigError: sentence-transformers is not installed.
        """
        unique = {text: place for place, text in enumerate(dict.fromkeys(clean_text(text) for text in texts))}
        if not unique:
            return np.zeros(0)
        with self._lock:  # its tokenizer must not be used by two threads at once
            if self._model is None:
                self._model = load_model("CrossEncoder", self.name)
            pairs = [(query, text) for text in unique]
            given = self._model.predict(pairs, prompt="", batch_size=_BATCH, show_progress_bar=False)
        rounded: NDArray[np.float64] = np.round(_one_each(self.name, given, len(pairs)), _DECIMALS)
        places = [unique[clean_text(text)] for text in texts]
        return np.asarray(rounded[np.array(places)], dtype=np.float64)


def _one_each(model: str, given: Any, count: int) -> NDArray[np.float64]:
    scores = np.asarray(given, dtype=np.float64)
    if scores.shape != (count,) or not np.isfinite(scores).all():
        raise ModelError(
            f"{model} gives scores of shape {scores.shape} for {count} passages, or ones that are no numbers",
            remedy="choose a cross-encoder made for ranking, with one output",
            code="bad_scores",
        )
    return scores


class Reranking(NamedTuple):
    """How to rank anew: what scores, and how many passages it reads for each query (more if more are asked for)."""

    scorer: Scorer
    pool: int = 50


class Reranked:
    """A ranker whose best rows are ranked anew.

    Args:
        ranker: finds the pool.
        reranking: ranks it.
        text: what is read of a row.
    """

    def __init__(self, ranker: Ranker, reranking: Reranking, text: Callable[[int], str]) -> None:
        self._ranker, self._text = ranker, text
        self._scorer, self._pool = reranking

    def top(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """See `Ranker`. Queries are scored one by one: no score depends on what is read beside it for another."""
        found = self._ranker.top(queries, max(k, self._pool))
        return [self._ranked(query, ranking, k) for query, ranking in zip(queries, found, strict=True)]

    def _ranked(self, query: str, ranking: Ranking, k: int) -> Ranking:
        rows = [row for row, _ in ranking]
        scores = self._scorer.scores(query, [self._text(row) for row in rows])
        return best(np.array(rows, dtype=np.int64), scores, k)
