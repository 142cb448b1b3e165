"""Corpora in Parquet files: columns `id` and `contents` (Search-R1), or `id`, `text` and, if there, `title`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from local_search.corpus_rows import Reader, Row, Unit
from mia.errors import DataError
from mia.extras import need

_BATCH = 512
_BUFFER = 1 << 20
"""Bytes that are read ahead of a column: a row group is never in memory as a whole."""


def open_table(path: Path) -> Any:
    """A Parquet file (`pyarrow.parquet.ParquetFile`), to be used as a context.

    Raises:
        ConfigError: pyarrow is not installed.
        OSError, pyarrow.ArrowException: the file cannot be read.
    """
    return need("pyarrow.parquet", "search").ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)


def table_rows(table: Any, columns: Sequence[str], batch: int = _BATCH) -> Iterator[dict[str, Any]]:
    """The rows of an open Parquet file, by column name; at most `batch` of them are in memory.

    Raises:
        OSError, pyarrow.ArrowException: the file cannot be read on.
    """
    for rows in table.iter_batches(batch_size=batch, columns=list(columns)):
        yield from rows.to_pylist()


class Parquet(Reader):
    """A Parquet file."""

    unit = "row"
    remedy = "mend or remove the row; columns are id and contents, or id, text and title"

    def units(self) -> Iterator[Unit]:
        """See `Reader`; the raw of a unit is its id and its other columns by name."""
        arrow = need("pyarrow", "search")
        place = 0
        try:
            with open_table(self.path) as file:
                columns = self._columns(arrow, file.schema_arrow)
                total = file.metadata.num_rows
                for place, row in enumerate(table_rows(file, ("id", *columns)), start=1):
                    size = sum(len(value) for value in row.values() if isinstance(value, str))
                    self.share = place / total
                    yield Unit(place, (row["id"], {name: row[name] for name in columns}), size)
        except (OSError, arrow.ArrowException) as error:
            raise self.unreadable(place, error) from error

    def _columns(self, arrow: Any, schema: Any) -> tuple[str, ...]:
        """The columns to read besides the id.

        Raises:
            DataError: the file lacks them, or they hold something else than text.
        """
        names: list[str] = schema.names
        columns = ("contents",) if "contents" in names else ("text", "title") if "title" in names else ("text",)
        missing = [name for name in ("id", *columns) if name not in names]
        if missing:
            raise DataError(
                f"{self.path} has the columns {', '.join(names)[:200]}, and no {missing[0]}",
                remedy="name the columns id and contents, or id, text and title",
                code="broken_row",
            )
        kinds = arrow.types
        for name in ("id", *columns):
            kind = schema.field(name).type
            if kinds.is_dictionary(kind):
                kind = kind.value_type
            if not (kinds.is_string(kind) or kinds.is_large_string(kind) or (name == "id" and kinds.is_integer(kind))):
                raise DataError(
                    f"{self.path}, field {name}: a {kind} where a string belongs",
                    remedy="write the column as strings",
                    code="broken_row",
                )
        return columns

    def rows(self, unit: Unit, skipped: Counter[str]) -> Iterable[Row]:
        """See `Reader`; a table row is a row."""
        name, texts = unit.raw
        if "text" in texts:
            texts = {"title": None, **texts}
        return (self.row(unit.place, name, texts),)
