"""Encoders by name: the exact text that each family is sent, and a tiny real model through sentence-transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_search.cli import build
from local_search.config import SearchConfig
from local_search.encoder import MiniLM, encoder_of
from local_search.encoder_names import EncoderName, full_name, parse_name
from local_search.encoders import SentenceEncoder
from local_search.engine import SearchEngine
from local_search.index import read_manifest
from local_search.open import open_search
from local_search.protocol import Vectors
from mia.errors import DataError, ModelError
from tests.tiny_models import sentence_encoder

# ------------------------------------------------------------------------------------------ names

BGE = "Represent this sentence for searching relevant passages: "
TASK = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "


@pytest.mark.parametrize(
    ("name", "query", "passage"),
    [
        ("intfloat/e5-base-v2", "query: river", "passage: river"),
        ("intfloat/multilingual-e5-small", "query: river", "passage: river"),
        ("/models/E5-large-v2/", "query: river", "passage: river"),
        ("intfloat/multilingual-e5-large-instruct", TASK + "river", "river"),
        ("intfloat/e5-mistral-7b-instruct", TASK + "river", "river"),
        ("BAAI/bge-small-en-v1.5", BGE + "river", "river"),
        ("BAAI/bge-large-en", BGE + "river", "river"),
        ("BAAI/bge-base-zh-v1.5", "为这个句子生成表示以用于检索相关文章：river", "river"),
        ("BAAI/bge-m3", "river", "river"),
        ("sentence-transformers/all-MiniLM-L6-v2", "river", "river"),
        ("intfloat/e5-base-v2?query=&length=64", "river", "passage: river"),
        ("a/b?query=find%3A%20&passage=text%20%26%20all%3A%20", "find: river", "text & all: river"),
    ],
)
def test_text_that_the_model_is_sent(name: str, query: str, passage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def encode(texts: Sequence[str], prompt: str | None, **_: Any) -> Vectors:
        assert prompt == ""  # else a default prompt of the model would come before ours
        sent.extend(texts)
        return np.ones((len(texts), 4), dtype=np.float32)

    stub = SimpleNamespace(encode=encode, device=SimpleNamespace(type="cpu"), max_seq_length=512)
    library = SimpleNamespace(SentenceTransformer=lambda place, device: stub)
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", library)
    encoder = encoder_of(name, dim=4)
    np.testing.assert_allclose(encoder.encode(["river"], "query"), [[0.5, 0.5, 0.5, 0.5]])
    encoder.encode(["river"], "passage")
    assert sent == [query, passage]
    assert encoder.name == name
    assert stub.max_seq_length == (64 if "length=64" in name else 512)


def test_names_mention_only_what_is_not_the_familys_own() -> None:
    assert full_name("intfloat/e5-base-v2") == "intfloat/e5-base-v2"
    assert full_name("intfloat/e5-base-v2", "query: ", "passage: ") == "intfloat/e5-base-v2"
    assert full_name("intfloat/e5-base-v2", "", None, 256) == "intfloat/e5-base-v2?query=&length=256"
    assert full_name("a/b", "q: ") == "a/b?query=q%3A%20"


@given(st.text(max_size=20), st.text(max_size=20), st.integers(0, 9999))
def test_any_prefix_survives_its_name(query: str, passage: str, length: int) -> None:
    try:
        (query + passage).encode("utf-8")
    except UnicodeEncodeError:
        return
    assert parse_name(full_name("o/m", query, passage, length)) == EncoderName("o/m", query, passage, length)


@pytest.mark.parametrize("name", ["a/b?pooling=cls", "a/b?length=long", "a/b?length=-1"])
def test_settings_that_are_not_known_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="is not known") as caught:
        encoder_of(name, 4)
    assert caught.value.code == "unknown_encoder"


# ------------------------------------------------------------------------------------------ a real, tiny model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_encoder(tmp_path_factory.mktemp("models") / "e5-tiny")


TEXTS = ["the river flows", "a mountain", "", "the river flows", "stone " * 600, "naïve 東京 🦉 \ud800"]


def test_vectors_are_unit_float32_in_order_and_alone_as_in_a_batch(folder: Path) -> None:
    encoder = encoder_of(str(folder))
    assert encoder.dim == 32
    vectors = encoder.encode(TEXTS, "passage")
    assert vectors.shape == (6, 32)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(
        np.concatenate([encoder.encode([text], "passage") for text in TEXTS]), vectors, atol=1e-5
    )
    assert np.array_equal(vectors[0], vectors[3])
    assert encoder.encode([]).shape == (0, 32)


@pytest.mark.parametrize(("kind", "prefix"), [("query", "query: "), ("passage", "passage: ")])
def test_vectors_are_those_of_sentence_transformers(
    folder: Path, kind: Literal["query", "passage"], prefix: str
) -> None:
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(folder), device="cpu").encode(
        [prefix + text for text in TEXTS[:3]], normalize_embeddings=True, show_progress_bar=False
    )
    np.testing.assert_allclose(encoder_of(str(folder), 32).encode(TEXTS[:3], kind), expected, atol=1e-6)


def test_length_cuts_texts(folder: Path) -> None:
    short = encoder_of(f"{folder}?length=8&passage=")
    one, other = short.encode(
        ["river stone river stone river stone a", "river stone river stone river stone the"], "passage"
    )
    assert np.array_equal(one, other)
    whole = encoder_of(f"{folder}?passage=")
    one, other = whole.encode(
        ["river stone river stone river stone a", "river stone river stone river stone the"], "passage"
    )
    assert not np.allclose(one, other, atol=1e-5)


def test_model_may_lie_elsewhere_than_its_name_says(folder: Path) -> None:
    moved = SentenceEncoder("intfloat/e5-tiny", place=folder)
    assert moved.name == "intfloat/e5-tiny"
    np.testing.assert_array_equal(moved.encode(["stone"]), encoder_of(str(folder)).encode(["stone"]))


def test_model_of_another_length_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="32 numbers, the index has 768") as caught:
        encoder_of(str(folder), 768).encode(["stone"])
    assert caught.value.code == "other_dimension"


def test_model_that_is_not_there_or_damaged_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        encoder_of(str(tmp_path))
    assert caught.value.code == "no_encoder"
    assert "folder" in caught.value.remedy
    broken = sentence_encoder(tmp_path / "broken")
    weights = next(broken.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ModelError, match="cannot be loaded"):
        encoder_of(str(broken))


# ------------------------------------------------------------------------------------------ in an index


@pytest.fixture(scope="module")
def index(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("index")
    rows = [{"id": str(i), "contents": f'"{text}"\n{text}'} for i, text in enumerate(["river", "stone", "capital"])]
    (place / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    words = [str(place / "corpus.jsonl"), "--out", str(place / "index"), "--engines", "dense", "--workers", "1"]
    assert build([*words, "--encoder", str(folder), "--passage-prefix", "text: "]) == 0
    return place / "index"


async def test_index_is_searched_with_the_encoder_it_names(index: Path, folder: Path) -> None:
    assert read_manifest(index).encoder == f"{folder}?passage=text%3A%20"
    search = open_search(SearchConfig(index=index, mode="dense"), encoder=MiniLM())  # a shared one that does not fit
    [hits] = await search.search(["stone"], 3)
    from sentence_transformers import SentenceTransformer

    texts = [f"text: {text}\n{text}" for text in ("river", "stone", "capital")]
    model = SentenceTransformer(str(folder), device="cpu")
    vectors = model.encode(["query: stone", *texts], normalize_embeddings=True, show_progress_bar=False)
    scores = vectors[1:] @ vectors[0]
    assert [hit.passage.id for hit in hits] == [str(row) for row in np.argsort(-scores)]
    np.testing.assert_allclose([hit.score for hit in hits], sorted(scores, reverse=True), atol=2e-6)


def test_index_is_not_searched_with_another_encoder(index: Path, folder: Path) -> None:
    for other in (MiniLM(), encoder_of(str(folder))):  # the second lacks the prefix
        with pytest.raises(DataError, match="was built with the encoder") as caught:
            SearchEngine.open(index, "dense", other)
        assert caught.value.code == "other_encoder"


async def test_folder_of_the_encoder_can_be_set(index: Path, folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(folder, tmp_path / "moved")
    search = open_search(SearchConfig(index=index, mode="dense", encoder_path=moved))
    here = open_search(SearchConfig(index=index, mode="dense"))
    assert await search.search(["river"], 3) == await here.search(["river"], 3)
    gone = open_search(SearchConfig(index=index, mode="dense", encoder_path=tmp_path / "gone"))
    with pytest.raises(ModelError, match="gone cannot be loaded"):
        await gone.search(["river"], 3)
