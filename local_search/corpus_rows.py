"""What every corpus reader shares: rows, the units that a file is cut into, and errors that name a place in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from mia.errors import DataError
from mia.types import Passage, clean_text

MAX_UNIT = 16 * 1024 * 1024
"""Bytes of the longest line that is read: a file without line ends must not fill the memory."""


class Row(NamedTuple):
    """A corpus row: in the Search-R1 form, `contents` is the title in quotes, a newline, the text."""

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


def join_contents(title: str, text: str) -> str:
    """The inverse of `split_contents`. Line ends within a title become spaces."""
    return f'"{" ".join(title.split())}"\n{text}'


class Unit(NamedTuple):
    """A piece of a corpus file that makes one row or more: a line, a table row, a page."""

    place: int
    """Its number in the file, from 1."""
    raw: Any
    """What `Reader.rows` makes rows of; it can be pickled."""
    size: int
    """About how many bytes it has."""


class Reader:
    """Reads one corpus format. Cutting a file into units is cheap and in order; making rows of them is the work.

    Args:
        path: the corpus file; it is opened by `units`.
    """

    unit: ClassVar[str] = "line"
    """What the units are called in messages."""
    remedy: ClassVar[str] = ""
    """What to do about a broken unit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.share = 0.0
        """How much of the file has been read, from 0 to 1."""

    def units(self) -> Iterator[Unit]:
        """The units of the file, in order.

        Raises:
            DataError: the file cannot be read (code `unreadable_corpus`) or a unit is too long (`broken_row`).
        """
        raise NotImplementedError

    def rows(self, unit: Unit, skipped: Counter[str]) -> Iterable[Row]:
        """The rows of a unit; what is left out on purpose is counted by reason in `skipped`.

        Raises:
            DataError: the unit is broken; names file, place, field and reason (code `broken_row`).
        """
        raise NotImplementedError

    def broken(self, place: int, reason: str, field: str = "") -> DataError:
        """The error of a unit that cannot be used."""
        where = f"{self.path}, {self.unit} {place}" + (f", field {field}" if field else "")
        return DataError(f"{where}: {reason}", remedy=self.remedy, code="broken_row")

    def unreadable(self, place: int, error: Exception) -> DataError:
        """The error of a file that cannot be read further than the unit `place` (0: not at all)."""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        where = f"{self.path}, after {self.unit} {place}" if place else str(self.path)
        return DataError(f"{where}: {reason}", remedy="check the path and the file", code="unreadable_corpus")

    def row(self, place: int, name: Any, texts: dict[str, Any]) -> Row:
        """A row of an id and either `contents` or `text` and `title`, all checked.

        Raises:
            DataError: as for `rows`.
        """
        if isinstance(name, int) and not isinstance(name, bool):
            name = str(name)
        if not isinstance(name, str) or not name:
            raise self.broken(place, fault(name), "id")
        for field, value in texts.items():
            if field != "title" and (not isinstance(value, str) or not value.strip()):
                raise self.broken(place, fault(value), field)
            if not isinstance(value, str | None):
                raise self.broken(place, fault(value), field)
        contents = texts["contents"] if "contents" in texts else join_contents(texts["title"] or "", texts["text"])
        return Row(clean_text(name), clean_text(contents))


def fault(value: Any) -> str:
    """Why a value is no text."""
    return "blank" if isinstance(value, str) else f"a {type(value).__name__} where a string belongs"
