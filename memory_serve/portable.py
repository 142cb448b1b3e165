"""Memories as files: our JSON Lines, the JSON file of the original, and training data for the Planner.

The original (ECNU-SII/MIA at e3f5daf) keeps `{modality: {category: [entry]}}`; an entry has `data_id`, `question`,
`image_caption`, `workflow_summary`, `plan`, `judgement`, `usage_count`, `success_count` and `win_rate`, and in its
version without gold answers three feedbacks. Counters and win rate are taken over as they are; what has no place here
is kept in `original`, so that reading and writing such a file gives it back. It knows no unjudged memories.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from pydantic import ValidationError

from memory_serve.protocol import MAX_BATCH, MemoryStore, Stored
from memory_serve.ranking import win_rate
from mia.errors import DataError
from mia.types import now

_FIELDS = {
    "data_id": "source_id",
    "question": "question",
    "image_caption": "caption",
    "workflow_summary": "workflow",
    "plan": "plan",
    "judgement": "outcome",
    "usage_count": "uses",
    "success_count": "successes",
    "win_rate": "win_rate",
}
"""The original's names and ours."""
_DEFAULTS: dict[str, Any] = {"usage_count": 1, "success_count": 1, "win_rate": 1.0}
"""What the original gives an entry that has no counters."""


_REMEDY = "give a file of `mia memory export`, or of the original"


async def walk(store: MemoryStore) -> AsyncIterator[Stored]:
    """All memories of a store, in the order of their ids."""
    after = ""
    while page := await store.export(after, MAX_BATCH):
        for memory in page:
            yield memory
        after = page[-1].id


def is_lines(text: str) -> bool:
    """Whether a text is meant as our JSON Lines: its first line is an object with a workflow, or there is none."""
    try:
        first = json.loads(text.lstrip().partition("\n")[0] or "{}")
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and ("workflow" in first or not text.strip())


def read_lines(text: str) -> list[Stored]:
    """Memories of our JSON Lines, one on each line.

    Raises:
        DataError: a line is no memory.
    """
    memories = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                memories.append(Stored.model_validate_json(line))
            except ValidationError as error:
                fault = error.errors()[0]
                what = f"{'.'.join(map(str, fault['loc'])) or 'the line'}: {fault['msg']}"
                remedy = "give a file of `mia memory export`; of an evaluation, export its memory.db first"
                raise DataError(f"line {number} is no memory: {what}", remedy=remedy) from error
    return memories


def write_lines(memories: Iterable[Stored]) -> Iterator[str]:
    """Our JSON Lines: a line for each memory."""
    return (memory.model_dump_json() for memory in memories)


def read_original(text: str, namespace: str) -> list[Stored]:
    """Memories of a file of the original. Read twice, they have the same ids.

    Raises:
        DataError: it is no such file; names the entry.
    """
    try:
        buckets = json.loads(text)
        places = [
            (modality, category, position, entry)
            for modality, categories in buckets.items()
            for category, entries in categories.items()
            for position, entry in enumerate(entries)
        ]
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        what = error if isinstance(error, ValueError) else "it is nested in another way"
        raise DataError(
            f"this is neither JSON Lines of memories nor {{modality: {{category: [entry]}}}}: {what}", remedy=_REMEDY
        ) from error
    start = now()  # the file tells no times; its order is kept
    memories = []
    for number, (modality, category, position, entry) in enumerate(places):
        fields = {"modality": modality, "category": category, "created": start + timedelta(microseconds=number)}
        key = json.dumps([namespace, modality, category, position, entry], sort_keys=True)
        memory_id = str(uuid.uuid5(uuid.NAMESPACE_OID, key))
        try:
            memories.append(_from_entry(entry, {**fields, "id": memory_id, "namespace": namespace}))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            what = str(error) if isinstance(error, KeyError | ValueError) else "it is no object of such fields"
            raise DataError(f"{modality}/{category}, entry {position + 1}: {what}", remedy=_REMEDY) from error
    return memories


