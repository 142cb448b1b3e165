"""Takes a ready-made corpus and FAISS index into use as they are, such as Search-R1's wiki-18.jsonl and e5_Flat.index.

The index folder holds links to both files and one new file, the byte offset of each row; nothing is copied. Row i of
the corpus must be row i of the FAISS index, as Search-R1's builder has it. A file that is changed later is refused.
Left out: a search for equal ids, which would hold all ids in memory, and BM25 (build that from the corpus).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from array import array
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from local_search.build_staging import clear, staged, staging_of
from local_search.corpus_lines import BOM, Jsonl, decompressed
from local_search.corpus_rows import MAX_UNIT
from local_search.dense_index import FILE, open_faiss
from local_search.encoder import encoder_of
from local_search.index import MANIFEST, Manifest, is_index, publish, read_manifest, stamp_of
from local_search.passages import OFFSETS, ROWS
from mia.errors import DataError

_VECTORS = f"dense/{FILE}"


class _Scan(NamedTuple):
    offsets: array[int]
    sha256: str


def adopt(
    corpus: Path,
    faiss_file: Path,
    encoder: str,
    out: Path,
    force: bool = False,
    unpack: bool = False,
    step: Callable[[int], None] = lambda done: None,
) -> tuple[Manifest, bool]:
    """Make an index folder of a corpus and a FAISS index that stay where they are.

    Args:
        corpus: JSONL with `id` and `contents`, not compressed.
        faiss_file: index of inner products over unit vectors, of any FAISS kind.
        encoder: name of the encoder of the vectors, see `encoder_names`.
        out: folder of the index; missing, empty or an index.
        force: replace another index there.
        unpack: write a compressed corpus into the folder, unpacked.
        step: told how many rows are read.

    Returns:
        The manifest, and whether the folder was made; it is not if it links to the same files already.

    Raises:
        DataError: the corpus is compressed (code `compressed_corpus`) or broken, the counts differ (`row_mismatch`),
            the encoder is not known or gives other vectors, or `out` holds something else.
    """
    out, corpus, faiss_file = out.resolve(), _existing(corpus), _existing(faiss_file)
    index = open_faiss(faiss_file)
    count, dim = int(index.ntotal), int(index.d)
    del index
    _check_encoder(encoder, dim)
    links = {_VECTORS: faiss_file} if _is_packed(corpus, unpack) else {ROWS: corpus, _VECTORS: faiss_file}
    wanted = Manifest(
        corpus=corpus.name,
        corpus_sha256="",  # not read yet
        source="jsonl",
        passages=count,
        engines=("dense",),
        encoder=encoder,
        dim=dim,
        kind="adopted",
        libraries={"faiss-cpu": version("faiss-cpu")},
        files={name: stamp_of(file) for name, file in links.items()},
    )
    present = _present(out, links, wanted, force)
    if present is not None:
        clear(out)  # see `build_index`
        return present, False
    staging = staging_of(out, ["adopt", str(corpus), str(faiss_file), encoder])
    with staged(staging, lambda: None):
        folder = staging / "index"
        manifest = _written(folder, out, corpus, links, wanted, step)
        if is_index(out):
            shutil.rmtree(out)
        publish(folder, out, manifest)
    return manifest, True


def _written(
    folder: Path, out: Path, corpus: Path, links: dict[str, Path], wanted: Manifest, step: Callable[[int], None]
) -> Manifest:
    """Fill `folder`, which will be `out`; returns the whole manifest."""
    shutil.rmtree(folder, ignore_errors=True)  # of an adoption that was cut short
    (folder / "dense").mkdir(parents=True)
    own = [OFFSETS]
    if ROWS not in links:
        corpus = _unpacked(corpus, folder / ROWS)
        own.append(ROWS)
    scan = _scanned(corpus, wanted.passages, step)
    np.save(folder / OFFSETS, np.frombuffer(scan.offsets, dtype=np.int64))
    for name, file in links.items():
        (folder / name).symlink_to(_target(file, out, name))
    files = {**{name: stamp_of(folder / name, whole=True) for name in own}, **wanted.files}
    return wanted.model_copy(update={"corpus_sha256": scan.sha256, "files": files})


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise DataError(f"{file}: no such file", remedy="check the path", code="unreadable_corpus")
    return file.resolve()


def _check_encoder(name: str, dim: int) -> None:
    found = encoder_of(name, dim)
    if found.dim != dim:
        raise DataError(
            f"the encoder {name} gives vectors of {found.dim} numbers, the FAISS index has {dim}",
            remedy="name the encoder that the index was made with",
            code="other_dimension",
        )


def _is_packed(corpus: Path, unpack: bool) -> bool:
    """Whether a corpus is compressed, which is refused unless it is to be unpacked."""
    with corpus.open("rb") as file:
        packed = decompressed(file) is not file
    if packed and not unpack:
        raise DataError(
            f"{corpus} is compressed: passages are read by their place in the file",
            remedy=f"unpack it first, e.g. `gunzip -k {corpus}`, or let --unpack write it into the index folder",
            code="compressed_corpus",
        )
    return packed


def _unpacked(corpus: Path, target: Path) -> Path:
    try:
        with corpus.open("rb") as packed, target.open("wb") as file:
            shutil.copyfileobj(decompressed(packed), file, 1 << 20)
    except (EOFError, zlib.error) as error:
        raise DataError(f"{corpus}: {error}", remedy="fetch it again", code="unreadable_corpus") from error
    return target


def _target(file: Path, out: Path, name: str) -> Path:
    """What a link says: relative where the file lies beside the index, so that both can be moved together."""
    beside = out.parent
    return Path(os.path.relpath(file, (out / name).parent)) if file.is_relative_to(beside) else file


def _present(out: Path, links: dict[str, Path], wanted: Manifest, force: bool) -> Manifest | None:
    """The index in `out` if it is the wanted one already."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not is_index(out):
        raise DataError(
            f"{out} exists and is not an index (no {MANIFEST})",
            remedy="choose another --out, or remove it yourself",
            code="not_an_index",
        )
    if force:
        return None
    present = read_manifest(out)
    same = all((out / name).resolve() == file for name, file in links.items())
    if same and present.encoder == wanted.encoder and wanted.files.items() <= present.files.items():
        return present
    raise DataError(
        f"{out} holds another index ({present.corpus}, {present.passages} passages)",
        remedy="choose another --out, or replace it with --force",
        code="index_exists",
    )


