"""How a build divides its memory, resumes its parts and cleans up; each part by itself, in this process."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from rich.console import Console

from local_search.build import build_index
from local_search.build_memory import Budget, parse_memory
from local_search.build_shards import Plan, cut
from local_search.build_staging import staged, staging_of
from local_search.build_workers import Here, Processes
from local_search.corpus import reader_of
from local_search.engine import SearchEngine
from local_search.index import MANIFEST, read_manifest
from local_search.progress import bar
from local_search.protocol import Mapper, Vectors
from mia.errors import ConfigError, DataError


class Lengths:
    """Two numbers for each text, as a stand-in for an encoder; fails after a number of calls."""

    name = "lengths"
    dim = 2

    def __init__(self, calls: int = 10**9) -> None:
        self.calls = calls
        self.texts = 0

    def encode(self, texts: Sequence[str], kind: Literal["query", "passage"] = "query") -> Vectors:
        if not self.calls:
            raise KeyboardInterrupt
        self.calls -= 1
        self.texts += len(texts)
        angles = np.array(
            [hash(("x", len(text))) % 1000 + sum(map(ord, text)) % 97 for text in texts], dtype=np.float64
        )
        made: Vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        return made


def corpus_of(tmp_path: Path, rows: int = 1000) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text(
        "".join(json.dumps({"id": n, "contents": f'"T{n}"\nword{n % 7} other{n}'}) + "\n" for n in range(rows))
    )
    return path


def files_of(index: Path) -> dict[str, bytes]:
    return {str(p.relative_to(index)): p.read_bytes() for p in index.rglob("*") if p.is_file() and p.name != MANIFEST}


# ------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GB", 2 * 10**9),
        ("512 MB", 512 * 10**6),
        ("1.5gb", 1_500_000_000),
        ("1GiB", 2**30),
        ("300m", 3 * 10**8),
        ("7", 7),
    ],
)
def test_memory_is_read(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "2 apples", "1e9", "2TB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a size"):
        parse_memory(text)


def test_less_memory_gives_smaller_shards_then_fewer_workers() -> None:
    budgets = [Budget.of(size * 10**6, 8, False) for size in (150, 300, 600, 1200, 2400, 24_000)]
    assert [b.shard_bytes for b in budgets[:1]] < [budgets[-1].shard_bytes]
    assert [b.workers for b in budgets] == sorted(b.workers for b in budgets)
    assert (budgets[0].workers, budgets[-1].workers) == (1, 8)
    for size, budget in zip((150, 300, 600, 1200, 2400, 24_000), budgets, strict=True):
        assert budget.workers * budget.shard_bytes * 16 + 100_000_000 <= size * 10**6


def test_formats_that_take_more_memory_get_fewer_workers_and_smaller_shards() -> None:
    plain, parquet, wikipedia = (
        Budget.of(700_000_000, 4, False, format) for format in ("jsonl", "parquet", "wikipedia")
    )
    assert plain.workers == 4
    assert parquet.workers == 4
    assert parquet.shard_bytes < plain.shard_bytes
    assert wikipedia.workers == 2  # 168 MB to parse the longest page, in each


@pytest.mark.parametrize(("memory", "engines"), [("100MB", ["bm25"]), ("500MB", ["bm25", "dense"])])
def test_too_little_memory_is_told_with_what_suffices(
    tmp_path: Path, memory: str, engines: list[Literal["bm25", "dense"]]
) -> None:
    with pytest.raises(ConfigError, match="does not fit") as caught:
        build_index(corpus_of(tmp_path), tmp_path / "index", engines, encoder=Lengths(), memory=parse_memory(memory))
    least = caught.value.remedy.split()[2]
    assert Budget.of(parse_memory(least), 1, "dense" in engines).workers == 1
    with pytest.raises(ConfigError, match="0 workers"):
        build_index(corpus_of(tmp_path), tmp_path / "index", ["bm25"], workers=0)


# ------------------------------------------------------------------------------------------ resuming


def test_encoding_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """256 passages are encoded at a time: four calls for 1,000, of which two were done when the build was stopped."""
    corpus = corpus_of(tmp_path)
    build_index(corpus, tmp_path / "whole", encoder=Lengths())
    with pytest.raises(KeyboardInterrupt):
        build_index(corpus, tmp_path / "index", encoder=Lengths(calls=2))
    [vectors] = tmp_path.glob(".index.building-*/vectors.f32")
    with vectors.open("ab") as file:
        file.write(b"half a vector")
    said: list[str] = []
    encoder = Lengths()
    build_index(corpus, tmp_path / "index", encoder=encoder, tell=said.append)
    assert encoder.texts == 1000 - 512
    assert said == ["continuing an unfinished build, 1 of 1 shards are done"]
    assert files_of(tmp_path / "index") == files_of(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index", "whole"]


def stopped(tmp_path: Path) -> Path:
    """The staging folder of a build that was stopped while it encoded."""
    with pytest.raises(KeyboardInterrupt):
        build_index(corpus_of(tmp_path), tmp_path / "index", encoder=Lengths(calls=0))
    [folder] = [path for path in tmp_path.glob(".index.building-*") if path.is_dir()]
    return folder


@pytest.mark.parametrize("file", ["passages.jsonl", "shard.json", "words.txt"])
def test_damaged_unfinished_build_is_begun_anew(tmp_path: Path, file: str) -> None:
    shard = stopped(tmp_path) / "shards" / "000000" / file
    shard.write_bytes(shard.read_bytes()[:-3])
    said: list[str] = []
    manifest, built = build_index(tmp_path / "corpus.jsonl", tmp_path / "index", encoder=Lengths(), tell=said.append)
    assert built
    assert manifest.passages == 1000
    assert len(said) == 1
    assert "is of no use" in said[0]
    assert read_manifest(tmp_path / "index", full=True) == manifest


def test_unfinished_index_is_refused_with_the_way_to_finish_it(tmp_path: Path) -> None:
    folder = stopped(tmp_path)
    for place in (tmp_path / "index", folder / "index"):
        with pytest.raises(DataError) as caught:
            SearchEngine.open(place, encoder=Lengths())
        assert caught.value.code == "no_index"
        assert "mia index build" in caught.value.remedy
    with pytest.raises(DataError, match="does not exist, but a build of it was begun") as caught:
        read_manifest(tmp_path / "index")
    assert "it continues" in caught.value.remedy


def test_unfinished_build_of_another_corpus_is_told_and_goes_at_the_end(tmp_path: Path) -> None:
    left = stopped(tmp_path)
    said: list[str] = []
    build_index(corpus_of(tmp_path, 5), tmp_path / "index", encoder=Lengths(), tell=said.append)
    assert len(said) == 1
    assert str(left) in said[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


def test_what_a_build_left_that_was_killed_at_its_very_end_goes_the_next_time(tmp_path: Path) -> None:
    """Its index stands already, so the next build has nothing to do but to clean up."""
    left = stopped(tmp_path)
    kept = tmp_path / "kept"
    shutil.copytree(left, kept)
    build_index(corpus_of(tmp_path), tmp_path / "index", encoder=Lengths())
    kept.rename(left)
    (tmp_path / f"{left.name}.lock").touch()
    _, built = build_index(tmp_path / "corpus.jsonl", tmp_path / "index", encoder=Lengths())
    assert not built
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


def test_build_that_cannot_write_keeps_what_is_done(tmp_path: Path) -> None:
    class Full(Lengths):
        def encode(self, texts: Sequence[str], kind: Literal["query", "passage"] = "query") -> Vectors:
            raise OSError(28, "No space left on device", "vectors.f32")

    with pytest.raises(DataError, match=r"vectors\.f32: No space left") as caught:
        build_index(corpus_of(tmp_path), tmp_path / "index", encoder=Full())
    assert caught.value.code == "unwritable_index"
    assert len(list(tmp_path.glob(".index.building-*/shards/000000"))) == 1


def test_staging_folder_is_one_for_each_content(tmp_path: Path) -> None:
    folders = {staging_of(tmp_path / "index", content) for content in (["a", 1], ["a", 2], ["b", 1], ["a", 1])}
    assert len(folders) == 3
    assert all(folder.parent == tmp_path for folder in folders)


def test_lock_names_its_process_and_goes(tmp_path: Path) -> None:
    folder = staging_of(tmp_path / "index", "content")
    with staged(folder, lambda: None):
        assert folder.with_name(folder.name + ".lock").read_text() == f"{os.getpid()}\n"
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------ shards and mappers


def test_cuts_fall_where_a_shard_is_full(tmp_path: Path) -> None:
    """Lines of 34 bytes and more; a shard takes lines until it has 100."""
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(f'{{"id": "{n}", "contents": "{"x" * 10}"}}\n' for n in range(10)))
    told: list[int] = []
    plan = cut(reader_of(path), tmp_path, 100, lambda units, share: told.append(units))
    assert plan == Plan(shard_bytes=100, shards=4)
    assert told == [3, 6, 9, 10]


def double(number: int) -> int:
    """What the mappers are given to do."""
    if number < 0:
        raise DataError(f"{number} is negative", remedy="add to it", code="negative")
    if number == 13:
        os._exit(9)
    print("noise on standard output")
    return 2 * number


@pytest.mark.parametrize("mapper", [Here(), Processes(2), Processes(5)])
def test_mappers_answer_in_order(mapper: Mapper) -> None:
    assert list(mapper([3, 1, 2], double)) == [6, 2, 4]
    assert list(mapper([], double)) == []


@pytest.mark.parametrize("mapper", [Here(), Processes(2)])
def test_mappers_raise_what_was_raised_first_in_order(mapper: Mapper) -> None:
    results = mapper([1, -5, 2, -7], double)
    assert next(results) == 2
    with pytest.raises(DataError, match="-5 is negative") as caught:
        list(results)
    assert (caught.value.code, caught.value.remedy) == ("negative", "add to it")


def test_process_that_dies_is_told() -> None:
    with pytest.raises(DataError, match="code 9") as caught:
        list(Processes(1)([13], double))
    assert caught.value.code == "worker_died"


def test_broken_row_in_a_late_shard_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    row = json.dumps({"id": "%d", "contents": "x" * 300}) + "\n"
    path.write_text("".join(row % n for n in range(9000)) + '{"id": "late"}\n' + "nonsense\n")
    with pytest.raises(DataError, match="line 9001, field contents: missing"):
        build_index(path, tmp_path / "index", ["bm25"], memory=330 * 10**6, workers=2)
    assert [p.name for p in tmp_path.iterdir()] == ["corpus.jsonl"]


@pytest.mark.parametrize("workers", [1, 2])
def test_duplicates_are_found_across_shards(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "corpus.jsonl"
    row = json.dumps({"id": "%d", "contents": "x" * 300}) + "\n"
    path.write_text("".join(row % (n if n != 8000 else 5) for n in range(9000)))
    with pytest.raises(DataError, match="line 8001, field id: '5' is the id of line 6 too"):
        build_index(path, tmp_path / "index", ["bm25"], memory=330 * 10**6, workers=workers)


# ------------------------------------------------------------------------------------------ progress


def test_bar_shows_stage_count_rate_and_time_left() -> None:
    shown = io.StringIO()
    with bar(Console(file=shown, force_terminal=True, width=120)) as step:
        for done in range(0, 1000, 50):
            step("read", done, 1000)
        step("engine of the future", 1, 2)
    for words in ("reading passages", "950/1000", "/s", "0:00:0", "engine of the future"):
        assert words in shown.getvalue()


def test_bar_is_silent_where_nobody_looks() -> None:
    shown = io.StringIO()
    with bar(Console(file=shown)) as step:
        step("read", 1, 2)
    assert shown.getvalue().strip() == ""
