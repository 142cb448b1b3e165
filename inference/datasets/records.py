"""What a loader gives: the examples, what they were read from, and what could not be used."""

from __future__ import annotations

from pydantic import Field

from mia.examples import Example
from mia.types import Record, Text


class Fault(Record):
    """A row that cannot be used. `place` counts from 1: lines of a text, items of a JSON array, rows of a table."""

    file: Text
    unit: str
    place: int = Field(ge=1)
    field: Text
    message: Text

    def __str__(self) -> str:
        field = f", field {self.field}" if self.field else ""
        return f"{self.file}, {self.unit} {self.place}{field}: {self.message}"


class Counts(Record):
    """How many rows were read, how many examples they made, and what became of the rest.

    `left_out` counts by reason what was not asked for (another split) or is no task for an agent without tools for
    files. A row of LiveVQA makes up to two examples; every other makes one, so that there rows = examples + faults +
    left out.
    """

    rows: int
    examples: int
    faults: int
    left_out: dict[str, int] = Field(default_factory=dict)


class Dataset(Record):
    """A dataset as read.

    Attributes:
        name: its name.
        version: of our reading of it; it is raised when the same bytes would give other examples.
        sha256: of all bytes that were read. For one file it is what `sha256sum FILE` prints. For several (pictures
            are files too) it is the hash of lines `<hash>  <path>`, sorted by path, paths relative to the dataset's
            folder (and `images/…` for pictures in a folder of their own).
        examples: the good rows, in file order.
        faults: the bad ones.
        counts: how many of each.
    """

    name: str
    version: str
    sha256: str
    examples: tuple[Example, ...]
    faults: tuple[Fault, ...] = ()
    counts: Counts
