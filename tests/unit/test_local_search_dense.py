"""Vector indexes of every kind: recall against numpy, sizes as the table says, choice by size and memory, refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import faiss
import numpy as np
import pytest

from local_search.dense_build import build_from
from local_search.dense_index import FILE, SECOND_LOOK, SPEC, EightBit, VectorIndex, eight_bit, read_spec
from local_search.dense_kinds import KINDS, Kind, cells, choose, disk_of, memory_of, readable, subvectors
from local_search.protocol import Vectors
from mia.errors import ConfigError, DataError

APPROXIMATE: tuple[Kind, ...] = ("ivf-pq", "ivf-sq8", "hnsw")


def clustered(count: int, dim: int, seed: int = 3) -> Vectors:
    """Unit vectors around `count` / 50 centres."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(max(1, count // 50), dim))
    table = centres[rng.integers(0, len(centres), count)] + 0.7 * rng.normal(size=(count, dim))
    made: Vectors = (table / np.linalg.norm(table, axis=1, keepdims=True)).astype(np.float32)
    return made


@pytest.fixture(scope="module")
def table() -> Vectors:
    return clustered(20_000, 64)


@pytest.fixture(scope="module")
def folders(table: Vectors, tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Path]:
    built = {}
    for kind in KINDS:
        built[kind] = tmp_path_factory.mktemp(kind)
        build_from(table, built[kind], kind)
    return built


@pytest.mark.parametrize("kind", KINDS)
def test_recall_is_that_of_an_exact_search(table: Vectors, folders: dict[Kind, Path], kind: Kind) -> None:
    queries = clustered(200, 64, seed=4)
    exact = np.argsort(-(queries.astype(np.float64) @ table.T.astype(np.float64)), axis=1)[:, :10]
    found = VectorIndex(folders[kind]).top(queries, 10)
    recall = np.mean(
        [len({row for row, _ in hits} & set(rows.tolist())) / 10 for hits, rows in zip(found, exact, strict=True)]
    )
    assert recall == 1.0 if kind == "flat" else recall >= 0.95
    tolerance = {"flat": 1e-6, "hnsw": 1e-5, "ivf-pq": 0.01, "ivf-sq8": 0.02}[kind]
    for query, hits in zip(queries, found, strict=True):
        rows = [row for row, _ in hits]
        np.testing.assert_allclose([score for _, score in hits], table[rows] @ query, atol=tolerance)
        assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_is_exactly_the_single_queries_and_k_is_kept(folders: dict[Kind, Path], kind: Kind) -> None:
    index = VectorIndex(folders[kind])
    queries = clustered(40, 64, seed=5)
    for k in (1, 10, 300):
        batch = index.top(queries, k)
        assert batch == [index.top(query[None], k)[0] for query in queries]
        assert {len(hits) for hits in batch} == {k}
    if kind != "hnsw":  # a graph is searched for near rows only; inverted files look into further cells
        assert len(index.top(queries[:1], 15_000)[0]) == 15_000
    assert index.top(queries[:0], 5) == []


@pytest.mark.parametrize("kind", KINDS)
def test_same_vectors_give_the_same_bytes(kind: Kind, tmp_path: Path) -> None:
    vectors = clustered(3000, 32)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        build_from(vectors, tmp_path / name, kind)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted([FILE, SPEC] + ([SECOND_LOOK] if kind == "ivf-pq" else []))
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_those_of_the_table(folders: dict[Kind, Path], kind: Kind) -> None:
    main = (folders[kind] / FILE).stat().st_size
    assert main == pytest.approx(memory_of(kind, 20_000, 64), rel=0.1)
    whole = main + (20_000 * 68 if kind == "ivf-pq" else 0)
    spec = read_spec(folders[kind])
    assert spec is not None
    assert spec.bytes == whole == pytest.approx(disk_of(kind, 20_000, 64), rel=0.1)


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_record_tells_effort_and_measured_recall(folders: dict[Kind, Path], kind: Kind) -> None:
    spec = read_spec(folders[kind])
    assert spec is not None
    assert (spec.kind, spec.count, spec.dim) == (kind, 20_000, 64)
    assert spec.recall is not None
    assert 0.96 <= spec.recall <= 1.0
    assert (spec.effort > 0) == (kind == "hnsw")
    assert (spec.probes > 0) == (spec.cells > 0) == (kind != "hnsw")
    assert (spec.pool > 0) == (kind == "ivf-pq")


def test_equal_vectors_do_not_count_as_missed(tmp_path: Path) -> None:
    """All rows are one of 4 vectors: which of the equal ones is found says nothing."""
    vectors = np.repeat(clustered(4, 16), 500, axis=0)
    spec = build_from(vectors, tmp_path, "ivf-sq8")
    assert spec.recall is not None
    assert spec.recall >= 0.95


# ------------------------------------------------------------------------------------------ choice

MILLION = 10**6


@pytest.mark.parametrize(
    ("count", "dim", "memory", "kind"),
    [
        (100, 384, 8 * 10**9, "flat"),
        (50_000, 384, 8 * 10**9, "flat"),  # 77 MB
        (50_000, 384, 50 * MILLION, "ivf-pq"),
        (50_001, 384, 8 * 10**9, "ivf-pq"),
        (MILLION, 384, 450 * MILLION, "ivf-pq"),
        (21 * MILLION, 768, 8 * 10**9, "ivf-pq"),  # 21M (96 + 8) = 2.2 GB
        (100_000, 31, 8 * 10**9, "ivf-sq8"),  # 31 numbers cannot be cut
    ],
)
def test_choice_by_size_and_memory(count: int, dim: int, memory: int, kind: Kind) -> None:
    assert choose(count, dim, memory) == kind


