"""A file of one's own: JSON lines, a JSON array, CSV or Parquet, with the columns that the config names.

    [dataset]
    name = "jsonl"
    path = "my-questions.jsonl"
    columns = { id = "qid", question = "meta.text", answers = "gold" }

`answers` is a text or a list of all that are accepted. A picture is base64, a data URL, an http(s) address, or else the
name of a file in the folder `images` (empty: beside the questions). With `choices` the options stand in the question
and `choice` must give the letter of the right one, whose text is accepted too. A row without id, question, answer or
options is bad; pictures, captions, labels and titles may be missing in a row.
"""

from __future__ import annotations

from collections.abc import Iterator

from inference.datasets.choices import letter_of, options_of, with_options
from inference.datasets.rows import Context, Row, example
from mia.errors import DataError
from mia.examples import Example

VERSION = "1"
_EMBEDDED = 400
"""Characters from which a text is a picture in itself, not the name of a file."""


def examples(row: Row, context: Context) -> Iterator[Example]:
    """The example of a row.

    Raises:
        BadRow: a field cannot be used.
    """
    columns = context.config.columns
    text, answers = row.text(columns.question), row.texts(columns.answers)
    choices: tuple[str, ...] = ()
    choice = ""
    if columns.choices:
        choices = options_of(row, columns.choices)
        choice = letter_of(row, columns.choice, choices)
        answers = tuple(dict.fromkeys((*answers, choices[ord(choice) - ord("A")])))
        text = with_options(text, choices)
    yield example(
        context,
        id=row.id(columns.id) if columns.id else str(context.place),
        text=text,
        answers=answers or row.answers(columns.answers),
        images=_images(row, context) if columns.images else (),
        caption=_label(row, columns.caption),
        choices=choices,
        choice=choice,
        part=_label(row, columns.part),
        type=_label(row, columns.type),
        category=_label(row, columns.category),
        level=_label(row, columns.level),
        supporting_titles=row.texts(columns.supporting_titles) if columns.supporting_titles else (),
    )


def _label(row: Row, column: str) -> str:
    return row.label(column) if column else ""


def _images(row: Row, context: Context) -> tuple[str, ...]:
    name = context.config.columns.images
    value = row.get(name)
    values = value if isinstance(value, list) else [] if value in (None, "") else [value]
    try:
        return tuple(
            context.images.file(each)
            if isinstance(each, str) and len(each) < _EMBEDDED and not each.startswith(("data:", "http://", "https://"))
            else context.images.inline(each, f"picture {number}")
            for number, each in enumerate(values, start=1)
        )
    except DataError as error:
        if error.code != "bad_picture":
            raise
        raise row.bad(name, error.message) from error
