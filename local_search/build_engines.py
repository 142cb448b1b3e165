"""Writes each engine's folder of an index from the joined passages and the shards. A finished one is kept as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from local_search import bm25_build, dense, lucene
from local_search.build_memory import Budget
from local_search.dense_kinds import Kind
from local_search.index import EngineName, write_whole
from local_search.passages import read_all, searched_text
from local_search.protocol import Encoder

_CHUNK = 256


def write(
    index: Path,
    shards: Sequence[Path],
    engines: Sequence[EngineName],
    total: int,
    encoder: Encoder | None,
    kind: Kind | Literal["auto"],
    budget: Budget,
    step: Callable[[str, int, int], None],
) -> tuple[dict[str, int], str]:
    """Write the folders of the engines into `index`.

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
        vectors = _vectors(index, index.with_name("vectors.f32"), total, encoder, step)
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


def _vectors(
    index: Path, file: Path, total: int, encoder: Encoder, step: Callable[[str, int, int], None]
) -> NDArray[np.float32]:
    """The vectors of all passages (total, dim), mapped from a file that survives a kill.

    Chunks have the same passages in every run: the last bits of a vector depend on what is encoded beside it.
    """
    with file.open("ab") as vectors:
        done = vectors.tell() // (4 * encoder.dim) // _CHUNK * _CHUNK
        vectors.truncate(done * 4 * encoder.dim)
        rest = (searched_text(row.passage()) for row in read_all(index, done))
        while chunk := list(islice(rest, _CHUNK)):
            vectors.write(encoder.encode(chunk, "passage").astype(np.float32, copy=False).tobytes())
            vectors.flush()
            done += len(chunk)
            step("dense", done, total)
    return np.memmap(file, dtype=np.float32, mode="r", shape=(total, encoder.dim))