def _from_entry(entry: dict[str, Any], fields: dict[str, Any]) -> Stored:
    given = {**_DEFAULTS, **entry}
    rate = float(given["win_rate"])
    memory = Stored.model_validate({
        **fields,
        "source_id": str(given.get("data_id", "")),
        "question": given["question"],
        "caption": str(given.get("image_caption") or ""),
        "workflow": given["workflow_summary"],
        "plan": str(given.get("plan") or ""),
        "outcome": "correct" if given.get("judgement") == "correct" else "incorrect",
        "uses": given["usage_count"],
        "successes": given["success_count"],
        "win_rate": None if rate == win_rate(given["usage_count"], given["success_count"]) else rate,
        "trust": "model",
    })  # fmt: skip
    plain = _entry(memory)
    other = {name: value for name, value in entry.items() if not _same(plain.get(name), value)}
    missing = [name for name in plain if name not in entry]
    kept = {name: value for name, value in (("fields", other), ("missing", missing)) if value}
    return memory.model_copy(update={"original": kept})


def write_original(memories: Iterable[Stored]) -> tuple[str, int]:
    """A file of the original, and how many unjudged memories it has no place for."""
    buckets: dict[str, dict[str, list[dict[str, Any]]]] = {}
    left = 0
    for memory in sorted(memories, key=lambda m: (m.created, m.id)):
        if memory.outcome == "unjudged":
            left += 1
            continue
        buckets.setdefault(memory.modality, {}).setdefault(memory.category, []).append(_to_entry(memory))
    return json.dumps(buckets, ensure_ascii=False, indent=2) + "\n", left


def _to_entry(memory: Stored) -> dict[str, Any]:
    """An entry: what the file said where it still holds, what has changed since, and nothing that it left out."""
    entry = _entry(memory)
    fields = memory.original.get("fields", {})
    missing = memory.original.get("missing", [])
    assert isinstance(fields, dict)
    assert isinstance(missing, list)
    if memory.version == 1:
        entry |= {name: value for name, value in fields.items() if name not in ("usage_count", "success_count")}
    else:
        entry |= {name: value for name, value in fields.items() if name not in _FIELDS}
    unchanged = {**dict.fromkeys(_FIELDS, ""), **_DEFAULTS}
    return {n: v for n, v in entry.items() if n not in missing or v != unchanged[n]}


def _entry(memory: Stored) -> dict[str, Any]:
    entry = {name: getattr(memory, ours) for name, ours in _FIELDS.items()}
    return {**entry, "win_rate": win_rate(memory.uses, memory.successes, memory.win_rate)}


def _same(mine: object, theirs: object) -> bool:
    return type(mine) is type(theirs) and mine == theirs


def planner_rows(memories: Iterable[Stored]) -> list[dict[str, Any]]:
    """Training data for the Planner: of each question the newest way that worked beside the newest that failed.

    A question of which only one of the two is known has null for the other. Rows are in the order of the questions'
    first memories; `memory_ids` can be marked as absorbed once a checkpoint has learned them.
    """
    asked: dict[tuple[str, str, str], dict[str, Stored]] = {}
    for memory in sorted(memories, key=lambda m: (m.created, m.id)):
        if memory.outcome != "unjudged":
            key = (memory.modality, memory.category, memory.source_id or memory.question)
            asked.setdefault(key, {})[memory.outcome] = memory
    return [_row(list(known.values()), known.get("correct"), known.get("incorrect")) for known in asked.values()]


def _row(known: Sequence[Stored], good: Stored | None, bad: Stored | None) -> dict[str, Any]:
    def way(memory: Stored | None) -> dict[str, Any] | None:
        return None if memory is None else {"plan": memory.plan, "workflow": memory.workflow, "trust": memory.trust}

    return {
        "question_id": known[0].source_id,
        "question": known[0].question,
        "caption": known[0].caption,
        "success": way(good),
        "failure": way(bad),
        "memory_ids": [memory.id for memory in known],
    }
