"""The recall score of the paper (appendix 10), or of its released code, for the memories of one bucket.

Pure functions over arrays; n is the number of memories, d the size of a vector. Which memories belong to the bucket,
and where the vectors come from, is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from local_search.protocol import Vectors
from memory_serve.config import Weights

Floats = NDArray[np.float64]
Rough = NDArray[np.floating[Any]]
"""Of single or double precision."""
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Span = tuple[float, float]
"""Least and greatest raw similarity of a bucket."""

_GROUPS = 1024
_FAR = 2.0**100
"""Far more than a score can be."""
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
    return raw_similarity(question, questions, caption, captions, captioned, weights).astype(np.float64)


def raw_similarity(
    question: Vectors,
    questions: Vectors,
    caption: Vectors | None,
    captions: Vectors | None,
    captioned: Flags,
    weights: Weights,
) -> Rough:
    """`similarity` before it is widened to float64: float32 where no caption is mixed in, with the same values."""
    # A product row by row: unlike a matrix product, its rounding does not depend on where a row stands, and a
    # difference of rounding alone would be blown up when all similarities of a bucket are nearly the same.
    plain: Rough = np.vecdot(questions, question)
    if caption is not None and captions is not None:
        pictures = np.vecdot(captions, caption).astype(np.float64)
        plain = plain.astype(np.float64)
        plain = np.where(captioned, weights.question * plain + weights.caption * pictures, plain)
    return np.clip(plain, -1.0, 1.0, out=plain)


def normalise(similarities: Rough, span: Span | None = None) -> Floats:
    """Min-max over the bucket: (s - min) / (max - min + 1e-8); shape (n,) to (n,), n at least 1.

    Args:
        similarities: raw similarities, (n,).
        span: minimum and maximum of the bucket, if these are only some of it.
    """
    exact = similarities.astype(np.float64)
    low, high = span or (exact.min(), exact.max())
    scaled: Floats = (exact - low) / (high - low + EPSILON)
    return scaled


def score(similarities: Rough, uses: Ints, successes: Ints, weights: Weights, span: Span | None = None) -> Scores:
    """0.7 · normalised similarity + 0.3 · s/(u+1) + 0.3 · 1/(u+1), for s successes in u uses.

    Args:
        similarities: raw similarities of the whole bucket, (n,).
        uses: how often each memory was shown in a run that was judged, (n,).
        successes: how many of these runs were right, (n,).
        weights: the three weights.
        span: as for `normalise`.
    """
    terms = {
        "similarity": weights.similarity * normalise(similarities, span),
        "value": weights.value * successes / (uses + 1),
        "frequency": weights.frequency / (uses + 1),
    }
    total = terms["similarity"] + terms["value"] + terms["frequency"]
    return Scores(similarities.astype(np.float64), terms, total)


def released(similarities: Rough, win_rates: Floats, weights: Weights, span: Span | None = None) -> Scores:
    """0.7 · normalised similarity + 0.3 · win rate: the score of the released code (ECNU-SII/MIA at e3f5daf).

    Args:
        similarities: raw similarities of the whole bucket, (n,).
        win_rates: see `win_rate`, (n,).
        weights: `similarity` and `value` are used.
        span: as for `normalise`.
    """
    terms = {"similarity": weights.similarity * normalise(similarities, span), "win_rate": weights.value * win_rates}
    return Scores(similarities.astype(np.float64), terms, terms["similarity"] + terms["win_rate"])


@dataclass(frozen=True, slots=True)
class Scoring:
    """The score of a config, and a rough one that is quick to get for many memories."""

    kind: Literal["paper", "released"] = "paper"
    weights: Weights = field(default_factory=Weights)

    def prior(self, uses: Ints, successes: Ints, win_rates: Floats) -> Floats:
        """What of the score no question changes, (n,)."""
        w = self.weights
        if self.kind == "released":
            return w.value * win_rates
        return (w.value * successes + w.frequency) / (uses + 1)

    def rough(self, similarities: Rough, priors: Vectors, span: Span) -> Rough:
        """Scores that are wrong by less than `slack`, (n,); all arrays are gone through as few times as possible."""
        low, high = span
        total: Rough = similarities - low
        total *= self.weights.similarity / (high - low + EPSILON)
        total += priors
        return total

    def slack(self, error: float, span: Span) -> float:
        """Bound of what `rough` is wrong by.

        Args:
            error: how far the similarities may be off; the rounding, half of 2^-23 of each term, comes on top.
            span: as for `normalise`.
        """
        w = self.weights
        blown_up = error / (span[1] - span[0] + EPSILON)
        return w.similarity * blown_up + 2.0**-19 * (w.similarity * (1 + blown_up) + w.value + w.frequency)

    def exact(self, similarities: Rough, uses: Ints, successes: Ints, win_rates: Floats, span: Span) -> Scores:
        """`score` or `released`."""
        if self.kind == "released":
            return released(similarities, win_rates, self.weights, span)
        return score(similarities, uses, successes, self.weights, span)


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
    allowed = promising(total, among, k)
    if len(allowed) > k:
        # Keep everything that is at least as good as the k-th, so that ties are settled below and not by chance.
        threshold = np.partition(total[allowed], len(allowed) - k)[len(allowed) - k]
        allowed = allowed[total[allowed] >= threshold]
    ordered = sorted(allowed.tolist(), key=lambda i: (-float(total[i]), -int(created[i]), ids[i]))
    return ordered[:k]


def promising(values: Rough, among: Flags, k: int, slack: float = 0.0) -> Ints:
    """Positions that hold the k best, and all that equal the k-th; usually few more. Rising, (m,).

    Args:
        values: scores, (n,).
        among: which of them may be chosen, (n,).
        k: how many are wanted.
        slack: how far each may be from the value that counts.
    """
    if len(values) < _GROUPS or k > _GROUPS:
        return np.flatnonzero(among)
    # Not `where`, which guesses wrong at every other element: what may not be chosen gets far too low by arithmetic.
    masked = among.astype(values.dtype)
    masked -= 1
    masked *= _FAR
    masked += values
    # The best of each of many groups are looked at: k of these are k values, so the k-th best is no lower.
    tops = masked[: len(masked) // _GROUPS * _GROUPS].reshape(-1, _GROUPS).max(axis=0)
    bound = float(np.partition(tops, -k)[-k])
    return np.flatnonzero(among) if bound < -_FAR / 2 else np.flatnonzero(masked >= bound - 2 * slack)
