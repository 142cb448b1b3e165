"""Whatever stands in a row, every loader accounts for it: an example, a named fault, or left out."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.datasets import NAMES, DatasetConfig, load_dataset
from mia.errors import DataError

FIELDS = sorted(
    {
        "_id",
        "id",
        "ids",
        "qid",
        "data_id",
        "task_id",
        "sample_id",
        "image_id",
        "question",
        "Question",
        "problem",
        "query",
    }
    | {"answer", "Final answer", "golden_answers", "gt_answer", "alternative_gt_answers", "answer_eval", "metadata"}
    | {"type", "level", "Level", "file_name", "language", "supporting_facts", "supporting_titles", "image_caption"}
    | {"images", "image", "query_image", "img_path", "prompt", "messages", "reward_model", "level1_qa", "level2_qa"}
)
INSIDE = [
    "question",
    "options",
    "Ground_Truth",
    "Ground_Truth_List",
    "content",
    "role",
    "type",
    "text",
    "title",
    "bytes",
]
INSIDE += ["ground_truth", "candidate_answers", "target", "wikidata", "paragraphs", "is_supporting", "img_path", "url"]
leaf = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=6)
leaf |= st.sampled_from(
    ["A. x", "B. y", "B", "{'a': 1}", "['a']", "[", "../x", "data:image/png;base64,!", "http://a/b"]
)
value = st.recursive(
    leaf,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INSIDE), inner, max_size=4),
    max_leaves=8,
)
row = st.dictionaries(st.sampled_from(FIELDS), value, max_size=9) | value


CASES = [(name, "open") for name in NAMES if name != "miniwiki"] + [("livevqa", "choice")]


@pytest.mark.parametrize(("name", "form"), CASES)
@settings(max_examples=25)
@given(rows=st.lists(row, max_size=4))
def test_every_row_is_accounted_for(name: str, form: str, rows: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "q.jsonl"
        good = {"ids": "good", "question": "q", "answer": "x"} | {"_id": "good", "id": "good", "golden_answers": ["x"]}
        good |= {"problem": "q", "task_id": "good", "Question": "q"}
        file.write_text("".join(f"{json.dumps(each)}\n" for each in [good, *rows]))
        (Path(folder) / "images").mkdir()
        config = DatasetConfig.model_validate({"name": name, "path": file, "form": form})
        try:
            dataset = load_dataset(config)
        except DataError as error:
            if error.code == "bad_dataset":  # no row was usable, and the error says why
                return
            raise
    counts = dataset.counts
    assert counts.rows == len(rows) + 1
    assert (counts.examples, counts.faults) == (len(dataset.examples), len(dataset.faults))
    if name != "livevqa":
        assert counts.rows == counts.examples + counts.faults + sum(counts.left_out.values())
    assert len({example.question.id for example in dataset.examples}) == counts.examples
    assert all(fault.place <= counts.rows and fault.message for fault in dataset.faults)
