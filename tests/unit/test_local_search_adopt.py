"""Ready-made corpora and FAISS indexes are served as they are: linked, not copied, refused once they are changed."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from local_search.adopt import adopt
from local_search.cli import adopt as verb
from local_search.config import SearchConfig
from local_search.engine import SearchEngine
from local_search.index import read_manifest
from local_search.open import open_search
from mia.errors import DataError
from tests.tiny_models import sentence_encoder

TEXTS = ["the river flows", "a mountain of stone", "capital of the river", "stone", "naïve 東京", ""]


def wiki18(path: Path, **more: Any) -> Path:
    """Rows as wiki-18.jsonl has them, with what else may stand in such a file: other fields, numbers as ids, gaps."""
    rows = [{"id": str(i), "contents": f'"Title {i}"\n{text}', **more} for i, text in enumerate(TEXTS)]
    rows[3]["id"] = 3
    lines = [json.dumps(row) for row in rows]
    path.write_text("\ufeff" + lines[0] + "\r\n\n" + "\n".join(lines[1:]) + "\n\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_encoder(tmp_path_factory.mktemp("model") / "e5-tiny")


@pytest.fixture
def data(tmp_path: Path, model: Path) -> Path:
    """A folder with a corpus, its e5_Flat.index as Search-R1 builds it, and nothing else."""
    from sentence_transformers import SentenceTransformer

    folder = tmp_path / "data"
    folder.mkdir()
    wiki18(folder / "wiki-18.jsonl", extra=[1, 2])
    texts = [f'passage: "Title {i}"\n{text}' for i, text in enumerate(TEXTS)]
    vectors = SentenceTransformer(str(model), device="cpu").encode(
        texts, normalize_embeddings=True, show_progress_bar=False
    )
    index = faiss.IndexFlatIP(32)
    index.add(vectors)
    faiss.write_index(index, str(folder / "e5_Flat.index"))
    return folder


def adopted(data: Path, model: Path, out: Path, **options: Any) -> bool:
    return adopt(data / "wiki-18.jsonl", data / "e5_Flat.index", str(model), out, **options)[1]


async def test_adopted_files_are_searched_where_they_lie(data: Path, model: Path) -> None:
    out = data / "index"
    assert adopted(data, model, out)
    assert sorted(path.name for path in out.rglob("*") if path.is_file() and not path.is_symlink()) == [
        "manifest.json",
        "offsets.npy",
    ]
    assert not Path(os.readlink(out / "passages.jsonl")).is_absolute()
    backend = open_search(SearchConfig(index=out, mode="dense"))
    queries = [f'"Title {i}"\n{text}' for i, text in enumerate(TEXTS)]
    table = faiss.read_index(str(data / "e5_Flat.index")).reconstruct_n(0, 6)
    from sentence_transformers import SentenceTransformer

    asked = SentenceTransformer(str(model), device="cpu").encode(
        ["query: " + query for query in queries], normalize_embeddings=True, show_progress_bar=False
    )
    for hits, vector in zip(await backend.search(queries, 6), asked, strict=True):
        scores = table @ vector
        np.testing.assert_allclose([hit.score for hit in hits], sorted(scores, reverse=True), atol=1e-5)
        for hit in hits:
            row = int(hit.passage.id)
            assert (hit.passage.title, hit.passage.text) == (f"Title {row}", TEXTS[row])
            assert hit.score == pytest.approx(scores[row], abs=1e-5)
    await backend.aclose()


def test_adopting_again_is_up_to_date_and_other_files_need_force(data: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "index"
    assert adopted(data, model, out)
    assert not adopted(data, model, out)
    assert adopted(data, model, out, force=True)
    with pytest.raises(DataError, match="holds another index") as caught:
        adopt(data / "wiki-18.jsonl", data / "e5_Flat.index", f"{model}?query=", out)
    assert caught.value.code == "index_exists"
    assert adopt(data / "wiki-18.jsonl", data / "e5_Flat.index", f"{model}?query=", out, force=True)[1]
    assert read_manifest(out, full=True).encoder.endswith("?query=")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_folder_that_is_no_index_is_never_replaced(data: Path, model: Path) -> None:
    with pytest.raises(DataError, match="not an index"):
        adopted(data, model, data, force=True)
    assert (data / "wiki-18.jsonl").exists()


@pytest.mark.parametrize("name", ["wiki-18.jsonl", "e5_Flat.index"])
def test_changed_and_missing_files_are_refused(data: Path, model: Path, tmp_path: Path, name: str) -> None:
    adopted(data, model, tmp_path / "index")
    os.utime(data / name, ns=(1, 1))
    with pytest.raises(DataError, match=f"{name} was changed") as caught:
        SearchEngine.open(tmp_path / "index", "dense")
    assert "adopt it again" in caught.value.remedy
    (data / name).unlink()
    with pytest.raises(DataError, match="is missing"):
        SearchEngine.open(tmp_path / "index", "dense")


@pytest.mark.parametrize("rows", [5, 7])
def test_counts_must_agree(data: Path, model: Path, tmp_path: Path, rows: int) -> None:
    index = faiss.IndexFlatIP(32)
    index.add(np.eye(32, dtype=np.float32)[:rows])
    faiss.write_index(index, str(data / "e5_Flat.index"))
    with pytest.raises(DataError, match=f"has 6 rows, the FAISS index {rows}") as caught:
        adopted(data, model, tmp_path / "index")
    assert caught.value.code == "row_mismatch"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_compressed_corpus_is_refused_or_unpacked_once(data: Path, model: Path, tmp_path: Path) -> None:
    packed = data / "wiki-18.jsonl.gz"
    packed.write_bytes(gzip.compress((data / "wiki-18.jsonl").read_bytes()))
    with pytest.raises(DataError, match="compressed") as caught:
        adopt(packed, data / "e5_Flat.index", str(model), tmp_path / "index")
    assert "gunzip" in caught.value.remedy
    assert adopt(packed, data / "e5_Flat.index", str(model), tmp_path / "index", unpack=True)[1]
    assert (tmp_path / "index" / "passages.jsonl").read_bytes() == (data / "wiki-18.jsonl").read_bytes()
    assert read_manifest(tmp_path / "index", full=True).passages == 6
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DataError, match="ended before"):
        adopt(packed, data / "e5_Flat.index", str(model), tmp_path / "index", unpack=True, force=True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 9: not usable JSON"),
        ('{"contents": "x"}', "line 9, field id"),
        ('{"id": "9"}', "line 9, field contents"),
        ('"text"', "line 9, field id"),
    ],
)
def test_broken_rows_are_named(data: Path, model: Path, tmp_path: Path, line: str, message: str) -> None:
    with (data / "wiki-18.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=message):
        adopted(data, model, tmp_path / "index")


def test_other_encoders_and_files_that_are_not_there_are_refused(data: Path, tmp_path: Path) -> None:
    files = (data / "wiki-18.jsonl", data / "e5_Flat.index")
    with pytest.raises(DataError, match="384 numbers, the FAISS index has 32"):
        adopt(*files, "all-MiniLM-L6-v2", tmp_path / "index")
    with pytest.raises(DataError, match="no encoder 'e5'"):
        adopt(*files, "e5", tmp_path / "index")
    with pytest.raises(DataError, match="no such file"):
        adopt(data / "none.jsonl", files[1], "all-MiniLM-L6-v2", tmp_path / "index")
    with pytest.raises(DataError, match="cannot be read"):
        adopt(files[0], files[0], "all-MiniLM-L6-v2", tmp_path / "index")


def test_verb_tells_what_to_do_next(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--corpus", str(data / "wiki-18.jsonl"), "--faiss", str(data / "e5_Flat.index")]
    words += ["--encoder", str(model), "--query-prefix", "question: ", "--out", str(tmp_path / "index")]
    assert verb(words) == 0
    assert "adopted 6 passages of wiki-18.jsonl" in capsys.readouterr().out
    assert read_manifest(tmp_path / "index").encoder == f"{model}?query=question%3A%20"
    assert verb([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passages"] == 6
