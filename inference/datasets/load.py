"""`load_dataset`: reads the files of a dataset by its loader, counts every row, names every bad one."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from inference.datasets import (
    columns,
    files,
    flashrag,
    fvqa,
    gaia,
    hotpotqa,
    infoseek,
    livevqa,
    miniwiki,
    mmsearch,
    original,
    simpleqa,
    simplevqa,
)
from inference.datasets.config import DatasetConfig
from inference.datasets.images import Images
from inference.datasets.records import Counts, Dataset, Fault
from inference.datasets.rows import BadRow, Context, LeftOut, Row
from mia.errors import ConfigError, DataError
from mia.examples import Example

_SHOWN = 5
"""Faults that an error message lists."""


class Loader(Protocol):
    """What the module of a dataset has."""

    VERSION: str
    """Raised when the same bytes give other examples."""

    def examples(self, row: Row, context: Context) -> Iterable[Example]:
        """The examples of a row, by the module's own rules. May raise BadRow and LeftOut."""


LOADERS: Mapping[str, Loader] = {
    "2wikimultihopqa": hotpotqa,
    "bamboogle": flashrag,
    "fvqa": fvqa,
    "gaia": gaia,
    "hotpotqa": hotpotqa,
    "infoseek": infoseek,
    "jsonl": columns,
    "livevqa": livevqa,
    "mmsearch": mmsearch,
    "musique": flashrag,
    "nq": flashrag,
    "original": original,
    "popqa": flashrag,
    "simpleqa": simpleqa,
    "simplevqa": simplevqa,
    "triviaqa": flashrag,
}
"""The datasets that are read from files."""
_SPLITS: Mapping[str, tuple[str, ...]] = {
    "miniwiki": miniwiki.SPLITS,
    "mmsearch": mmsearch.SPLITS,
    "simplevqa": simplevqa.SPLITS,
}


def load_dataset(config: DatasetConfig) -> Dataset:
    """Read a dataset.

    Args:
        config: which, from where, and how.

    Raises:
        ConfigError: there is no such split or form of it, or its path is missing.
        DataError: a file cannot be read (code `unreadable_dataset`), pictures are needed and there is no folder of
            them (`no_pictures`), no row can be used, or `strict` is set and one cannot (`bad_dataset`).
    """
    _check(config)
    if config.name == "miniwiki":
        made = tuple(miniwiki.examples(Context(config, Images(None), config.name)))
        return Dataset(
            name=config.name,
            version=miniwiki.VERSION,
            sha256=miniwiki.sha256(config.split),
            examples=made,
            counts=Counts(rows=len(made), examples=len(made), faults=0),
        )
    if config.path is None:
        raise ConfigError(f"{config.name} is not bundled: dataset.path is empty", remedy="set dataset.path to its file")
    loader = LOADERS[config.name]
    name = config.path.name.split(".")[0] if config.name == "jsonl" else config.name
    reading = _Reading(config, loader, name)
    for file, part, images in _sources(config, config.path):
        reading.read(file, part, images)
    return reading.dataset()


def _check(config: DatasetConfig) -> None:
    """Settings that this dataset has no use for are refused: an ignored one would be a wrong benchmark."""
    known = _SPLITS.get(config.name, ())
    if config.split and config.name != "livevqa" and config.split not in known:
        remedy = f"known: {', '.join(known)}" if known else "leave split empty and give the split's file as path"
        raise ConfigError(f"{config.name} has no split {config.split!r}", remedy=remedy)
    if config.form == "choice" and config.name != "livevqa":
        raise ConfigError(f"{config.name} has no multiple choice form", remedy='leave form at "open"')


def _sources(config: DatasetConfig, path: Path) -> Iterator[tuple[Path, str, Images]]:
    """The files to read, each with its part's name and pictures."""
    if not path.exists():
        raise DataError(f"no file or folder {path}", remedy="check dataset.path", code="unreadable_dataset")
    if config.name == "livevqa":
        yield from livevqa.sources(config, path)
        return
    found = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    if not found:
        raise DataError(f"{path} is a folder without Parquet files", remedy="give the file", code="unreadable_dataset")
    base = found[0].parent
    tried = (config.images,) if config.images else (base / "images", *((base,) if config.name == "jsonl" else ()))
    images = Images(next((folder for folder in tried if folder.is_dir()), None), tried, base)
    for file in found:
        yield file, "", images


class _Reading:
    """What has been read so far."""

    def __init__(self, config: DatasetConfig, loader: Loader, name: str) -> None:
        self._config = config
        self._loader = loader
        self._name = name
        self._rows = 0
        self._examples: list[Example] = []
        self._faults: list[Fault] = []
        self._left_out: Counter[str] = Counter()
        self._seen: dict[str, str] = {}
        self._digests: dict[str, str] = {}

    def read(self, file: Path, part: str, images: Images) -> None:
        """Read one file."""
        assert self._config.path is not None
        base = self._config.path if self._config.path.is_dir() else file.parent
        self._digests[file.relative_to(base).as_posix()] = files.sha256_of(file)
        for raw in files.read(file):
            context = Context(self._config, images, self._name, part, raw.place, self._rows)
            self._rows += 1
            for bad in self._row(raw, file, context):
                self._faults.append(
                    Fault(file=str(file), unit=raw.unit, place=raw.place, field=bad.field, message=bad.message)
                )
        self._digests |= images.digests

    def _row(self, raw: files.Raw, file: Path, context: Context) -> Iterator[BadRow]:
        """Keep the examples of a row; gives what is wrong with it."""
        try:
            if isinstance(raw.value, BadRow):
                raise raw.value
            for made in self._loader.examples(Row(raw.value), context):
                first = self._seen.setdefault(made.question.id, f"{file.name}, {raw.unit} {raw.place}")
                if first != f"{file.name}, {raw.unit} {raw.place}":
                    yield BadRow("id", f"{made.question.id!r} is the id of {first} already")
                else:
                    self._examples.append(made)
        except BadRow as bad:
            yield bad
        except LeftOut as reason:
            self._left_out[str(reason)] += 1
        yield from context.broken

    def dataset(self) -> Dataset:
        """All that was read.

        Raises:
            DataError: there is no example, or a fault and `strict` is set (code `bad_dataset`).
        """
        listed = "".join(f"\n{fault}" for fault in self._faults[:_SHOWN])
        more = f"\n… and {len(self._faults) - _SHOWN} more" if len(self._faults) > _SHOWN else ""
        left = "".join(f"\n{count} left out: {reason}" for reason, count in self._left_out.items())
        if not self._examples:
            raise DataError(
                f"{self._name}: none of {self._rows} rows of {self._config.path} can be used{listed}{more}{left}",
                remedy="check that dataset.name fits the file; each loader's module documents its row",
                code="bad_dataset",
            )
        if self._faults and self._config.strict:
            raise DataError(
                f"{self._name}: {len(self._faults)} faults in {self._rows} rows of {self._config.path}{listed}{more}",
                remedy="mend the rows, or set strict to false to go on without them",
                code="bad_dataset",
            )
        return Dataset(
            name=self._name,
            version=self._loader.VERSION,
            sha256=_combined(self._digests),
            examples=tuple(self._examples),
            faults=tuple(self._faults),
            counts=Counts(
                rows=self._rows,
                examples=len(self._examples),
                faults=len(self._faults),
                left_out=dict(self._left_out),
            ),
        )


def _combined(digests: Mapping[str, str]) -> str:
    """One checksum of several files (see `Dataset`)."""
    if len(digests) == 1:
        return next(iter(digests.values()))
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
