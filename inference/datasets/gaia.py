"""GAIA, its text questions.

A row of `metadata.jsonl` (a Parquet file in later releases):

    {"task_id": "c61d…", "Question": "…", "Level": 2, "Final answer": "egalitarian", "file_name": "",
     "Annotator Metadata": {…}}

Also read: WebThinker's list of the 103 text questions of the validation set, which has `answer` for `Final answer`; it
is the subset that the paper's table is about. Questions that come with a file are left out and counted; what
remains of the whole validation set is more than those 103, as some need pictures or video of the web.

Mialon et al. 2023, arXiv 2311.12983; https://huggingface.co/datasets/gaia-benchmark/GAIA (gated; its makers ask not to
reshare it in a form that crawlers can read). The answers of the test set are not public (`?`); every row is bad.
"""

from __future__ import annotations

from collections.abc import Iterator

from inference.datasets.rows import Context, LeftOut, Row, example
from mia.examples import Example

VERSION = "1"


def examples(row: Row, context: Context) -> Iterator[Example]:
    """The example of a row.

    Raises:
        BadRow: a field cannot be used.
        LeftOut: the question comes with a file.
    """
    field = "Final answer" if "Final answer" in row else "answer"
    made = example(
        context,
        id=row.id("task_id"),
        text=row.text("Question"),
        answers=(row.id(field),),
        level=row.label("Level"),
    )
    if made.reference.answers == ("?",):
        raise row.bad(field, "no public answer ('?')")
    if row.label("file_name"):
        raise LeftOut("comes with a file")
    yield made
