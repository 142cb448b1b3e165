"""Writes each engine's folder of an index from the joined passages and the shards. A finished one is kept as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from local_search import bm25_build, dense, lucene
from local_search.build_memory import Budget
from local_search.build_vectors import write_vectors
from local_search.dense_kinds import Kind
from local_search.index import EngineName, write_whole
from local_search.passages import read_all
from local_search.protocol import Encoder, Mapper


def write(
    index: Path,
    shards: Sequence[Path],
    engines: Sequence[EngineName],
    total: int,
    encoder: Encoder | None,
    kind: Kind | Literal["auto"],
    budget: Budget,
    step: Callable[[str, int, int], None],
    mapper: Mapper | None = None,
) -> tuple[dict[str, int], str]:
    """Write the folders of the engines into `index`; `mapper` shares the encoding out.

    Returns:
        What the BM25 engine counted, by name, and the kind of the dense index; both empty without their engine.
    """
    counts: dict[str, int] = {}
    chosen = ""
    if "bm25" in engines:
        counts = _write_bm25(index / "bm25", shards, total, budget, step)
    if "lucene" in engines:
        shutil.rmtree(index / "lucene", ignore_errors=True)
        (index / "lucene").mkdir()
        lucene.build(read_all(index), index / "lucene", lambda done: step("lucene", done, total))
    if encoder is not None:
        shutil.rmtree(index / "dense", ignore_errors=True)
        (index / "dense").mkdir()
        file = index.with_name("vectors.f32")
        vectors = write_vectors(index, file, total, encoder, mapper, lambda done: step("dense", done, total))
        chosen = dense.build_from(vectors, index / "dense", kind, budget.spare, lambda n: step("faiss", n, total)).kind
    return counts, chosen


def _write_bm25(
    folder: Path, shards: Sequence[Path], total: int, budget: Budget, step: Callable[[str, int, int], None]
) -> dict[str, int]:
    finished = folder.parent.with_name("bm25.json")
    if finished.exists():
        counts: dict[str, int] = json.loads(finished.read_bytes())
        return counts
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()

    def done(scores: int, of: int) -> None:
        step("bm25", total * scores // of, total)

    counts = bm25_build.merge(shards, folder, budget.spare, done)._asdict()
    step("bm25", total, total)
    write_whole(finished, json.dumps(counts))
    return counts
