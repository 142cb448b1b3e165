"""Rows of benchmark files, one at a time: JSON lines, a JSON array, CSV or Parquet, told by name and content.

Text files may be compressed by gzip, zstd or bzip2. A line that is no JSON is a bad row and the next is read; a file
that ends too early, or an array or table that cannot be read on, is an error: what is left would be another benchmark.
JSON arrays are streamed, so no file is in memory as a whole.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ijson

from inference.datasets.rows import BadRow
from local_search.corpus_lines import BOM, decompressed
from local_search.corpus_parquet import open_table, table_rows
from mia.errors import DataError
from mia.extras import need

MAX_LINE = 256 * 1024 * 1024
"""Bytes of the longest line that is read; rows hold pictures as base64."""
_COMPRESSED = (".gz", ".zst", ".bz2")
_TABLE_BATCH = 16
"""Rows of a table that are in memory at once; they hold pictures."""


class Raw(NamedTuple):
    """A row as it stands, or why it is none."""

    unit: str
    place: int
    value: Any | BadRow


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes as they are on disk.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, "", error) from error


def read(path: Path) -> Iterator[Raw]:
    """The rows of a file, in file order.

    Raises:
        DataError: it cannot be read, or not to its end (code `unreadable_dataset`).
    """
    name = path.name.lower()
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    if name.endswith(".parquet"):
        return _table(path)
    return _csv(path) if name.endswith(".csv") else _json(path)


def _json(path: Path) -> Iterator[Raw]:
    after = ""
    try:
        with path.open("rb") as file:
            stream = io.BufferedReader(decompressed(file), 1 << 16)  # type: ignore[type-var]
            if stream.peek(3)[:3] == BOM:
                stream.read(3)
            head = stream.peek(1)
            while head[:1].isspace():
                stream.read(1)
                head = stream.peek(1)
            for raw in _array(stream) if head[:1] == b"[" else _lines(stream):
                after = f"after {raw.unit} {raw.place}"
                yield raw
    except ijson.JSONError as error:
        raise unreadable(path, after, " ".join(str(error).split())) from error
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, after, error) from error


def _array(stream: BinaryIO) -> Iterator[Raw]:
    for place, value in enumerate(ijson.items(stream, "item", use_float=True), start=1):
        yield Raw("item", place, value)


def _lines(stream: BinaryIO) -> Iterator[Raw]:
    place = 0
    while line := stream.readline(MAX_LINE + 1):
        place += 1
        if len(line) > MAX_LINE:
            raise OSError(f"line {place} is longer than {MAX_LINE} bytes")
        if line.strip():
            yield Raw("line", place, _parsed(line.rstrip(b"\r\n")))


def _parsed(line: bytes) -> Any | BadRow:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRow("", f"byte {error.start + 1} is not UTF-8")
    except json.JSONDecodeError as error:
        return BadRow("", f"not JSON: {error.msg} (column {error.colno})")
    except (ValueError, RecursionError) as error:  # numbers and nestings beyond what Python reads
        return BadRow("", f"not usable JSON: {error}")


def _csv(path: Path) -> Iterator[Raw]:
    line = 0
    try:
        with path.open("rb") as file, io.TextIOWrapper(decompressed(file), "utf-8-sig", newline="") as text:
            table = csv.reader(text, strict=True)
            names = next(table, None)
            if names is None:
                return
            line = table.line_num
            for fields in table:
                place, line = line + 1, table.line_num
                if not fields:
                    continue
                if len(fields) != len(names):
                    yield Raw(
                        "line", place, BadRow("", f"{len(fields)} columns where the first line names {len(names)}")
                    )
                else:
                    yield Raw("line", place, dict(zip(names, fields, strict=True)))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, f"after line {line}" if line else "", error) from error


def _table(path: Path) -> Iterator[Raw]:
    arrow = need("pyarrow", "search")
    place = 0
    try:
        with open_table(path) as table:
            for place, row in enumerate(table_rows(table, table.schema_arrow.names, _TABLE_BATCH), start=1):
                yield Raw("row", place, row)
    except (OSError, arrow.ArrowException) as error:
        raise unreadable(path, f"after row {place}" if place else "", error) from error


def unreadable(path: Path, after: str, error: Exception | str) -> DataError:
    """The error of a file that cannot be read, or not further."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    where = f"{path}, {after}" if after else str(path)
    return DataError(f"{where}: {reason}", remedy="check the path and the file", code="unreadable_dataset")
