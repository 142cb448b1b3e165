"""BM25 by bm25s: Lucene's variant with k1 1.5 and b 0.75 (Kamphuis et al. 2020), English stems, memory-mapped scores.

Left out: languages other than English (their words are matched unstemmed), and bm25s' numba backend, which saves a
fifth of a millisecond a query on small corpora but compiles for seconds at its first query.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from local_search.ranking import Ranking, best
from mia.extras import need

_CHUNK = 1024


def tokenize(texts: Sequence[str]) -> list[list[str]]:
    """Stemmed words of each text: runs of two or more word characters, lower case, without English stop words.

    Texts are composed first (Unicode NFC), so that an accent matches however it was typed.
    """
    composed = [unicodedata.normalize("NFC", text) for text in texts]
    stemmer = need("Stemmer", "search").Stemmer("english")  # not safe to share between threads; made in a microsecond
    tokenizer = need("bm25s", "search").tokenize
    words: list[list[str]] = tokenizer(composed, stemmer=stemmer, return_ids=False, show_progress=False)
    return words


def build(texts: Iterable[str], folder: Path, step: Callable[[int], None]) -> None:
    """Index texts into `folder`; `step` is told how many texts have been read."""
    vocabulary: dict[str, int] = {}
    documents: list[list[int]] = []
    rest = iter(texts)
    while chunk := list(islice(rest, _CHUNK)):
        documents.extend([vocabulary.setdefault(word, len(vocabulary)) for word in words] for words in tokenize(chunk))
        step(len(documents))
    retriever = need("bm25s", "search").BM25()
    # No empty token: bm25s would number it past its score table. A query without known words has no hits anyway.
    with np.errstate(invalid="ignore"):  # a corpus without any word has mean length 0
        retriever.index((documents, vocabulary), create_empty_token=False, show_progress=False)
    retriever.save(folder, show_progress=False)


class Bm25:
    """A ranker over an index that `build` wrote."""

    def __init__(self, folder: Path) -> None:
        self._retriever: Any = need("bm25s", "search").BM25.load(folder, mmap=True, show_progress=False)

    def top(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """See `Ranker`. Rows that share no word with the query are no hits."""
        return [self._top(words, k) for words in tokenize(queries)]

    def _top(self, words: list[str], k: int) -> Ranking:
        known = self._retriever.get_tokens_ids(words)
        if not known:
            return []
        scores = self._retriever.get_scores_from_ids(known)
        rows = np.flatnonzero(scores > 0)
        return best(rows, scores[rows], k)
