"""BM25 by bm25s: Lucene's variant with k1 1.5 and b 0.75 (Kamphuis et al. 2020), English stems, memory-mapped scores.

Small corpora are scored by numpy, larger ones by numba where it is installed: it is many times faster there, but takes
a second to compile at its first use on a machine. Left out: languages other than English (matched unstemmed).
"""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from local_search.bm25_numba import compiled
from local_search.ranking import Ranking, best
from mia.extras import need

K1, B = 1.5, 0.75
NUMBA_FROM = 50_000
"""Passages from which on numba scores: numpy needs half a millisecond a query there, numba a fifth of that."""

_STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with
"""
"""Lucene's English stop words, which bm25s takes too."""

_WORD = re.compile(r"\b\w\w+\b")


class Words(dict[str, Any]):
    """Cuts texts into stemmed words: runs of two or more word characters, lower case, without English stop words.

    The same as `bm25s.tokenize` does, which works anew on every occurrence of a word; this dictionary remembers what it
    made of each. Texts are composed first (Unicode NFC), so that an accent matches however it was typed. Not safe to
    share between threads.

    Args:
        number: what to make of a stem; by default the stem itself.
    """

    def __init__(self, number: Callable[[str], Any] = str) -> None:
        super().__init__(dict.fromkeys(_STOP_WORDS.split()))
        self._stem: Callable[[str], str] = need("Stemmer", "search").Stemmer("english", 0).stemWord
        self._number = number

    def __missing__(self, word: str) -> Any:
        made = self[word] = self._number(self._stem(word))
        return made

    def of(self, text: str) -> list[Any]:
        """The words of a text, in order."""
        if not text.isascii():
            text = unicodedata.normalize("NFC", text)
        return [made for word in _WORD.findall(text.lower()) if (made := self[word]) is not None]


def tokenize(texts: Iterable[str]) -> list[list[str]]:
    """The stemmed words of each text."""
    words = Words()
    return [words.of(text) for text in texts]


class Bm25:
    """A ranker over an index that `bm25_build.merge` wrote.

    Args:
        folder: the index.
        numba: whether numba scores; if not given, it does from NUMBA_FROM passages on, where it is installed.
    """

    def __init__(self, folder: Path, numba: bool | None = None) -> None:
        retriever = need("bm25s", "search").BM25.load(folder, mmap=True, show_progress=False)
        self._vocabulary: dict[str, int] = retriever.vocab_dict
        names = ("data", "indices", "indptr")
        self._data, self._rows, self._ends = (np.asarray(retriever.scores[name]) for name in names)
        self._size: int = retriever.scores["num_docs"]
        if numba is None:
            numba = self._size >= NUMBA_FROM and importlib.util.find_spec("numba") is not None
        self._compiled: Any = compiled() if numba else None

    def top(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """See `Ranker`. Rows that share no word with the query are no hits."""
        return [self._top(words, k) for words in tokenize(queries)]

    def _top(self, words: list[str], k: int) -> Ranking:
        known = np.array([self._vocabulary[word] for word in words if word in self._vocabulary], dtype=np.int64)
        scores = np.zeros(self._size if len(known) else 0, dtype=np.float32)
        if self._compiled is not None:
            kept = np.empty(min(k, self._size), dtype=np.int64)
            rows = kept[: self._compiled(self._data, self._rows, self._ends, known, scores, kept)]
        else:
            for word in known:
                span = slice(self._ends[word], self._ends[word + 1])
                scores[self._rows[span]] += self._data[span]  # a word's rows are distinct
            rows = np.flatnonzero(scores > 0)
        return best(rows, scores[rows], k)
