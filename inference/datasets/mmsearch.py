"""MMSearch: questions on recent events and rare knowledge, some of them on a picture.

A row of `end2end.parquet`:

    sample_id "…", query "…", query_image {"bytes": …} or null, area "news" or "knowledge", subfield "…",
    gt_answer "…", alternative_gt_answers ["…", …], gt_requery, timestamp, image_search_result

Any of `gt_answer` and `alternative_gt_answers` is right. `split = "image"` reads the questions on pictures (171), on
which the paper reports, `split = "text"` the others; the rest is left out and counted. `gt_requery` and
`image_search_result` are not read. Also read: the original's forms (see `original`).

Jiang et al. 2024, arXiv 2409.12959; https://huggingface.co/datasets/CaraJ/MMSearch (300 questions; licence: see its
card).
"""

from __future__ import annotations

from collections.abc import Iterator

from inference.datasets import original
from inference.datasets.rows import Context, LeftOut, Row, example, pictures
from mia.examples import Example

VERSION = "1"
SPLITS = ("image", "text")


def examples(row: Row, context: Context) -> Iterator[Example]:
    """The example of a row.

    Raises:
        BadRow: a field cannot be used.
        LeftOut: it is of the other split.
    """
    if "query" not in row:
        yield from original.examples(row, context)
        return
    kind = "image" if row.get("query_image") else "text"
    if context.config.split not in ("", kind):
        raise LeftOut("with a picture" if kind == "image" else "without a picture")
    yield example(
        context,
        id=row.id("sample_id"),
        text=row.text("query"),
        answers=dict.fromkeys((*row.answers("gt_answer"), *row.texts("alternative_gt_answers"))),
        images=pictures(context, row, "query_image"),
        type=row.label("area"),
        category=row.label("subfield"),
    )
