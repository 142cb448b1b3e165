"""Reads a corpus in the Search-R1 form, one JSON object a line, as it is or gzipped, without holding it in memory.

    {"id": "7", "contents": "\\"Vienna\\"\\nVienna is the capital of Austria."}

The first line of `contents` is the title, in quotes. Other fields of a row are not read. Left out: other corpus forms,
and duplicates across files. Duplicates within the file cost one dictionary entry a row.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mia.errors import DataError
from mia.types import Passage, clean_text

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"


class Row(NamedTuple):
    """A corpus row as it stands in the file."""

    id: str
    contents: str

    def passage(self) -> Passage:
        """The row with its title apart from its text."""
        title, text = split_contents(self.contents)
        return Passage(id=self.id, title=title, text=text)


def split_contents(contents: str) -> tuple[str, str]:
    """Title and text of `contents`.

    One pair of surrounding quotes is taken off the title, quotes within it stay. A single line without quotes is a
    text that has no title.
    """
    first, newline, rest = contents.partition("\n")
    first = first.removesuffix("\r")
    if len(first) >= 2 and first[0] == first[-1] == '"':
        return first[1:-1], rest
    return (first, rest) if newline else ("", contents)


def read_corpus(path: Path) -> Iterator[Passage]:
    """The passages of a corpus file, in file order. Errors as for `read_rows`."""
    return (row.passage() for row in read_rows(path))


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a corpus file, in file order. Blank lines are skipped; whole numbers are accepted as ids.

    Raises:
        DataError: the file cannot be read, a row is broken or an id comes twice; names file, line, field and reason.
    """
    lines_of: dict[str, int] = {}
    for number, line in _lines(path):
        row = _row(path, number, line)
        if row.id in lines_of:
            raise DataError(
                f"{path}, line {number}, field id: {row.id!r} is the id of line {lines_of[row.id]} too",
                remedy="give every row its own id",
                code="duplicate_id",
            )
        lines_of[row.id] = number
        yield row


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank. Only a newline byte ends a line: U+2028 and its like are text."""
    number = 0
    try:
        with path.open("rb") as raw:
            lines = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == _GZIP else raw
            for number, line in enumerate(lines, 1):
                bare = (line.removeprefix(_BOM) if number == 1 else line).rstrip(b"\r\n")
                if bare.strip():
                    yield number, bare
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        where = f"{path}, after line {number}" if number else str(path)
        raise DataError(f"{where}: {reason}", remedy="check the path and the file", code="unreadable_corpus") from error


def _row(path: Path, number: int, line: bytes) -> Row:
    try:
        value: Any = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _broken(path, number, f"byte {error.start + 1} is not UTF-8 ({error.reason})") from error
    except json.JSONDecodeError as error:
        raise _broken(path, number, f"not JSON: {error.msg} (column {error.colno})") from error
    except (ValueError, RecursionError) as error:  # numbers and nestings beyond what Python reads
        raise _broken(path, number, f"not usable JSON: {error}") from error
    if not isinstance(value, dict):
        raise _broken(path, number, f"a JSON {type(value).__name__} where an object belongs")
    name, contents = value.get("id"), value.get("contents")
    if isinstance(name, int) and not isinstance(name, bool):
        name = str(name)
    if not isinstance(name, str) or not name:
        raise _broken(path, number, _fault(value, "id"), "id")
    if not isinstance(contents, str) or not contents.strip():
        raise _broken(path, number, _fault(value, "contents"), "contents")
    return Row(clean_text(name), clean_text(contents))


def _fault(row: dict[str, Any], field: str) -> str:
    if field not in row:
        return "missing"
    return "blank" if isinstance(row[field], str) else f"a {type(row[field]).__name__} where a string belongs"


def _broken(path: Path, number: int, reason: str, field: str = "") -> DataError:
    where = f"{path}, line {number}" + (f", field {field}" if field else "")
    return DataError(
        f"{where}: {reason}",
        remedy='mend or remove the row; a row is {"id": "7", "contents": "\\"Title\\"\\nText"}',
        code="broken_row",
    )
