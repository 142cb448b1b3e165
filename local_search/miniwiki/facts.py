"""The tables of facts behind the bundled corpus, read into frozen records and checked.

One CSV per kind of thing; the first column names the thing, a leading lower-case "the " in any cell is its
article and no part of the value. A cell either holds text, a whole number, a date ("14 March 1879" or "1879") or
the name of another record (a reference). Empty optional cells mean "not told here", never "none".

Left out on purpose: no inference, no units, no second value per cell. What is plural or disputed stays empty.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

TABLES = Path(__file__).parent / "tables"

_DATE = re.compile(
    r"(?:[1-9]|[12]\d|3[01]) (?:January|February|March|April|May|June|July|August|September|October|November"
    r"|December) (\d{4})"
)


class FactError(ValueError):
    """A row that cannot be used; the message names file, line and column and says what to do."""

    def __init__(self, file: str, line: int, column: str, problem: str) -> None:
        super().__init__(f"{file}:{line}:{column}: {problem}")


@dataclass(frozen=True)
class Column:
    """One column: what its cells hold, whether they must be filled, and the kinds a reference may name."""

    name: str
    holds: Literal["text", "number", "date", "reference"]
    required: bool
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """One table: its file, the kind of thing it lists, the noun for that thing, and its columns after the name."""

    file: str
    kind: str
    noun: str
    columns: tuple[Column, ...]


def _table(file: str, kind: str, noun: str, spec: str) -> Table:
    """Reads a spec such as "author!>writer year# born@ language": ! required, > reference, # number, @ date."""
    columns = []
    for word in spec.split():
        head, _, target = word.partition(">")
        name = head.rstrip("!#@")
        marks = head[len(name) :]
        holds: Literal["text", "number", "date", "reference"] = "text"
        if target:
            holds = "reference"
        elif "#" in marks:
            holds = "number"
        elif "@" in marks:
            holds = "date"
        columns.append(Column(name, holds, "!" in marks, tuple(target.split("|")) if target else ()))
    return Table(file, kind, noun, tuple(columns))


SCHEMA: tuple[Table, ...] = (
    _table("countries.csv", "country", "country", "capital>city continent currency language calling_code! internet!"),
    _table("cities.csv", "city", "city", "country!>country river>river landmark"),
    _table("rivers.csv", "river", "river", "country>country rises mouth"),
    _table("mountains.csv", "mountain", "mountain", "country!>country range first_ascent#"),
    _table("lakes.csv", "lake", "lake", "country!>country outflow!>river"),
    _table("islands.csv", "island", "island", "country!>country sea largest_city!>city"),
    _table("scientists.csv", "scientist", "scientist", "field! birthplace!>city born@ died# nobel# known_for!"),
    _table("writers.csv", "writer", "writer", "birthplace!>city born@ died# nobel#"),
    _table("composers.csv", "composer", "composer", "birthplace!>city born@ died#"),
    _table("painters.csv", "painter", "painter", "birthplace!>city born@ died#"),
    _table("directors.csv", "director", "film director", "birthplace!>city born@ died#"),
    _table("architects.csv", "architect", "architect", "birthplace!>city born@ died# known_for!"),
    _table("novels.csv", "novel", "novel", "author!>writer year# language! character"),
    _table("compositions.csv", "composition", "musical work", "composer!>composer form! year# premiere!>city"),
    _table("paintings.csv", "painting", "painting", "painter!>painter museum!>museum"),
    _table("museums.csv", "museum", "museum", "city!>city"),
    _table("films.csv", "film", "film", "director!>director year#!"),
    _table("elements.csv", "element", "element", "symbol! number#! family discoverer>scientist year# named_after"),
    _table("planets.csv", "planet", "planet", "position! class! deity! realm!"),
    _table("moons.csv", "moon", "moon", "planet!>planet discoverer>scientist year#"),
    _table("inventions.csv", "invention", "invention", "inventor!>scientist year#"),
    _table("universities.csv", "university", "university", "city!>city founded#"),
    _table("landmarks.csv", "landmark", "landmark", "city!>city opened# architect>architect"),
    _table("olympics.csv", "olympics", "Olympic Games", "city!>city season! year#!"),
)

PERSONS = ("scientist", "writer", "composer", "painter", "director", "architect")


def split_article(cell: str) -> tuple[str, str]:
    """Splits "the North Sea" into ("the North Sea", "North Sea"); a cell without article gives itself twice."""
    return cell, cell.removeprefix("the ")


@dataclass(frozen=True)
class Entity:
    """One row: kind, title (without article), the title as prose writes it, and its filled cells.

    `cells` maps a column to the value, `prose` to the value with its article. A date column `born` yields `born`
    (the year) and, where the day is known, `birthdate` (the full date).
    """

    kind: str
    title: str
    the: str
    cells: Mapping[str, str]
    prose: Mapping[str, str]
    file: str
    line: int

    def get(self, column: str) -> str | None:
        """The value in a column, or None where the table does not tell."""
        return self.cells.get(column)


