"""Reads a corpus without holding it in memory. Four formats, the first three of rows, the last of articles:

    jsonl       {"id": "7", "contents": "\\"Vienna\\"\\nVienna is the capital of Austria."}   a line (Search-R1)
    tsv         id, text, title by tabs, named in the first line (DPR, HotpotQA)
    parquet     columns id and contents, or id, text and title
    wikipedia   an XML dump, cut into passages of 100 words

Lines and dumps may be compressed by gzip, zstd or bzip2. Ids must be unique; `build` sees to that, not the readers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from local_search.corpus_lines import Jsonl, Tsv
from local_search.corpus_parquet import Parquet
from local_search.corpus_rows import Reader, Row, Unit, join_contents, split_contents
from local_search.corpus_wikipedia import Wikipedia
from mia.types import Passage

__all__ = [
    "FORMATS",
    "Format",
    "Reader",
    "Row",
    "Unit",
    "format_of",
    "join_contents",
    "read_corpus",
    "read_rows",
    "reader_of",
    "split_contents",
]

Format = Literal["jsonl", "tsv", "parquet", "wikipedia"]
FORMATS: tuple[Format, ...] = get_args(Format)

_READERS: dict[Format, type[Reader]] = {"jsonl": Jsonl, "tsv": Tsv, "parquet": Parquet, "wikipedia": Wikipedia}
_SUFFIXES: dict[str, Format] = {".tsv": "tsv", ".parquet": "parquet", ".xml": "wikipedia"}
_COMPRESSED = (".gz", ".zst", ".bz2")


def format_of(path: Path) -> Format:
    """The format that a file's name tells by its suffix, beneath one of a compression; JSONL if it tells none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    return _SUFFIXES.get(suffixes[-1], "jsonl") if suffixes else "jsonl"


def reader_of(path: Path, format: Format | None = None) -> Reader:
    """The reader of a corpus file; its format is told by its name if not given."""
    return _READERS[format or format_of(path)](path)


def read_rows(path: Path, format: Format | None = None) -> Iterator[Row]:
    """The rows of a corpus file, in file order. Blank lines are skipped; whole numbers are accepted as ids.

    Raises:
        DataError: the file cannot be read or a row is broken; names file, place, field and reason.
    """
    reader = reader_of(path, format)
    skipped: Counter[str] = Counter()
    return (row for unit in reader.units() for row in reader.rows(unit, skipped))


def read_corpus(path: Path) -> Iterator[Passage]:
    """The passages of a corpus file, in file order. Errors as for `read_rows`."""
    return (row.passage() for row in read_rows(path))
