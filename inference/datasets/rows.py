"""One row of a dataset file, read with care: each getter checks what it returns and names the field that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from inference.datasets.config import DatasetConfig
from inference.datasets.images import Images
from mia.errors import DataError
from mia.examples import Example, Reference
from mia.types import Question


class BadRow(Exception):
    """A row, or a part of it, that cannot be used."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class LeftOut(Exception):
    """A sound row that is left out on purpose; the text is the reason that is counted."""


@dataclass
class Context:
    """What a loader knows besides the row."""

    config: DatasetConfig
    images: Images
    source: str
    part: str = ""
    place: int = 1
    """Of the row in its file, from 1 (see `Fault`)."""
    number: int = 0
    """Of the row in the dataset, from 0."""
    broken: list[BadRow] = field(default_factory=list)
    """Parts of the row that cannot be used while others can; emptied after each row."""


class Row:
    """A row: an object of named values. Names may reach into objects by dots.

    Args:
        value: what stands in the file.
        inside: name of the object that `value` is part of, for messages.
    """

    def __init__(self, value: Any, inside: str = "") -> None:
        if not isinstance(value, Mapping):
            raise BadRow(inside, f"{_kind(value)} where an object belongs")
        self._value = value
        self._inside = inside

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> Any:
        """The value as it stands; None where there is none."""
        if name in self._value:
            return self._value[name]
        value: Any = self._value
        for step in name.split("."):
            if not isinstance(value, Mapping):
                return None
            value = value.get(step)
        return value

    def named(self, name: str) -> str:
        """The full name of a field."""
        return f"{self._inside}.{name}" if self._inside else name

    def bad(self, name: str, message: str) -> BadRow:
        """The error of a field."""
        return BadRow(self.named(name), message)

    def part(self, name: str) -> Row:
        """An object within the row.

        Raises:
            BadRow: there is none.
        """
        if self.get(name) is None:
            raise self.bad(name, "missing")
        return Row(self.get(name), self.named(name))

    def text(self, name: str) -> str:
        """A text that is not blank, without blanks at its ends.

        Raises:
            BadRow: it is missing, blank or no string.
        """
        value = self.get(name)
        if value is None:
            raise self.bad(name, "missing")
        if not isinstance(value, str):
            raise self.bad(name, f"{_kind(value)} where a string belongs")
        if not value.strip():
            raise self.bad(name, "blank")
        return value.strip()

    def label(self, name: str) -> str:
        """A text or a number as a text; empty where there is none.

        Raises:
            BadRow: it is neither.
        """
        value = self.get(name)
        if value is None:
            return ""
        return self._scalar(name, value).strip()

    def id(self, name: str) -> str:
        """As `label`, but not empty."""
        value = self.label(name)
        if not value:
            raise self.bad(name, "missing" if self.get(name) is None else "blank")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """One text or number, or a list of them; each once, blank ones left out. Empty where there is none.

        Raises:
            BadRow: there is something else.
        """
        value = self.get(name)
        values = value if isinstance(value, list | tuple) else [] if value is None else [value]
        found = (self._scalar(name, item).strip() for item in values)
        return tuple(dict.fromkeys(text for text in found if text))

    def answers(self, name: str) -> tuple[str, ...]:
        """As `texts`, but there must be one at least."""
        found = self.texts(name)
        if not found:
            raise self.bad(name, "missing" if self.get(name) is None else "blank")
        return found

    def titles(self, name: str) -> tuple[str, ...]:
        """Titles of supporting facts, each once: `[["Vienna", 0], …]`, or `{"title": ["Vienna", …], …}` (Hugging Face).

        Raises:
            BadRow: they have another form.
        """
        value = self.get(name)
        if value is None:
            return ()
        if isinstance(value, Mapping):
            return self.part(name).texts("title")
        if not isinstance(value, list) or not all(isinstance(fact, list | tuple) and fact for fact in value):
            raise self.bad(name, "not a list of [title, sentence number]")
        return Row({name: [fact[0] for fact in value]}, self._inside).texts(name)

    def _scalar(self, name: str, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.bad(name, f"{_kind(value)} where a text or a number belongs")
        return str(value)


def pictures(context: Context, row: Row, name: str) -> tuple[str, ...]:
    """The pictures of a field as URLs: one or a list, each bytes, base64, a data URL, an address or `{"bytes": …}`.

    Raises:
        BadRow: one of them is no picture.
    """
    value = row.get(name)
    if value is None or value == "":
        return ()
    values = value if isinstance(value, list) else [value]
    try:
        return tuple(context.images.inline(item, f"picture {number}") for number, item in enumerate(values, start=1))
    except DataError as error:
        raise row.bad(name, error.message) from error


def example(
    context: Context,
    *,
    id: str,
    text: str,
    answers: Iterable[str],
    images: tuple[str, ...] = (),
    caption: str = "",
    choice: str = "",
    choices: tuple[str, ...] = (),
    part: str = "",
    type: str = "",
    category: str = "",
    level: str = "",
    supporting_titles: tuple[str, ...] = (),
) -> Example:
    """The record of a row.

    Raises:
        BadRow: the values do not fit together.
    """
    try:
        return Example(
            question=Question(id=id, text=text, images=images, caption=caption),
            reference=Reference(answers=tuple(answers), choice=choice),
            source=context.source,
            part=part or context.part,
            type=type,
            category=category,
            level=level,
            choices=choices,
            supporting_titles=supporting_titles,
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise BadRow(".".join(map(str, first["loc"])), first["msg"]) from error


def _kind(value: Any) -> str:
    """What a value is, by its JSON name."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null", bytes: "bytes"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")
