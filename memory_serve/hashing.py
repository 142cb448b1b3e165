"""An encoder without a model, to test memories and agents with: words are hashed, order and meaning are lost."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Literal

import numpy as np

from local_search.protocol import Vectors


class HashEncoder:
    """Counts of words by hash, normalised: texts that share words are alike, the same words give the same vector.

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
        counts: Vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()) or [text]:
                counts[row, zlib.crc32(word.encode(), self._seed) % self.dim] += 1
        vectors: Vectors = counts / np.linalg.norm(counts, axis=1, keepdims=True)
        return vectors