class World:
    """All records, by title and by kind, in table order."""

    def __init__(self, entities: tuple[Entity, ...], aliases: Mapping[str, tuple[str, ...]]) -> None:
        self.entities = entities
        self.aliases = aliases
        self.by_title = MappingProxyType({entity.title: entity for entity in entities})
        self._by_kind: dict[str, list[Entity]] = {}
        self._referrers: dict[tuple[str, str, str], list[Entity]] = {}
        references = {(t.kind, c.name) for t in SCHEMA for c in t.columns if c.holds == "reference"}
        for entity in entities:
            self._by_kind.setdefault(entity.kind, []).append(entity)
            for column, value in entity.cells.items():
                if (entity.kind, column) in references:
                    self._referrers.setdefault((entity.kind, column, value), []).append(entity)

    def kind(self, kind: str) -> list[Entity]:
        """All records of a kind, in table order."""
        return self._by_kind.get(kind, [])

    def referrers(self, kind: str, column: str, title: str) -> list[Entity]:
        """The records of a kind whose column names this title, in table order."""
        return self._referrers.get((kind, column, title), [])


def read_rows(path: Path, header: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number, cells) of a CSV whose first lines may be # comments; checks header and width."""
    with path.open(encoding="utf-8", newline="") as stream:
        seen_header = False
        for number, text in enumerate(stream, start=1):
            if text.startswith("#") or not text.strip():
                continue
            cells = [cell.strip() for cell in next(csv.reader([text]))]
            if not seen_header:
                if tuple(cells) != header:
                    raise FactError(path.name, number, "header", f"expected {','.join(header)}")
                seen_header = True
                continue
            if len(cells) != len(header):
                column = header[min(len(cells), len(header) - 1)]
                raise FactError(path.name, number, column, f"{len(cells)} cells where {len(header)} are expected")
            yield number, cells


def _fill(table: Table, column: Column, cell: str, line: int, cells: dict[str, str], prose: dict[str, str]) -> None:
    """Checks one cell and writes its value or values into `cells` and `prose`."""
    if not cell:
        if column.required:
            raise FactError(table.file, line, column.name, "the cell is empty; fill it or remove the row")
        return
    if column.holds == "number" and not cell.isdigit():
        raise FactError(table.file, line, column.name, f"{cell!r} is not a whole number")
    if column.holds == "date":
        match = _DATE.fullmatch(cell)
        if match is None and not re.fullmatch(r"\d{4}", cell):
            raise FactError(table.file, line, column.name, f"{cell!r} is neither a year nor like 14 March 1879")
        if match is not None:
            cells["birthdate"] = prose["birthdate"] = cell
            cell = match.group(1)
    prose[column.name], cells[column.name] = split_article(cell)


def _read_table(folder: Path, table: Table) -> Iterator[Entity]:
    header = ("name", *(column.name for column in table.columns))
    for line, row in read_rows(folder / table.file, header):
        if not row[0]:
            raise FactError(table.file, line, "name", "the row has no name")
        cells: dict[str, str] = {}
        prose: dict[str, str] = {}
        for column, cell in zip(table.columns, row[1:], strict=True):
            _fill(table, column, cell, line, cells, prose)
        the, title = split_article(row[0])
        yield Entity(table.kind, title, the, MappingProxyType(cells), MappingProxyType(prose), table.file, line)


def _check_references(entities: Mapping[str, Entity]) -> None:
    columns = {(table.kind, column.name): column for table in SCHEMA for column in table.columns}
    for entity in entities.values():
        for name, value in entity.cells.items():
            column = columns.get((entity.kind, name))
            if column is None or column.holds != "reference":
                continue
            target = entities.get(value)
            if target is None or target.kind not in column.kinds:
                wanted = " or ".join(column.kinds)
                raise FactError(entity.file, entity.line, name, f"no {wanted} is named {value!r}; add its row first")


def _link(entities: dict[str, Entity]) -> tuple[Entity, ...]:
    """Gives each reference the article of the record it names ("United Kingdom" reads "the United Kingdom")."""
    references = {(table.kind, c.name) for table in SCHEMA for c in table.columns if c.holds == "reference"}
    linked = []
    for entity in entities.values():
        prose = dict(entity.prose)
        for name, value in entity.cells.items():
            if (entity.kind, name) in references:
                prose[name] = entities[value].the
        linked.append(
            Entity(
                entity.kind,
                entity.title,
                entity.the,
                entity.cells,
                MappingProxyType(prose),
                entity.file,
                entity.line,
            )
        )
    return tuple(linked)


def _read_aliases(folder: Path) -> dict[str, tuple[str, ...]]:
    aliases: dict[str, tuple[str, ...]] = {}
    for line, (name, alias) in read_rows(folder / "aliases.csv", ("name", "alias")):
        if not name or not alias:
            raise FactError("aliases.csv", line, "alias" if name else "name", "the cell is empty")
        aliases[name] = (*aliases.get(name, ()), alias)
    return aliases


def load(folder: Path = TABLES) -> World:
    """Reads and checks all tables of a folder; the first unusable row raises `FactError`."""
    entities: dict[str, Entity] = {}
    for table in SCHEMA:
        for entity in _read_table(folder, table):
            twin = entities.get(entity.title)
            if twin is not None:
                problem = f"{entity.title!r} is already named in {twin.file}:{twin.line}; titles are unique"
                raise FactError(entity.file, entity.line, "name", problem)
            entities[entity.title] = entity
    _check_references(entities)
    return World(_link(entities), _read_aliases(folder))
