"""The index folder: a manifest with sizes and checksums of all files, written last, put in place by one rename.

    DIR/manifest.json           what is here; its presence says that the index is finished
    DIR/passages.jsonl          rows of the corpus, with offsets.npy (see `passages`)
    DIR/bm25/, dense/, lucene/   one folder for each engine

Nothing here knows how an engine works; `build` writes an index and `engine` searches it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from contextlib import suppress
from datetime import datetime
from glob import escape
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from mia.errors import DataError
from mia.types import Record, now

FORMAT = 2
MANIFEST = "manifest.json"
QUICK_BYTES = 256 * 1024 * 1024
"""Opening an index checks the checksums of files up to this size in all (a second at most), else the sizes alone."""

EngineName = Literal["bm25", "dense", "lucene"]
ENGINES: tuple[EngineName, ...] = ("bm25", "dense", "lucene")
DEFAULT_ENGINES: tuple[EngineName, ...] = ("bm25", "dense")


class Stamp(Record):
    """Size and SHA-256 of a file; of one that lies elsewhere (see `adopt`) the time of its last change, in ns."""

    bytes: int = Field(ge=0)
    sha256: str = ""
    modified: int = 0


class Manifest(Record):
    """What an index holds. `encoder`, `dim` and `kind` (of `dense_kinds`) are those of the dense engine.

    `source` is the format of the corpus, `skipped` counts what of it was left out by reason, `counts` words, vocabulary
    and postings of the BM25 engine; indexes of format 1 do not know these.
    """

    format: int = FORMAT
    corpus: str
    corpus_sha256: str
    source: str = ""
    passages: int = Field(ge=1)
    skipped: dict[str, int] = Field(default_factory=dict)
    counts: dict[str, int] = Field(default_factory=dict)
    engines: tuple[EngineName, ...] = Field(min_length=1)
    encoder: str = ""
    dim: int = 0
    kind: str = ""
    libraries: dict[str, str] = Field(default_factory=dict)
    files: dict[str, Stamp]
    created: datetime = Field(default_factory=now)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(stamp.bytes for stamp in self.files.values())

    def describes(self, other: Manifest) -> bool:
        """Whether both say the same of corpus, engines and encoder, whenever and with whatever built."""
        same_source = self.source == other.source or not (self.source and other.source)
        return same_source and self._content() == other._content()

    def _content(self) -> tuple[object, ...]:
        return self.corpus_sha256, sorted(self.engines), self.encoder, self.dim


def digest(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def stamps(folder: Path) -> dict[str, Stamp]:
    """Stamps of all files under a folder, by path relative to it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): Stamp(bytes=path.stat().st_size, sha256=digest(path)) for path in files
    }


def stamp_of(file: Path, whole: bool = False) -> Stamp:
    """The stamp of a file, with its checksum if it is to be read as a `whole`, else with its time of change."""
    found = file.stat()
    if whole:
        return Stamp(bytes=found.st_size, sha256=digest(file))
    return Stamp(bytes=found.st_size, modified=found.st_mtime_ns)


def read_manifest(folder: Path, full: bool = False) -> Manifest:
    """The manifest of an index, after checking that the index is whole.

    Args:
        folder: the index.
        full: check all checksums, however large the index is (see QUICK_BYTES).

    Raises:
        DataError: there is no index (code `no_index`), it is unfinished or damaged (`damaged_index`) or of a newer
            format (`newer_index`), or its files may not be read (`unreadable_index`).
    """
    try:
        manifest = _parsed(folder)
        check_sums = full or manifest.size <= QUICK_BYTES
        for name, stamp in manifest.files.items():
            _check(folder, name, stamp, check_sums)
    except OSError as error:
        raise DataError(
            f"index {folder} cannot be read: {error.filename or ''} {error.strerror or error}",
            remedy="check the permissions of the index",
            code="unreadable_index",
        ) from error
    return manifest


def _check(folder: Path, name: str, stamp: Stamp, check_sum: bool) -> None:
    file = folder / name
    if not file.is_file():
        raise _damaged(folder, f"{name} is missing")
    if stamp.modified:
        if stamp_of(file) != stamp:
            raise DataError(
                f"index {folder}: {file.resolve()} was changed since it was adopted",
                remedy="adopt it again: `mia index adopt … --force`",
                code="damaged_index",
            )
        return
    if file.stat().st_size != stamp.bytes:
        raise _damaged(folder, f"{name} has {file.stat().st_size} bytes, not {stamp.bytes}")
    if check_sum and digest(file) != stamp.sha256:
        raise _damaged(folder, f"{name} has another checksum than when it was written")


def _parsed(folder: Path) -> Manifest:
    try:
        value = json.loads((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"holds no finished index (no {MANIFEST})" if folder.is_dir() else "does not exist"
        remedy = "build one: `mia index build CORPUS --out DIR`"
        if any(folder.absolute().parent.glob(f".{escape(folder.name)}.building-*")):
            what += ", but a build of it was begun"
            remedy = "give the same `mia index build` command again, it continues"
        raise DataError(f"index {folder} {what}", remedy=remedy, code="no_index") from error
    except ValueError as error:
        raise _damaged(folder, f"{MANIFEST} is not JSON") from error
    version = value.get("format") if isinstance(value, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise DataError(
            f"index {folder} has format {version}, this version reads up to {FORMAT}",
            remedy=f"update mia-agent, or rebuild: `mia index build CORPUS --out {folder} --force`",
            code="newer_index",
        )
    try:
        return Manifest.model_validate(value)
    except ValidationError as error:
        fault = error.errors()[0]
        raise _damaged(folder, f"{MANIFEST}, field {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error


def _damaged(folder: Path, reason: str) -> DataError:
    return DataError(
        f"index {folder} is damaged: {reason}",
        remedy=f"rebuild it: `mia index build CORPUS --out {folder} --force`",
        code="damaged_index",
    )


def is_index(folder: Path) -> bool:
    """Whether a folder is an index, sound or not, that a rebuild may replace."""
    return (folder / MANIFEST).is_file()


def write_whole(file: Path, text: str) -> None:
    """Write a file that appears with all its text, or not at all."""
    unfinished = file.with_name(f"{file.name}.part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.rename(file)


def publish(folder: Path, out: Path, manifest: Manifest) -> None:
    """Write the manifest and move a staged index into place, over the index or empty folder that is there.

    Where another process has put an equal index in the meantime, that one stays.

    Raises:
        OSError: the folder cannot be moved; what was there is there still.
    """
    write_whole(folder / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
    if holds(out, manifest):
        return
    retired = _sibling(out, "retired")
    with suppress(FileNotFoundError):
        os.rename(out, retired)
    try:
        os.rename(folder, out)
    except OSError:
        if not holds(out, manifest):
            with suppress(FileNotFoundError):
                os.rename(retired, out)
            raise
    shutil.rmtree(retired, ignore_errors=True)


def holds(folder: Path, manifest: Manifest) -> bool:
    """Whether a folder is a sound index that `manifest` describes too."""
    try:
        return read_manifest(folder).describes(manifest)
    except DataError:
        return False


def _sibling(out: Path, purpose: str) -> Path:
    return out.absolute().parent / f".{out.name}.{purpose}-{uuid.uuid4().hex[:8]}"
