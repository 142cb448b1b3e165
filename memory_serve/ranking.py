"""The recall score of the paper (appendix 10), or of its released code, for the memories of one bucket.

Pure functions over arrays; n is the number of memories, d the size of a vector. Which memories belong to the bucket,
and where the vectors come from, is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from local_search.protocol import Vectors
from memory_serve.config import Weights

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

EPSILON = 1e-8
"""Added to the range when similarities are normalised, so that one memory alone gets 0 and not a division by 0."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of n memories: the raw similarity, the weighted terms, and their sum; arrays of shape (n,)."""

    similarity: Floats
    terms: dict[str, Floats]
    total: Floats


def similarity(
    question: Vectors,
    questions: Vectors,
    caption: Vectors | None,
    captions: Vectors | None,
    captioned: Flags,
    weights: Weights,
) -> Floats:
    """Cosine of the questions; with captions on both sides, 0.8 of it and 0.2 of the cosine of the captions.

    Args:
        question: unit vector of the question that is asked, (d,).
        questions: unit vectors of the remembered questions, (n, d).
        caption: unit vector of its caption, (d,); None if it has none.
        captions: unit vectors of the remembered captions, (n, d); None if there are none at all.
        captioned: which memories have a caption, (n,).
        weights: the shares of question and caption.

    Returns:
        Similarities in [-1, 1], (n,).
    """
    # A product row by row: unlike a matrix product, its rounding does not depend on where a row stands, and a
    # difference of rounding alone would be blown up when all similarities of a bucket are nearly the same.
    plain = np.vecdot(questions, question).astype(np.float64)
    if caption is not None and captions is not None:
        pictures = np.vecdot(captions, caption).astype(np.float64)
        plain = np.where(captioned, weights.question * plain + weights.caption * pictures, plain)
    clipped: Floats = np.clip(plain, -1.0, 1.0)
    return clipped


def normalise(similarities: Floats) -> Floats:
    """Min-max over the bucket: (s - min) / (max - min + 1e-8); shape (n,) to (n,), n at least 1."""
    low, high = similarities.min(), similarities.max()
    scaled: Floats = (similarities - low) / (high - low + EPSILON)
    return scaled


def score(similarities: Floats, uses: Ints, successes: Ints, weights: Weights) -> Scores:
    """0.7 · normalised similarity + 0.3 · s/(u+1) + 0.3 · 1/(u+1), for s successes in u uses.

    Args:
        similarities: raw similarities of the whole bucket, (n,).
        uses: how often each memory was shown in a run that was judged, (n,).
        successes: how many of these runs were right, (n,).
        weights: the three weights.
    """
    terms = {
        "similarity": weights.similarity * normalise(similarities),
        "value": weights.value * successes / (uses + 1),
        "frequency": weights.frequency / (uses + 1),
    }
    return Scores(similarity=similarities, terms=terms, total=terms["similarity"] + terms["value"] + terms["frequency"])


def released(similarities: Floats, win_rates: Floats, weights: Weights) -> Scores:
    """0.7 · normalised similarity + 0.3 · win rate: the score of the released code (ECNU-SII/MIA at e3f5daf).

    Args:
        similarities: raw similarities of the whole bucket, (n,).
        win_rates: see `win_rate`, (n,).
        weights: `similarity` and `value` are used.
    """
    terms = {"similarity": weights.similarity * normalise(similarities), "win_rate": weights.value * win_rates}
    return Scores(similarity=similarities, terms=terms, total=terms["similarity"] + terms["win_rate"])


def win_rate(uses: int, successes: int, given: float | None = None) -> float:
    """The released code's win rate: s/u to four decimals; 1 for a memory that was never shown, as it starts there.

    Args:
        uses: u.
        successes: s.
        given: the rate that an imported file states, which counts until the next credit.
    """
    if given is not None:
        return given
    return round(successes / uses, 4) if uses else 1.0


def best(total: Floats, created: Ints, ids: Sequence[str], among: Flags, k: int) -> list[int]:
    """Positions of the k best memories `among` the n, best first; of equals the newest first, then by id.

    Args:
        total: scores, (n,).
        created: times of creation, any unit, (n,).
        ids: n ids.
        among: which memories may be chosen, (n,).
        k: how many at most.
    """
    allowed = np.flatnonzero(among)
    if len(allowed) > k:
        # Keep everything that is at least as good as the k-th, so that ties are settled below and not by chance.
        threshold = np.partition(total[allowed], len(allowed) - k)[len(allowed) - k]
        allowed = allowed[total[allowed] >= threshold]
    ordered = sorted(allowed.tolist(), key=lambda i: (-float(total[i]), -int(created[i]), ids[i]))
    return ordered[:k]
