"""SimpleQA: short factual questions with one answer each.

A row of the CSV file, whose columns are `metadata`, `problem` and `answer`; `metadata` is a Python literal:

    "{'topic': 'Geography', 'answer_type': 'Place', 'urls': ['https://…']}","Which river …?","Danube"

Also read: rows of JSON whose `metadata` is an object. The file has no ids; a question's id is `simpleqa-` and its
number, counted from 0 over all rows.

Wei et al. 2024, arXiv 2411.04368; https://openaipublic.blob.core.windows.net/simple-evals/simple_qa_test_set.csv
(4,326 questions); MIT.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from inference.datasets.rows import Context, Row, example
from mia.examples import Example

VERSION = "1"


def examples(row: Row, context: Context) -> Iterator[Example]:
    """The example of a row.

    Raises:
        BadRow: a field cannot be used.
    """
    metadata = _metadata(row)
    yield example(
        context,
        id=f"simpleqa-{context.number}",
        text=row.text("problem"),
        answers=(row.text("answer"),),
        type=metadata.label("answer_type"),
        category=metadata.label("topic"),
    )


def _metadata(row: Row) -> Row:
    value = row.get("metadata")
    if value is None or value == "":
        return Row({}, "metadata")
    if isinstance(value, Mapping):
        return row.part("metadata")
    try:
        return Row(ast.literal_eval(row.text("metadata")), "metadata")
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise row.bad("metadata", f"not a Python literal: {error}") from error
