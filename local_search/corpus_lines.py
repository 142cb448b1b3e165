"""Corpora of lines, as they are or compressed by gzip, zstd or bzip2 (told by content): JSONL and TSV.

Only a newline byte ends a line: U+2028 and its like are text.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, cast

from local_search.corpus_rows import MAX_UNIT, Reader, Row, Unit
from mia.errors import DataError
from mia.extras import need

_GZIP, _BZIP2, _ZSTD = b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd"
BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 16
_WINDOW = 1 << 27
"""Largest window of a zstd file, in bytes: that of `zstd --long=27`, its own bound."""


def decompressed(file: BinaryIO) -> BinaryIO:
    """The content of an open file.

    Reading from it raises OSError, EOFError or zlib.error where the compressed data are damaged or cut.
    """
    head = file.read(4)
    file.seek(0)
    if head.startswith(_GZIP):
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if head.startswith(_BZIP2):
        return cast(BinaryIO, bz2.BZ2File(file))
    if head == _ZSTD:
        return io.BufferedReader(_Zstd(file))
    return file


class _Zstd(io.RawIOBase):
    """Decompresses zstd frames. Unlike `zstandard.stream_reader` it tells a cut file from a finished one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._module = need("zstandard", "search")
        self._context = self._module.ZstdDecompressor(max_window_size=_WINDOW)
        self._frame: Any = None
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            chunk = self._rest() or self._file.read(_CHUNK)
            if not chunk:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError("the zstd data end within a frame")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = self._context.decompressobj()
            try:
                self._ready = self._frame.decompress(chunk)
            except self._module.ZstdError as error:
                raise OSError(str(error)) from error
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _rest(self) -> bytes:
        """What followed the end of the frame in the last chunk."""
        if self._frame is None or not self._frame.eof:
            return b""
        rest: bytes = self._frame.unused_data
        self._frame = None
        return rest


class Lines(Reader):
    """A file of lines."""

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Numbered lines that are not blank, without their ends and without a byte order mark.

        Raises:
            DataError: as for `Reader.units`.
        """
        number = 0
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                stream = decompressed(file)
                while line := stream.readline(MAX_UNIT + 1):
                    number += 1
                    if len(line) > MAX_UNIT:
                        raise self.broken(number, f"longer than {MAX_UNIT} bytes")
                    if number % 256 == 0:
                        self.share = file.tell() / size
                    bare = (line.removeprefix(BOM) if number == 1 else line).rstrip(b"\r\n")
                    if bare.strip():
                        yield number, bare
        except (OSError, EOFError, zlib.error) as error:
            raise self.unreadable(number, error) from error

    def text(self, place: int, raw: bytes) -> str:
        """Bytes as text.

        Raises:
            DataError: they are not UTF-8.
        """
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.broken(place, f"byte {error.start + 1} is not UTF-8 ({error.reason})") from error


class Jsonl(Lines):
    """The Search-R1 form, one JSON object a line: `{"id": "7", "contents": "\\"Vienna\\"\\nThe capital of Austria."}`.

    The first line of `contents` is the title, in quotes. Whole numbers are accepted as ids; other fields are not read.
    """

    remedy = 'mend or remove the row; a row is {"id": "7", "contents": "\\"Title\\"\\nText"}'

    def units(self) -> Iterator[Unit]:
        """See `Reader`."""
        return (Unit(number, line, len(line)) for number, line in self.lines())

    def rows(self, unit: Unit, skipped: Counter[str]) -> Iterable[Row]:
        """See `Reader`; a line is a row."""
        value = self._object(unit.place, unit.raw)
        for field in ("id", "contents"):
            if field not in value:
                raise self.broken(unit.place, "missing", field)
        return (self.row(unit.place, value["id"], {"contents": value["contents"]}),)

    def _object(self, place: int, line: bytes) -> dict[str, Any]:
        try:
            value: Any = json.loads(self.text(place, line))
        except json.JSONDecodeError as error:
            raise self.broken(place, f"not JSON: {error.msg} (column {error.colno})") from error
        except (ValueError, RecursionError) as error:  # numbers and nestings beyond what Python reads
            raise self.broken(place, f"not usable JSON: {error}") from error
        if not isinstance(value, dict):
            raise self.broken(place, f"a JSON {type(value).__name__} where an object belongs")
        return value


class Tsv(Lines):
    """DPR's form: columns apart by tabs, the first line names them: `id`, `text`, `title`, in any order; others
    are let be.

    A field may stand in quotes, with quotes in it doubled, as DPR's do. No field spans lines.
    """

    remedy = "mend or remove the line; a line is an id, a tab, the text, a tab, the title"

    def units(self) -> Iterator[Unit]:
        """See `Reader`; the raw of a unit is its id, text and title (None without that column)."""
        lines = self.lines()
        first = next(lines, None)
        if first is None:
            return
        names = [_unquoted(name).strip() for name in self.text(*first).split("\t")]
        if not {"id", "text"} <= set(names):
            raise DataError(
                f"{self.path}, line {first[0]}: the columns are {', '.join(names)[:200]}, not id, text, title",
                remedy="name the columns in the first line, apart by tabs",
                code="broken_row",
            )
        order = [names.index(name) if name in names else None for name in ("id", "text", "title")]
        for number, line in lines:
            fields = line.split(b"\t")
            if len(fields) != len(names):
                raise self.broken(number, f"{len(fields)} columns where the first line names {len(names)}")
            yield Unit(number, tuple(None if i is None else fields[i] for i in order), len(line))

    def rows(self, unit: Unit, skipped: Counter[str]) -> Iterable[Row]:
        """See `Reader`; a line is a row."""
        name, text, title = (None if raw is None else _unquoted(self.text(unit.place, raw)) for raw in unit.raw)
        return (self.row(unit.place, name, {"text": text, "title": title}),)


def _unquoted(field: str) -> str:
    """A field without its quotes. One that only begins with a quote is taken as it stands."""
    if len(field) >= 2 and field[0] == field[-1] == '"':
        inner = field[1:-1]
        if '"' not in inner.replace('""', ""):
            return inner.replace('""', '"')
    return field
