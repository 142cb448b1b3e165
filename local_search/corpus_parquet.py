"""Corpora in Parquet files: columns `id` and `contents` (Search-R1), or `id`, `text` and, if there, `title`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from local_search.corpus_rows import Reader, Row, Unit
from mia.errors import DataError
from mia.extras import need

_BATCH = 512
_BUFFER = 1 << 20
"""Bytes that are read ahead of a column: a row group is never in memory as a whole."""


class Parquet(Reader):
    """A Parquet file."""

    unit = "row"
    remedy = "mend or remove the row; columns are id and contents, or id, text and title"

    def units(self) -> Iterator[Unit]:
        """See `Reader`; the raw of a unit is its id and its other columns by name."""
        arrow, parquet = need("pyarrow", "search"), need("pyarrow.parquet", "search")
        place = 0
        try:
            with parquet.ParquetFile(self.path, buffer_size=_BUFFER, pre_buffer=False) as file:
                columns = self._columns(arrow, file.schema_arrow)
                total = file.metadata.num_rows
                for batch in file.iter_batches(batch_size=_BATCH, columns=["id", *columns]):
                    for row in batch.to_pylist():
                        place += 1
                        size = sum(len(value) for value in row.values() if isinstance(value, str))
                        yield Unit(place, (row["id"], {name: row[name] for name in columns}), size)
                    self.share = place / total
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
