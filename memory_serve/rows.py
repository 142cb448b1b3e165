"""What stands in a row of the memory file: columns, and their conversion to records and to what recall holds in RAM."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from local_search.protocol import Vectors
from memory_serve.database import damaged
from memory_serve.protocol import Stored
from memory_serve.ranking import win_rate
from memory_serve.vectors import Entry

TEXTS = ("question", "caption", "workflow", "plan")
"""Columns with texts of the memory itself."""
COLUMNS = (
    "id", "question", "caption", "workflow", "plan", "outcome", "uses", "successes", "modality", "category", "created",
    "source_id", "trajectory_id", "provenance", "namespace", "revision", "trust", "absorbed", "merged_from", "win_rate",
    "original",
)  # fmt: skip
"""All columns but the vectors, what made them, and the number of the last change."""
SELECT = f"SELECT {', '.join(COLUMNS)} FROM memories"
_INSERTED = (*COLUMNS, "encoder", "version", "vector", "caption_vector")
INSERT = f"INSERT INTO memories ({', '.join(_INSERTED)}) VALUES ({', '.join('?' * len(_INSERTED))})"
"""Takes what `inserted` gives."""
MIRRORED = (
    "SELECT id, namespace, modality, category, outcome, uses, successes, created, source_id, trust, win_rate, encoder, "
    "vector, caption_vector FROM memories"
)
STATE = (
    "json_object("
    + ", ".join(f"'{name}', {name}" for name in (*COLUMNS, "encoder"))
    + ", 'runs', (SELECT json_group_object(trajectory_id, outcome) FROM runs WHERE memory_id = memories.id))"
)
"""The whole state of a memory but its vectors, as JSON; `runs` are the runs that count as stored in it."""
JSON_COLUMNS = ("provenance", "merged_from", "original")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_BLOB = np.dtype("<f4")
"""Vectors are stored as little-endian float32."""

State = dict[str, Any]
"""Columns and values of one memory, or some of them."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A question or a draft as it is compared: modality and category, and unit vectors of shape (d,)."""

    bucket: tuple[str, str]
    question: Vectors
    caption: Vectors | None


def stored(path: Path, row: Sequence[object]) -> Stored:
    """The record of a row of `SELECT`.

    Raises:
        MemoryStoreError: the file is damaged.
    """
    fields = dict(zip(COLUMNS, row, strict=True))
    try:
        for name in JSON_COLUMNS:
            fields[name] = json.loads(str(fields[name]))
        fields["version"] = fields.pop("revision")
        return Stored.model_validate(fields)
    except (ValidationError, ValueError) as error:
        raise damaged(path, f"memory {row[0]} cannot be read ({error})") from error


def entry(path: Path, dim: int, row: Sequence[Any]) -> Entry:
    """What recall holds of a row of `MIRRORED`.

    Raises:
        MemoryStoreError: the file is damaged.
    """
    (memory_id, namespace, modality, category, outcome, uses, successes, created, source_id, trust, given, _,
     vector, caption) = row  # fmt: skip
    try:
        age = datetime.fromisoformat(created) - _EPOCH
    except (ValueError, TypeError) as error:
        raise damaged(path, f"memory {memory_id} was created {created!r}") from error
    return Entry(
        id=memory_id,
        bucket=(namespace, modality, category),
        outcome=outcome,  # the file has a CHECK on it
        question=_from_blob(path, dim, memory_id, vector),
        caption=None if caption is None else _from_blob(path, dim, memory_id, caption),
        uses=uses,
        successes=successes,
        created=age // _MICROSECOND,
        source_id=source_id,
        trust=trust,
        win_rate=win_rate(uses, successes, given),
    )


def inserted(state: State, version: int, vector: bytes, caption: bytes | None) -> tuple[object, ...]:
    """The row of a memory whose whole state is known, as `INSERT` wants it."""
    return (*map(state.__getitem__, COLUMNS), state["encoder"], version, vector, caption)


def new_id() -> str:
    """A UUID of version 7 (RFC 9562): it begins with the time, so what is new lies together in the file's indexes.

    Ids all over the file would make every addition rewrite pages of its own, the more the bigger the file.
    """
    chance = secrets.randbits(74)
    milliseconds = time.time_ns() // 1_000_000
    name = f"{milliseconds << 80 | 7 << 76 | (chance >> 62) << 64 | 2 << 62 | (chance & (2**62 - 1)):032x}"
    return f"{name[:8]}-{name[8:12]}-{name[12:16]}-{name[16:20]}-{name[20:]}"


def fresh_entry(row: State, encoded: Encoded) -> Entry:
    """What recall holds of a row that is just being written."""
    return Entry(
        id=row["id"],
        bucket=(row["namespace"], row["modality"], row["category"]),
        outcome=row["outcome"],
        question=encoded.question,
        caption=encoded.caption,
        uses=row["uses"],
        successes=row["successes"],
        created=(datetime.fromisoformat(row["created"]) - _EPOCH) // _MICROSECOND,
        source_id=row["source_id"],
        trust=row["trust"],
        win_rate=win_rate(row["uses"], row["successes"], row["win_rate"]),
    )


def _from_blob(path: Path, dim: int, memory_id: str, blob: object) -> Vectors:
    if not isinstance(blob, bytes) or len(blob) != dim * _BLOB.itemsize:
        raise damaged(path, f"the vector of memory {memory_id} does not have {dim} numbers")
    return np.frombuffer(blob, _BLOB).astype(np.float32, copy=False)


def to_blob(vector: Vectors) -> bytes:
    """A vector as it is stored."""
    return vector.astype(_BLOB, copy=False).tobytes()


def values(memory: Stored) -> State:
    """The columns of a record."""
    fields = memory.model_dump(mode="json", exclude={"version"})
    for name in JSON_COLUMNS:
        fields[name] = json.dumps(fields[name], ensure_ascii=False)
    return {
        **fields,
        "revision": memory.version,
        "created": memory.created.astimezone(UTC).isoformat(timespec="microseconds"),
    }
