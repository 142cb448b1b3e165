"""What happens to memories, wherever they are kept: the stores read, ask here, and write what is decided.

When two memories are the same is in `memory_serve.duplicates`, what is too much in `memory_serve.keep`, how recall
weighs in `memory_serve.ranking`. Nothing is read or written here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from memory_serve.config import Weights
from memory_serve.duplicates import Decision, decide, same_question, twins
from memory_serve.log import Image
from memory_serve.near import Spot
from memory_serve.protocol import TRUSTS, Draft, Edit
from memory_serve.ranking import Flags, Floats, Ints
from memory_serve.rows import Encoded, State
from memory_serve.vectors import Bucket, Key
from mia.errors import DataError
from mia.types import Outcome, now

KEPT = ("id", "created", "uses", "successes", "merged_from", "win_rate")
"""Columns that stay as they are when a draft takes the place of a memory."""

# ---------------------------------------------------------------------------------------------- adding


def least_cosine(threshold: float, weights: Weights) -> float:
    """The least cosine of two questions whose similarity can reach a threshold, whatever their captions are."""
    if not weights.question:
        return -1.0
    return min(threshold, (threshold - weights.caption) / weights.question)


def is_known(held: tuple[str, str] | None, outcome: Outcome) -> bool:
    """Whether a run need not be looked at again: it is stored once, but a verdict may come later than the run.

    Args:
        held: the memory that the run counts as stored in, and its outcome.
        outcome: that of the draft.
    """
    return held is not None and (held[1] != "unjudged" or outcome == "unjudged")


def decide_on(
    draft: Draft,
    encoded: Encoded,
    bucket: Bucket | None,
    spot: Spot,
    threshold: float,
    similarities: Callable[[Bucket, Ints], Floats],
    look: Callable[[str], Mapping[str, Any]],
) -> Decision:
    """What becomes of a draft, see `memory_serve.duplicates`.

    Args:
        draft: the draft.
        encoded: its bucket and vectors.
        bucket: the memories of its bucket; None if there are none.
        spot: where its question stands.
        threshold: similarity from which two questions are the same.
        similarities: those of the draft to m rows of the bucket, (m,).
        look: gives question, workflow and trust of a memory.
    """
    rows = None if bucket is None else bucket.near(encoded.question, spot)
    if bucket is None or rows is None or not len(rows):
        return "stored", ""
    captioned = encoded.caption is not None
    found = twins(bucket, rows, similarities(bucket, rows), threshold, encoded.bucket[0], captioned, draft.source_id)
    looked_at = {memory_id: look(memory_id) for memory_id in found.values()}
    found = {o: i for o, i in found.items() if same_question(draft.question, looked_at[i]["question"])}
    return decide(
        draft.outcome,
        found,
        lambda i: len(draft.workflow.split()) < len(looked_at[i]["workflow"].split()),
        lambda i: TRUSTS.index(draft.trust) > TRUSTS.index(looked_at[i]["trust"]),
    )


def new_state(namespace: str, memory_id: str, draft: Draft, bucket: tuple[str, str]) -> State:
    """The columns of a memory that is made of a draft."""
    return {
        "id": memory_id,
        "question": draft.question,
        "caption": draft.caption,
        "workflow": draft.workflow,
        "plan": draft.plan,
        "outcome": draft.outcome,
        "uses": 0,
        "successes": 0,
        "modality": bucket[0],
        "category": bucket[1],
        "created": now().isoformat(timespec="microseconds"),
        "source_id": draft.source_id,
        "trajectory_id": draft.trajectory_id,
        "provenance": json.dumps(draft.provenance, ensure_ascii=False) if draft.provenance else "{}",
        "namespace": namespace,
        "revision": 1,
        "trust": draft.trust,
        "absorbed": "",
        "merged_from": "[]",
        "win_rate": None,
        "original": "{}",
    }


# ---------------------------------------------------------------------------------------------- changing


def edited(edit: Edit, encoded: Encoded | None) -> State:
    """The columns that an edit changes; `encoded` is the new bucket, if the question or caption is new."""
    new: State = {**edit.model_dump(exclude_none=True), "absorbed": ""}
    if encoded is not None:
        new |= {"modality": encoded.bucket[0], "category": encoded.bucket[1]}
    return new


def check_edited(memory_id: str, there: int | None, seen: int) -> None:
    """Whether a memory may be edited by one who has seen this version of it; `there` is None if there is none.

    Raises:
        DataError: it may not.
    """
    if there is None:
        raise DataError(f"no memory {memory_id!r}", code="not_found", status=404)
    if there != seen:
        raise DataError(
            f"memory {memory_id} has version {there}, not {seen}",
            remedy="read it again and repeat the change",
            code="conflict",
            status=409,
        )


def check_namespaces(memory_id: str, there: str, wanted: str) -> None:
    """Whether an imported memory may have the id of one that is there.

    Raises:
        DataError: that one is of another namespace.
    """
    if there != wanted:
        raise DataError(f"memory {memory_id!r} belongs to another namespace", code="conflict", status=409)


# ---------------------------------------------------------------------------------------------- merging


def mergeable(bucket: Bucket, key: Key) -> Flags:
    """`Who is this?` asked of two pictures is not one question; without captions nothing tells them apart."""
    return bucket.captioned.copy() if key[1] == "text-image" else np.ones(len(bucket), np.bool_)


def believable(one: State | None, other: State | None) -> bool:
    """Whether the vectors of two memories say what their whole questions say; see `same_question`."""
    return one is not None and other is not None and same_question(one["question"], other["question"])


class Merged(NamedTuple):
    """Two memories that become one: which stays, which goes, and what is new of the one that stays."""

    stays: State
    goes: State
    new: State
    runs: dict[str, str]


def merged(a: State, b: State) -> Merged:
    """What rests on more stays; of successes the shorter, of others the newer. It gets all counters and runs."""
    stays, goes = (a, b) if _stays(a, b) else (b, a)
    names = [*json.loads(stays["merged_from"]), goes["id"], *json.loads(goes["merged_from"])]
    counters = {name: stays[name] + goes[name] for name in ("uses", "successes")}
    new = {**counters, "win_rate": None, "merged_from": json.dumps(list(dict.fromkeys(names)))}
    return Merged(stays, goes, new, {**goes["runs"], **stays["runs"]})


def _stays(a: State, b: State) -> bool:
    if a["trust"] != b["trust"]:
        return TRUSTS.index(a["trust"]) < TRUSTS.index(b["trust"])
    older = (a["created"], a["id"]) < (b["created"], b["id"])
    if a["outcome"] != "correct":
        return not older
    words = len(a["workflow"].split()), len(b["workflow"].split())
    return words[0] < words[1] or (words[0] == words[1] and older)


# ---------------------------------------------------------------------------------------------- undoing


def nothing_to_undo(number: int | None) -> DataError:
    """The error for a change that is not there, or is undone already."""
    what = "nothing to undo" if number is None else f"no change {number} that is not undone already"
    return DataError(what, remedy="`mia memory undo --list` shows the changes", code="not_found", status=404)


def check_undo(current: State | None, number: int, memory_id: str, image: Image, encoder: str) -> None:
    """Whether a memory can become what it was before a change.

    Args:
        current: what it is now; None if it is not there.
        number: of the change.
        memory_id: its id.
        image: what the change did to it.
        encoder: the one whose vectors are compared now.

    Raises:
        DataError: it has changed since, or its vectors were another encoder's.
    """
    if not is_as_left(current, image):
        raise DataError(
            f"memory {memory_id} has changed since change {number}",
            remedy="undo the later changes first (`mia memory undo --list` shows them)",
            code="conflict",
            status=409,
        )
    if image.before is not None and image.vector is not None and image.before["encoder"] != encoder:
        raise DataError(
            f"change {number} is from before the memories were encoded anew by {encoder}",
            remedy=f"open the memory with {image.before['encoder']}, or restore a backup",
            code="conflict",
            status=409,
        )


def is_as_left(current: State | None, image: Image) -> bool:
    """Whether a memory is as a change left it; its version may have gone up and down again since."""
    if current is None or image.after is None:
        return current is None and image.after is None
    ignored = {"revision"} | ({"encoder"} if image.before is None else set())
    return all(current[name] == value for name, value in image.after.items() if name not in ignored)
