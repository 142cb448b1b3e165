"""InfoSeek: questions on pictures of things, whose answers are in Wikipedia.

A row of `infoseek_val.jsonl`, a line each; pictures are files of OVEN in the folder `images`, by `image_id`:

    {"data_id": "infoseek_val_00000000", "image_id": "oven_04990048", "question": "…", "answer": ["…"],
     "answer_eval": ["…", …], "data_split": "val_unseen_question"}

Any of `answer` and `answer_eval` is right. Numbers have `{"wikidata": 1.0, "range": [0.9, 1.1]}` for `answer_eval`; the
value is accepted as a text, the range is left to the judge. A picture is looked for as `IMAGE_ID.jpg`, `.JPEG`, `.jpeg`
or `.png`, also in the folder of OVEN's shard (`04/oven_04990048.jpg`). Also read: MMSearch-R1's subset of 2,000, on
which the paper reports, in the original's forms (see `original`).

Chen et al. 2023, arXiv 2302.11713; https://github.com/open-vision-language/infoseek (licence: see there). The test
and human splits have no public answers; every row is bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inference.datasets import original
from inference.datasets.rows import Context, Row, example
from mia.errors import DataError
from mia.examples import Example

VERSION = "1"
_SUFFIXES = (".jpg", ".JPEG", ".jpeg", ".png")


def examples(row: Row, context: Context) -> Iterator[Example]:
    """The example of a row.

    Raises:
        BadRow: a field cannot be used.
    """
    if "image_id" not in row:
        yield from original.examples(row, context)
        return
    answers = (*row.answers("answer"), *_evaluated(row))
    yield example(
        context,
        id=row.id("data_id"),
        text=row.text("question"),
        answers=dict.fromkeys(answers),
        images=(_picture(row, context),),
        type=row.label("question_type"),
        category=row.label("data_split"),
    )


def _evaluated(row: Row) -> tuple[str, ...]:
    value = row.get("answer_eval")
    values = value if isinstance(value, list) else [] if value is None else [value]
    plain = [each.get("wikidata") if isinstance(each, Mapping) else each for each in values]
    return Row({"answer_eval": [each for each in plain if each is not None]}).texts("answer_eval")


def _picture(row: Row, context: Context) -> str:
    name = row.text("image_id")
    shard = name.removeprefix("oven_")[:2]
    try:
        return context.images.file(*(f"{place}{name}{suffix}" for place in ("", f"{shard}/") for suffix in _SUFFIXES))
    except DataError as error:
        if error.code != "bad_picture":
            raise
        raise row.bad("image_id", error.message) from error