def test_too_little_memory_is_told_with_what_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"21000000 vectors of 768 numbers take 2\.\d+ GB") as caught:
        choose(21 * MILLION, 768, 10**9)
    assert caught.value.code == "no_memory"
    needed = int(caught.value.remedy.partition("--memory ")[2].partition("MB")[0]) * MILLION
    assert choose(21 * MILLION, 768, needed) == "ivf-pq"


def test_table_by_hand() -> None:
    assert memory_of("flat", 1000, 384) == 1_536_000
    assert memory_of("hnsw", MILLION, 384) == 1_812_000_000
    assert memory_of("ivf-sq8", MILLION, 384) == 392_000_000 + 4096 * 384 * 4
    assert memory_of("ivf-pq", MILLION, 384) == 56_000_000 + 1024 * 384 * 6 + 64 * 384
    assert (cells("ivf-pq", MILLION), cells("ivf-sq8", MILLION), cells("ivf-pq", 700)) == (1024, 4096, 16)
    assert [subvectors(dim) for dim in (384, 768, 1024, 26, 31, 20, 7)] == [96, 192, 256, 0, 0, 4, 0]


def test_sizes_are_shown_readably() -> None:
    assert [readable(n) for n in (12, 2048, 5_120_000, 1_234_567_890)] == ["12 bytes", "2.05 kB", "5.12 MB", "1.23 GB"]


# ------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("kind", ["ivf-pq", "ivf-sq8"])
def test_too_few_vectors_to_train_on_are_refused(tmp_path: Path, kind: Kind) -> None:
    with pytest.raises(DataError, match="too few") as caught:
        build_from(clustered(100, 32), tmp_path, kind)
    assert caught.value.code == "few_vectors"


def test_no_vectors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no vectors"):
        build_from(np.zeros((0, 8), dtype=np.float32), tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused_by_row(tmp_path: Path, value: float) -> None:
    vectors = clustered(50, 8)
    vectors[37, 3] = value
    with pytest.raises(DataError, match="vector 37 is not finite"):
        build_from(vectors, tmp_path)


def test_length_that_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="31 numbers"):
        build_from(clustered(1000, 31), tmp_path, "ivf-pq")


@pytest.mark.parametrize("content", [b"", b"IxFI", b"not an index at all", b"IwSq" + b"\x00" * 50])
def test_damaged_index_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(DataError, match="cannot be read") as caught:
        VectorIndex(tmp_path)
    assert caught.value.code == "damaged_index"


def test_damaged_record_is_refused(tmp_path: Path) -> None:
    build_from(clustered(50, 8), tmp_path)
    (tmp_path / SPEC).write_text('{"kind": "cube"}')
    with pytest.raises(DataError, match=SPEC):
        VectorIndex(tmp_path)


def test_index_of_distances_is_refused(tmp_path: Path) -> None:
    index = faiss.IndexFlatL2(4)
    index.add(clustered(10, 4))
    faiss.write_index(index, str(tmp_path / FILE))
    with pytest.raises(DataError, match="by distance") as caught:
        VectorIndex(tmp_path)
    assert caught.value.code == "bad_metric"


def test_query_of_another_length_is_refused(folders: dict[Kind, Path]) -> None:
    with pytest.raises(DataError, match="32 dimensions, the index 64") as caught:
        VectorIndex(folders["flat"]).top(clustered(1, 32), 3)
    assert caught.value.code == "other_dimension"


# ------------------------------------------------------------------------------------------ details


def test_eight_bit_rows_hold_a_127th_of_their_largest_number(tmp_path: Path) -> None:
    vectors = clustered(30, 16)
    (tmp_path / "rows").write_bytes(eight_bit(vectors).tobytes())
    query = clustered(1, 16, seed=8)[0]
    scores = EightBit(tmp_path / "rows", 16).scores(np.array([29, 0, 7]), query)
    bound = np.abs(vectors).max() / 254 * np.abs(query).sum()
    np.testing.assert_allclose(scores, vectors[[29, 0, 7]] @ query, atol=bound)
    assert eight_bit(np.zeros((1, 4), dtype=np.float32))["numbers"].tolist() == [[0, 0, 0, 0]]


def test_large_flat_index_is_scanned_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = clustered(3000, 16)
    vectors[[5, 1500, 2999]] = vectors[5]
    build_from(vectors, tmp_path, "flat")
    whole = VectorIndex(tmp_path).top(vectors[:20], 30)
    monkeypatch.setattr("local_search.dense_index._BLOCK_BYTES", 4 * 16 * 400)
    assert VectorIndex(tmp_path).top(vectors[:20], 30) == whole
    assert [row for row, _ in whole[5][:3]] == [5, 1500, 2999]


@pytest.mark.long
def test_memory_stays_bounded(tmp_path: Path) -> None:
    """200,000 vectors of 384 numbers are 307 MB; the index and its searches stay within a small part of that."""
    build_from(clustered(200_000, 384), tmp_path, "ivf-pq")
    code = (
        "import re, sys, faiss, numpy as np; from pathlib import Path\n"
        "from local_search.dense_index import VectorIndex\n"
        "def used(): return int(re.search(r'VmRSS:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024\n"
        "index = VectorIndex(Path(sys.argv[1])); rng = np.random.default_rng(0)\n"
        "for _ in range(500): index.top(rng.normal(size=(1, 384)).astype(np.float32), 10)\n"
        "print(used())"
    )
    shown = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(shown.stdout) < 150e6 + memory_of("ivf-pq", 200_000, 384)
