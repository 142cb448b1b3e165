"""Takes a ready Lucene index of pyserini's into use, with the corpus it was made of: `mia index build --lucene DIR`.

The Lucene files are copied, so that the index folder is whole by itself; nothing is indexed anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from local_search.build_staging import clear, staged, staging_of
from local_search.corpus import Format, Row, format_of, read_rows
from local_search.index import Manifest, digest, is_index, publish, read_manifest, stamps
from local_search.java import require_java
from local_search.lucene import take_over
from local_search.passages import read_all, writing
from mia.errors import DataError


def adopt_lucene(
    corpus: Path, ready: Path, out: Path, force: bool = False, format: Format | None = None
) -> tuple[Manifest, bool]:
    """Make an index folder of a corpus and its ready Lucene index.

    Args:
        corpus: corpus file; its ids are those of the Lucene index.
        ready: folder of the Lucene index.
        out: folder of the index; missing, empty or an index.
        force: replace another index there.
        format: of the corpus; told by its name if not given.

    Returns:
        The manifest, and whether the folder was made; it is not if it holds the same already.

    Raises:
        ConfigError: Java or pyserini is missing.
        DataError: the corpus is broken, is not that of the Lucene index, or `out` holds something else.
    """
    require_java()
    if not corpus.is_file():
        raise DataError(f"{corpus}: no such file", remedy="check the path", code="unreadable_corpus")
    out, source = out.resolve(), format or format_of(corpus)
    wanted = Manifest(
        corpus=corpus.name,
        corpus_sha256=digest(corpus),
        source=source,
        passages=1,  # not counted yet
        engines=("lucene",),
        libraries={"pyserini": version("pyserini")},
        files={},
    )
    if out.exists() and any(out.iterdir()) and not force:
        if is_index(out) and (present := read_manifest(out)).describes(wanted):
            clear(out)  # see `build_index`
            return present, False
        raise DataError(
            f"{out} holds something else",
            remedy="choose another --out, or replace an index with --force",
            code="index_exists" if is_index(out) else "not_an_index",
        )
    staging = staging_of(out, ["lucene", wanted.corpus_sha256, str(ready.resolve())])
    with staged(staging, lambda: None):
        try:
            publish(staging / "index", out, _written(staging / "index", read_rows(corpus, source), ready, wanted))
        finally:
            shutil.rmtree(staging / "index", ignore_errors=True)  # nothing in it is worth continuing
    clear(out)
    return read_manifest(out), True


def _written(folder: Path, rows: Iterable[Row], ready: Path, wanted: Manifest) -> Manifest:
    """Fill `folder`; returns the whole manifest."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lucene").mkdir(parents=True)
    count = sum(1 for _ in writing(rows, folder))
    take_over(ready, folder / "lucene", (row.id for row in read_all(folder)))
    return wanted.model_copy(update={"passages": count, "files": stamps(folder)})
