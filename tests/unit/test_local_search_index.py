"""The index folder: it appears whole or not at all, and a damaged one is refused with the way out."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from local_search.build import build_index
from local_search.config import SearchConfig
from local_search.engine import SearchEngine
from local_search.index import MANIFEST, Manifest, publish, read_manifest
from local_search.open import bundled_index, open_search
from local_search.protocol import Vectors
from mia.errors import DataError
from mia.paths import home

ROWS = [("0", "apple pie"), ("1", "pear tart"), ("2", "plum cake")]


class Letters:
    """Counts of letters, as a stand-in for an encoder."""

    name = "letters"
    dim = 26

    def encode(self, texts: Sequence[str], kind: Literal["query", "passage"] = "query") -> Vectors:
        counts = np.array([[text.lower().count(chr(97 + i)) + 0.01 for i in range(26)] for text in texts])
        made: Vectors = (counts / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)
        return made


def corpus_of(tmp_path: Path, rows: Sequence[tuple[str, str]] = ROWS, name: str = "corpus.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(json.dumps({"id": i, "contents": c}) + "\n" for i, c in rows), encoding="utf-8")
    return path


@pytest.fixture
def index(tmp_path: Path) -> Path:
    out = tmp_path / "index"
    build_index(corpus_of(tmp_path), out, encoder=Letters())
    return out


def test_manifest_tells_what_is_there(tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    out = tmp_path / "deep" / "er" / "index"
    manifest, built = build_index(corpus_of(tmp_path), out, encoder=Letters(), step=lambda *told: steps.append(told))
    assert built
    assert (manifest.corpus, manifest.passages, manifest.encoder, manifest.dim) == ("corpus.jsonl", 3, "letters", 26)
    assert manifest.engines == ("bm25", "dense")
    assert manifest.libraries["bm25s"]
    assert {"passages.jsonl", "offsets.npy", "dense/vectors.faiss"} < set(manifest.files)
    assert manifest.size == sum(f.stat().st_size for f in out.rglob("*") if f.is_file() and f.name != MANIFEST)
    assert read_manifest(out, full=True) == manifest
    last = {stage: (done, total) for stage, done, total in steps}
    assert list(last) == ["cut", "read", "bm25", "dense", "faiss"]
    assert all(progress == (3, 3) for stage, progress in last.items() if stage != "cut")
    # apple pie, pear tart, plum cake: six words, each once
    assert manifest.counts == {"words": 6, "vocabulary": 6, "postings": 6}
    assert (manifest.source, manifest.skipped, manifest.kind) == ("jsonl", {}, "flat")


def test_nothing_but_the_index_is_left_behind(index: Path) -> None:
    assert sorted(p.name for p in index.parent.iterdir()) == ["corpus.jsonl", "index"]


def test_same_again_is_up_to_date(tmp_path: Path, index: Path) -> None:
    before = (index / MANIFEST).read_bytes()
    corpus_of(tmp_path, name="renamed.jsonl")
    _, built = build_index(tmp_path / "renamed.jsonl", index, encoder=Letters())
    assert not built
    assert (index / MANIFEST).read_bytes() == before


def test_another_corpus_needs_force(tmp_path: Path, index: Path) -> None:
    other = corpus_of(tmp_path, [("x", "quince jelly")], "other.jsonl")
    with pytest.raises(DataError, match="--force") as caught:
        build_index(other, index, encoder=Letters())
    assert caught.value.code == "index_exists"
    assert read_manifest(index).passages == 3
    manifest, built = build_index(other, index, engines=["bm25"], force=True)
    assert built
    assert read_manifest(index, full=True) == manifest
    assert manifest.passages == 1
    assert not (index / "dense").exists()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


@pytest.mark.parametrize("force", [True, False])
def test_a_folder_that_is_no_index_is_never_replaced(tmp_path: Path, force: bool) -> None:
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter.txt").write_text("irreplaceable")
    with pytest.raises(DataError, match="not an index") as caught:
        build_index(corpus_of(tmp_path), out, engines=["bm25"], force=force)
    assert caught.value.code == "not_an_index"
    assert (out / "chapter.txt").read_text() == "irreplaceable"


def test_a_file_is_not_replaced(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path)
    with pytest.raises(DataError, match="not an index"):
        build_index(corpus, corpus, engines=["bm25"], force=True)
    assert corpus.stat().st_size > 0


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert build_index(corpus_of(tmp_path), tmp_path / "empty", engines=["bm25"])[1]
    assert read_manifest(tmp_path / "empty").passages == 3


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "corpus.jsonl"
    broken.write_text('{"id": "0", "contents": "fine"}\n{"id": "1"}\n')
    with pytest.raises(DataError, match="line 2, field contents: missing"):
        build_index(broken, tmp_path / "index", engines=["bm25"])
    assert [p.name for p in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_failed_rebuild_leaves_the_old_index(tmp_path: Path, index: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text("nonsense\n")
    with pytest.raises(DataError, match="not JSON"):
        build_index(broken, index, force=True, encoder=Letters())
    assert read_manifest(index, full=True).passages == 3


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_empty_corpus_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        build_index(path, tmp_path / "index", engines=["bm25"])
    assert caught.value.code == "empty_corpus"


def test_missing_corpus_and_unwritable_place_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl") as caught:
        build_index(tmp_path / "none.jsonl", tmp_path / "index", engines=["bm25"])
    assert caught.value.code == "unreadable_corpus"
    corpus = corpus_of(tmp_path)
    with pytest.raises(DataError, match="cannot write") as caught:
        build_index(corpus, corpus / "index", engines=["bm25"])
    assert caught.value.code == "unwritable_index"


def test_duplicate_id_is_refused_with_both_lines(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, [("a", "x"), ("b", "y"), ("c", "z"), ("a", "w"), ("b", "v")])
    with pytest.raises(DataError, match=r"line 4, field id: 'a' is the id of line 1 too") as caught:
        build_index(corpus, tmp_path / "index", engines=["bm25"])
    assert caught.value.code == "duplicate_id"
    assert [p.name for p in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_number_and_text_of_one_id_are_duplicates(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes(b'{"id": 1, "contents": "x"}\n\n{"id": "1", "contents": "y"}')
    with pytest.raises(DataError, match="line 3"):
        build_index(corpus, tmp_path / "index", engines=["bm25"])


def test_index_of_format_1_opens_and_counts_as_up_to_date(tmp_path: Path, index: Path) -> None:
    """Format 1 had the same files, and a manifest that said less."""
    manifest = json.loads((index / MANIFEST).read_text())
    old = {name: manifest[name] for name in manifest if name not in ("source", "skipped", "counts", "kind")}
    (index / MANIFEST).write_text(json.dumps({**old, "format": 1}))
    assert read_manifest(index, full=True).format == 1
    assert SearchEngine.open(index, encoder=Letters()).manifest.passages == 3
    assert not build_index(tmp_path / "corpus.jsonl", index, encoder=Letters())[1]


def test_two_builders_at_once_leave_one_sound_index(tmp_path: Path) -> None:
    corpus, out = corpus_of(tmp_path), tmp_path / "index"
    ready = threading.Barrier(4)
    errors: list[Exception] = []

    def build() -> None:
        ready.wait()
        try:
            build_index(corpus, out, engines=["bm25"])
        except (DataError, OSError) as error:
            errors.append(error)

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert read_manifest(out, full=True).passages == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


# ------------------------------------------------------------------------------------------ opening


def _refused(folder: Path, code: str, text: str) -> None:
    with pytest.raises(DataError, match=text) as caught:
        SearchEngine.open(folder, encoder=Letters())
    assert caught.value.code == code
    assert "mia index build" in caught.value.remedy


def test_missing_index_is_refused(tmp_path: Path) -> None:
    _refused(tmp_path / "none", "no_index", "does not exist")
    _refused(corpus_of(tmp_path), "no_index", "does not exist")


def test_half_written_index_is_refused(index: Path) -> None:
    """The manifest comes last: without it, a folder is the trace of a build that was cut short."""
    (index / MANIFEST).unlink()
    _refused(index, "no_index", "no finished index")


@pytest.mark.parametrize("name", ["passages.jsonl", "offsets.npy", "dense/vectors.faiss", "bm25/data.csc.index.npy"])
def test_missing_cut_and_changed_files_are_refused(index: Path, name: str) -> None:
    file = index / name
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    _refused(index, "damaged_index", f"{name} has {len(content) - 1} bytes, not {len(content)}")
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    _refused(index, "damaged_index", f"{name} has another checksum")
    file.unlink()
    _refused(index, "damaged_index", f"{name} is missing")


@pytest.mark.parametrize(
    ("manifest", "text"),
    [("{", "not JSON"), ("[]", "valid"), ("{}", "field corpus"), ('{"format": 1, "corpus": 3}', "field corpus")],
)
def test_damaged_manifest_is_refused_and_can_be_forced(tmp_path: Path, index: Path, manifest: str, text: str) -> None:
    (index / MANIFEST).write_text(manifest)
    _refused(index, "damaged_index", text)
    with pytest.raises(DataError, match="damaged"):
        build_index(tmp_path / "corpus.jsonl", index, encoder=Letters())
    assert build_index(tmp_path / "corpus.jsonl", index, encoder=Letters(), force=True)[1]
    assert read_manifest(index).passages == 3


def test_unreadable_manifest_is_refused(index: Path) -> None:
    (index / MANIFEST).unlink()
    (index / MANIFEST).mkdir()  # stands for a file without permission, which root could read
    with pytest.raises(DataError, match="cannot be read") as caught:
        SearchEngine.open(index, encoder=Letters())
    assert caught.value.code == "unreadable_index"


def test_newer_format_is_refused_whatever_else_it_says(index: Path) -> None:
    (index / MANIFEST).write_text('{"format": 99, "shards": ["a"]}')
    _refused(index, "newer_index", "format 99")


def test_manifest_survives_json(index: Path) -> None:
    manifest = read_manifest(index)
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest


def test_index_of_another_encoder_is_refused(index: Path) -> None:
    with pytest.raises(DataError, match="no encoder 'letters'") as caught:
        SearchEngine.open(index)
    assert caught.value.code == "unknown_encoder"

    class Other(Letters):
        name = "other"

    with pytest.raises(DataError, match="encoder letters, not other") as caught:
        SearchEngine.open(index, encoder=Other())
    assert caught.value.code == "other_encoder"


def test_bundled_corpus_is_indexed_once_and_again_when_damaged() -> None:
    told: list[str] = []
    folder = bundled_index(lambda stage, done, total: told.append(stage), Letters())
    assert folder.parent == home() / "index"
    assert read_manifest(folder, full=True).engines == ("bm25", "dense")
    assert {"bm25", "dense"} <= set(told)
    told.clear()
    assert bundled_index(lambda stage, done, total: told.append(stage), Letters()) == folder
    assert told == []
    (folder / "passages.jsonl").write_bytes(b"")
    backend = open_search(SearchConfig(), lambda stage, done, total: told.append(stage), Letters())
    assert "dense" in told
    [hits] = asyncio.run(backend.search(["What is the capital of Austria?"], 5))
    assert len(hits) == 5


def test_index_that_cannot_be_moved_into_place_leaves_the_old_one(tmp_path: Path, index: Path) -> None:
    """The place of the new index lies within the staged one, where the system refuses to move it."""
    staging = tmp_path / "staging"
    staging.mkdir()
    old = index.rename(staging / "old")
    other = read_manifest(old).model_copy(update={"corpus_sha256": "0"})
    with pytest.raises(OSError, match="Invalid argument"):
        publish(staging, old, other)
    assert read_manifest(old, full=True).passages == 3
    assert sorted(p.name for p in staging.iterdir()) == [MANIFEST, "old"]
