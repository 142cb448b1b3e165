"""HotpotQA and 2WikiMultiHopQA, as released.

A row, of a JSON array (of lines for the short form; both are read from either):

    {"_id": "5a8b…", "question": "Were … of the same nationality?", "answer": "yes", "type": "comparison",
     "level": "hard", "supporting_facts": [["Scott Derrickson", 0], ["Ed Wood", 0]], "context": […]}

2WikiMultiHopQA has the same row without `level`; its `evidences` are not read. Also read: the form of Hugging Face
(`id`, `"supporting_facts": {"title": […], "sent_id": […]}`), the short form `{"id", "question", "answer"}` with
`type`, `level` and `supporting_titles` where known, and FlashRAG's form of both (see `flashrag`).

HotpotQA: Yang et al. 2018, arXiv 1809.09600; https://hotpotqa.github.io (dev sets `hotpot_dev_distractor_v1.json` and
`hotpot_dev_fullwiki_v1.json`, 7,405 questions each); CC BY-SA 4.0.
2WikiMultiHopQA: Ho et al. 2020, https://aclanthology.org/2020.coling-main.580; https://github.com/Alab-NII/2wikimultihop
(`dev.json`, 12,576 questions); Apache 2.0.

Left out: `context` (the agent searches for itself), and 2WikiMultiHopQA's aliases, which are a file of their own. The
test sets have no answers; every row of theirs is bad.
"""

from __future__ import annotations

from collections.abc import Iterator

from inference.datasets import flashrag
from inference.datasets.rows import Context, Row, example
from mia.examples import Example

VERSION = "1"


def examples(row: Row, context: Context) -> Iterator[Example]:
    """The example of a row.

    Raises:
        BadRow: a field cannot be used.
    """
    if "golden_answers" in row:
        yield from flashrag.examples(row, context)
        return
    yield example(
        context,
        id=row.id("_id" if "_id" in row else "id"),
        text=row.text("question"),
        answers=row.answers("answer"),
        type=row.label("type"),
        level=row.label("level"),
        supporting_titles=row.texts("supporting_titles") or row.titles("supporting_facts"),
    )
