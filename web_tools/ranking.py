"""Small rankings made on the spot: BM25 by bm25s (Lucene's variant, k1 1.5, b 0.75) over a few texts, rank fusion."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

from mia.extras import need

Ranking = list[tuple[int, float]]
"""Rows with their scores, best first; equal scores in the order of the rows."""

RRF_K = 60
"""Constant of reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009)."""


def tokenize(texts: Sequence[str]) -> list[list[str]]:
    """Stemmed words of each text: lower case, without English stop words, composed (Unicode NFC)."""
    composed = [unicodedata.normalize("NFC", text) for text in texts]
    stemmer = need("Stemmer", "web").Stemmer("english")
    words: list[list[str]] = need("bm25s", "web").tokenize(
        composed, stemmer=stemmer, return_ids=False, show_progress=False
    )
    return words


class Bm25:
    """BM25 over texts held in memory."""

    def __init__(self, texts: Sequence[str]) -> None:
        words = tokenize(texts)
        vocabulary = {word: number for number, word in enumerate(sorted({w for document in words for w in document}))}
        self._retriever = need("bm25s", "web").BM25()
        self._empty = not vocabulary
        if not self._empty:
            documents = [[vocabulary[word] for word in document] for document in words]
            self._retriever.index((documents, vocabulary), create_empty_token=False, show_progress=False)

    def top(self, query: str, k: int) -> Ranking:
        """The `k` best texts that share a word with the query; fewer if there are not as many."""
        known = [] if self._empty else self._retriever.get_tokens_ids(tokenize([query])[0])
        if not known:
            return []
        scores = self._retriever.get_scores_from_ids(known)
        order = np.argsort(-scores, kind="stable")[:k]
        return [(int(row), float(scores[row])) for row in order if scores[row] > 0]


def fuse(rankings: Sequence[Ranking]) -> Ranking:
    """All rows by the sum over rankings of 1 / (RRF_K + rank), rank from 1."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (row, _) in enumerate(ranking, 1):
            scores[row] = scores.get(row, 0.0) + 1.0 / (RRF_K + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
