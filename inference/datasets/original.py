"""The original's own files: test JSON or JSON lines, and the Parquet files of training and test-time learning.

A test item, of a list or a line each:

    {"ids": "fvqa_test_12", "question": "…", "answer": "…", "images": ["<base64 or data URL>", …],
     "image_caption": ["…"]}

`question` may be missing where there are `messages`; then it is the text of the first user message. `answer` may be a
list of accepted ones; `image_caption` a string or a list, whose first item counts.

A row of a Parquet file (Executor, Planner and TTRL training; also MMSearch-R1's FVQA, InfoSeek, SimpleVQA, LiveVQA and
MMSearch files, which the original's are made of):

    data_id, prompt [{"role": "user", "content": "…"}], images (bytes, {"bytes": …}, base64, a list of these, or
    null), image_caption, reward_model {"ground_truth": "…" or {"target": […]}, "candidate_answers": "[…]"},
    optional category, level, data_source

`candidate_answers`, a list written as a text, are accepted besides the ground truth. `<image>` markers are taken out of
questions. `modality`, `plan`, `memories_context` and the caches of searches are not read.

Qiao et al. 2026, arXiv 2604.04503; https://huggingface.co/datasets/LightningCreeper/MIA (folders Train, Test, TTRL);
MIT.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from typing import Any

from inference.datasets.rows import Context, Row, example, pictures
from mia.examples import Example

VERSION = "1"
_MARKER = "<image>"


def examples(row: Row, context: Context) -> Iterator[Example]:
    """The example of a row of either kind.

    Raises:
        BadRow: a field cannot be used.
    """
    yield _training(row, context) if "prompt" in row else _test(row, context)


def _test(row: Row, context: Context) -> Example:
    question = _plain(row, "question") if "question" in row else _asked(row, "messages")
    return example(
        context,
        id=row.id("ids" if "ids" in row else "id"),
        text=question,
        answers=row.answers("answer"),
        images=pictures(context, row, "images"),
        caption=_caption(row),
        category=row.label("category"),
        level=row.label("level"),
    )


def _training(row: Row, context: Context) -> Example:
    return example(
        context,
        id=row.id("data_id"),
        text=_asked(row, "prompt"),
        answers=_rewarded(row.part("reward_model")),
        images=pictures(context, row, "images"),
        caption=_caption(row),
        category=row.label("category"),
        level=row.label("level"),
    )


def _rewarded(reward: Row) -> tuple[str, ...]:
    """Ground truth and candidate answers of a reward model."""
    truth = reward.get("ground_truth")
    answers = reward.part("ground_truth").answers("target") if isinstance(truth, Mapping) else None
    others = reward.get("candidate_answers")
    if isinstance(others, str) and others.strip():
        others = _list_in(reward, "candidate_answers", others)
    found = (
        *(answers or reward.answers("ground_truth")),
        *Row({"candidate_answers": others}, "reward_model").texts("candidate_answers"),
    )
    return tuple(dict.fromkeys(found))


def _list_in(row: Row, name: str, text: str) -> list[Any]:
    """A list written as JSON or as Python writes it."""
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue  # the other way of writing is tried; when neither fits, the row is bad
        if isinstance(value, list):
            return value
    raise row.bad(name, "not a list written as a text")


def _asked(row: Row, name: str) -> str:
    """The question of a conversation: the text of its first user message, or of its first when none says who speaks."""
    messages = row.get(name)
    if isinstance(messages, str):
        return _plain(row, name)
    if not isinstance(messages, list) or not messages:
        raise row.bad(name, "missing" if messages is None else "not a list of messages")
    spoken = [Row(message, row.named(f"{name}[{number}]")) for number, message in enumerate(messages)]
    user = next((each for each in spoken if each.get("role") == "user"), None)
    if user is None:
        user = next((each for each in spoken if each.get("role") is None), None)
    if user is None:
        raise row.bad(name, "no message of the user")
    content = user.get("content")
    if isinstance(content, list):  # parts: text and pictures
        texts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        user = Row({"content": "\n".join(text for text in texts if isinstance(text, str))}, row.named(name))
    return _plain(user, "content")


def _plain(row: Row, name: str) -> str:
    """A text without the markers of pictures."""
    text = row.text(name).replace(_MARKER, "").strip()
    if not text:
        raise row.bad(name, f"nothing but {_MARKER}")
    return text


def _caption(row: Row) -> str:
    captions = row.texts("image_caption")
    return captions[0] if captions else ""
