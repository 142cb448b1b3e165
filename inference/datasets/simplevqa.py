"""SimpleVQA: short factual questions on pictures, in English and Chinese.

A row of the Parquet file; the picture is base64:

    data_id 12, image "/9j/4AAQ…", image_description, language "EN" or "CN", question, answer, original_category,
    source, atomic_question, atomic_fact, vqa_category

`split = "EN"` reads the English half (1,013 questions), on which the paper reports; rows of the other language are left
out and counted. The fields of the makers' analysis are not read: they tell what the picture shows. Also read:
MMSearch-R1's file in the original's form (see `original`).

Cheng et al. 2025, arXiv 2502.13059; https://huggingface.co/datasets/m-a-p/SimpleVQA (about 2,025 questions);
Apache 2.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from inference.datasets import original
from inference.datasets.rows import Context, LeftOut, Row, example, pictures
from mia.examples import Example

VERSION = "1"
SPLITS = ("EN", "CN")


def examples(row: Row, context: Context) -> Iterator[Example]:
    """The example of a row.

    Raises:
        BadRow: a field cannot be used.
        LeftOut: it is in the other language.
    """
    if "image" not in row:
        yield from original.examples(row, context)
        return
    language = row.label("language")
    if context.config.split not in ("", language):
        raise LeftOut(f"language {language}" if language else "no language")
    yield example(
        context,
        id=row.id("data_id"),
        text=row.text("question"),
        answers=row.answers("answer"),
        images=pictures(context, row, "image"),
        category=row.label("vqa_category"),
        type=row.label("original_category"),
    )
