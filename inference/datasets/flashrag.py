"""The seven sets of Search-R1 in FlashRAG's form: NQ, TriviaQA, PopQA, HotpotQA, 2WikiMultiHopQA, MuSiQue, Bamboogle.

A row, a line each:

    {"id": "test_0", "question": "…", "golden_answers": ["…", …], "metadata": {…}}

Any of `golden_answers` is right. `metadata` differs: HotpotQA's and 2WikiMultiHopQA's hold `type`, `level` and
`supporting_facts`, MuSiQue's may hold `paragraphs` with `is_supporting`, PopQA's holds the relation as `prop`. The
Parquet files of Search-R1 add columns that are not read.

FlashRAG: Jin et al. 2024, arXiv 2405.13576; https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets (CC BY-SA 4.0).
Search-R1: Jin et al. 2025, arXiv 2503.09516; it reports on NQ test (3,610), TriviaQA test (11,313), PopQA test
(14,267), HotpotQA dev (7,405), 2WikiMultiHopQA dev (12,576), MuSiQue dev (2,417) and Bamboogle test (125).
The sets keep the licences of their makers: NQ CC BY-SA 3.0, TriviaQA Apache 2.0, PopQA MIT, HotpotQA CC BY-SA 4.0,
2WikiMultiHopQA Apache 2.0, MuSiQue CC BY 4.0, Bamboogle MIT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inference.datasets.rows import Context, Row, example
from mia.examples import Example

VERSION = "1"


def examples(row: Row, context: Context) -> Iterator[Example]:
    """The example of a row.

    Raises:
        BadRow: a field cannot be used.
    """
    metadata = row.part("metadata") if "metadata" in row else Row({}, "metadata")
    yield example(
        context,
        id=row.id("id"),
        text=row.text("question"),
        answers=row.answers("golden_answers"),
        type=metadata.label("type") or metadata.label("prop"),
        level=metadata.label("level"),
        supporting_titles=metadata.titles("supporting_facts") or _supporting_paragraphs(metadata),
    )


def _supporting_paragraphs(metadata: Row) -> tuple[str, ...]:
    paragraphs = metadata.get("paragraphs")
    if not isinstance(paragraphs, list):
        return ()
    support = [each for each in paragraphs if isinstance(each, Mapping) and each.get("is_supporting") is True]
    return Row({"title": [each.get("title", "") for each in support]}, "metadata.paragraphs").texts("title")
