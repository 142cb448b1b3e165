"""Scores and ranks by numba, for corpora where numpy is slow. Machine code is kept on disk once it is compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mia.extras import need

# Compiled code: plain loops over arrays, no objects. Rows of equal score rank in corpus order.


def _rank(
    data: NDArray[np.float32],
    rows: NDArray[np.int32],
    ends: NDArray[np.int64],
    words: NDArray[np.int64],
    scores: NDArray[np.float32],
    best: NDArray[np.int64],
) -> int:
    """Add up a query's scores, and keep the best rows with a score above 0 in `best`, in no order; returns how many.

    `data` and `rows` are scores and rows of each word in turn, which begin and end at `ends`; `words` the query's word
    numbers; `scores` zeros for each row, the sums afterwards; `best` room for k row numbers, k at least 1.
    """
    for word in words:
        for place in range(ends[word], ends[word + 1]):
            scores[rows[place]] += data[place]
    found, bar, k = 0, np.float32(0), len(best)
    for row in range(len(scores)):
        score = scores[row]
        if score <= bar:
            continue
        if found < k:
            child = found
            found += 1
            while child > 0:  # a heap with the worst on top: the lowest score, and of these the last row
                parent = (child - 1) >> 1
                if score > scores[best[parent]]:
                    break
                best[child] = best[parent]
                child = parent
            best[child] = row
        else:
            parent = 0
            while True:
                child = 2 * parent + 1
                if child >= k:
                    break
                if child + 1 < k:
                    left, right = scores[best[child]], scores[best[child + 1]]
                    if right < left or (right == left and best[child + 1] > best[child]):
                        child += 1
                if scores[best[child]] >= score:
                    break
                best[parent] = best[child]
                parent = child
            best[parent] = row
        if found == k:
            bar = scores[best[0]]
    return found


def compiled() -> Any:
    """`_rank` as machine code, which many threads may run at once.

    Raises:
        ConfigError: numba is not installed.
    """
    compiler = need("numba", "search").njit
    try:
        return compiler(nogil=True, cache=True)(_rank)
    except RuntimeError:  # there is no folder that may be written to keep the machine code in
        return compiler(nogil=True)(_rank)