def _scanned(corpus: Path, count: int, step: Callable[[int], None]) -> _Scan:
    """The byte offset of each row, and of the end, after looking at every row."""
    reader = Jsonl(corpus)
    offsets, total, place = array("q"), hashlib.sha256(), 0
    with corpus.open("rb") as file:
        number = 0
        while line := file.readline(MAX_UNIT + 1):
            number += 1
            if len(line) > MAX_UNIT:
                raise reader.broken(number, f"longer than {MAX_UNIT} bytes")
            total.update(line)
            skipped = len(BOM) if number == 1 and line.startswith(BOM) else 0
            bare = line[skipped:].rstrip(b"\r\n")
            if bare.strip():
                _check(reader, number, bare)
                offsets.append(place + skipped)
                if len(offsets) % 10_000 == 0:
                    step(len(offsets))
            place += len(line)
    if len(offsets) != count:
        raise DataError(
            f"{corpus} has {len(offsets)} rows, the FAISS index {count}",
            remedy="give the corpus that the index was made from, whole and in its order",
            code="row_mismatch",
        )
    step(count)
    offsets.append(place)
    return _Scan(offsets, total.hexdigest())


def _check(reader: Jsonl, number: int, line: bytes) -> None:
    """Refuse what could not be served. Blank texts are let be: the row numbers of the vectors count them."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise reader.broken(number, f"not usable JSON: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("id"), str | int):
        raise reader.broken(number, "missing, or neither text nor number", "id")
    if not isinstance(row.get("contents"), str):
        raise reader.broken(number, "missing, or not text", "contents")
