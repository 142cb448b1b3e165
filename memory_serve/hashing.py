"""An encoder without a model, to test memories and agents with: every word is a random direction, order is lost."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Literal

import numpy as np

from local_search.protocol import Vectors


class HashEncoder:
    """Sum of the words' directions, normalised: texts that share words are alike, equal texts have equal vectors.

    Args:
        dim: length of the vectors.
        seed: encoders with different seeds have different names and vectors.
    """

    def __init__(self, dim: int = 64, seed: int = 0) -> None:
        self.name = f"hash-{dim}-{seed}"
        self.dim = dim
        self.encoded = 0
        """How many texts have been encoded."""
        self._seed = seed

    def encode(self, texts: Sequence[str], kind: Literal["query", "passage"] = "query") -> Vectors:
        """See `Encoder`."""
        self.encoded += len(texts)
        vectors = np.zeros((len(texts), self.dim))
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()) or [text]:
                seeds = (self._seed, zlib.crc32(word.encode()))
                vectors[row] += np.random.default_rng(seeds).standard_normal(self.dim)
        unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        return unit
