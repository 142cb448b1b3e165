"""Cuts a corpus into shards and makes each one's files: the unit in which a build is shared out, and resumed.

    plan.json           how the corpus was cut; its presence says that the cutting is finished
    raw/000012          units of shard 12 as they were read, until the shard is made
    shards/000012/      its rows (see `passages`), places and hashes of ids, postings (see `bm25_build`), and
                        shard.json with counts and checksums; it appears whole, by a rename

How the corpus is cut changes nothing of the index, only the memory and the time that it takes.
"""

from __future__ import annotations

import pickle
import shutil
import uuid
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from local_search.bm25_build import write_postings
from local_search.corpus import Format, Reader, Row, Unit, reader_of
from local_search.index import Stamp, stamps, write_whole
from local_search.passages import read_rows_at, searched_text, writing
from mia.errors import DataError
from mia.types import Record

PLAN, SHARD = "plan.json", "shard.json"
_PLACES, _HASHES = "ids.place", "ids.hash"


class Plan(Record):
    """How a corpus was cut."""

    shard_bytes: int
    shards: int


class Shard(Record):
    """What a shard holds."""

    rows: int
    words: int
    skipped: dict[str, int] = Field(default_factory=dict)
    files: dict[str, Stamp]


class Task(NamedTuple):
    """A shard to make."""

    corpus: Path
    format: Format
    raw: Path
    folder: Path
    words: bool
    """Whether postings are wanted."""


def plan_of(staging: Path) -> Plan | None:
    """The plan of an earlier build that got as far as that."""
    try:
        return Plan.model_validate_json((staging / PLAN).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def cut(reader: Reader, staging: Path, shard_bytes: int, step: Callable[[int, float], None]) -> Plan:
    """Cut a corpus into shards of about `shard_bytes`; `step` is told of units read and the share of the file.

    Raises:
        DataError: as for `Reader.units`.
    """
    raw = staging / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir()
    units, shards, last = reader.units(), 0, 0
    while (first := next(units, None)) is not None:
        with (raw / f"{shards:06}").open("wb") as file:
            pickler = pickle.Pickler(file, 5)
            for unit in _take(first, units, shard_bytes):
                pickler.dump(tuple(unit))
                pickler.clear_memo()
                last = unit.place
        shards += 1
        step(last, reader.share)
    plan = Plan(shard_bytes=shard_bytes, shards=shards)
    write_whole(staging / PLAN, plan.model_dump_json())
    return plan


def _take(first: Unit, units: Iterator[Unit], most: int) -> Iterator[Unit]:
    """`first` and further units, until they have `most` bytes."""
    yield first
    size = first.size
    while size < most and (unit := next(units, None)) is not None:
        yield unit
        size += unit.size


def make_shard(task: Task) -> Shard:
    """Make the folder of a shard, unless it is there.

    Raises:
        DataError: a unit is broken.
    """
    if task.folder.is_dir():
        return read_shard(task.folder)
    part = task.folder.with_name(f"{task.folder.name}.part-{uuid.uuid4().hex}")
    part.mkdir(parents=True)
    skipped: Counter[str] = Counter()
    rows = writing(_noted(task, skipped, part), part)
    words = 0
    if task.words:
        words = write_postings((searched_text(row.passage()) for row in rows), part)
    else:
        deque(rows, maxlen=0)
    count = (part / _PLACES).stat().st_size // 8
    shard = Shard(rows=count, words=words, skipped=dict(sorted(skipped.items())), files=stamps(part))
    write_whole(part / SHARD, shard.model_dump_json())
    try:
        part.rename(task.folder)
    except OSError:  # made by another process meanwhile
        if not task.folder.is_dir():
            raise
        shutil.rmtree(part)
    task.raw.unlink(missing_ok=True)
    return shard


def _noted(task: Task, skipped: Counter[str], folder: Path) -> Iterator[Row]:
    """The rows of a shard; place and hash of each id are written for `check_ids`."""
    reader = reader_of(task.corpus, task.format)
    places, hashes = array("q"), array("Q")
    for unit in _units(task.raw):
        for row in reader.rows(unit, skipped):
            places.append(unit.place)
            hashes.append(int.from_bytes(blake2b(row.id.encode("utf-8"), digest_size=8).digest(), "little"))
            yield row
    (folder / _PLACES).write_bytes(places.tobytes())
    (folder / _HASHES).write_bytes(hashes.tobytes())


def _units(raw: Path) -> Iterator[Unit]:
    with raw.open("rb") as file:
        while True:
            try:
                unit: tuple[Any, ...] = pickle.load(file)
            except EOFError:
                return
            yield Unit(*unit)


def read_shard(folder: Path) -> Shard:
    """What a shard holds.

    Raises:
        DataError: its files are not what was written (code `damaged_shard`).
    """
    try:
        shard = Shard.model_validate_json((folder / SHARD).read_bytes())
        found = {name: stamp for name, stamp in stamps(folder).items() if name in shard.files}
    except (OSError, ValidationError) as error:
        raise DataError(f"shard {folder} is damaged: {error}", code="damaged_shard") from error
    if found != shard.files:
        raise DataError(f"shard {folder} is damaged", code="damaged_shard")
    return shard


def check_ids(reader: Reader, shards: Sequence[Path], memory: int) -> None:
    """See that no id comes twice, in bounded memory: ids are looked at only where 64 bits of their hashes are equal.

    Raises:
        DataError: an id comes twice (code `duplicate_id`); names the first such place, and where the id was before.
    """
    count = sum((shard / _HASHES).stat().st_size for shard in shards) // 8
    parts = np.uint64(count * 32 // memory + 1)
    for part in range(int(parts)):
        hashes = np.sort(np.concatenate([_part(shard, parts, part) for shard in shards] or [_NONE]))
        twice = hashes[1:][hashes[1:] == hashes[:-1]]
        if len(twice):
            _compare(reader, shards, twice)


_NONE: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)


def _part(shard: Path, parts: np.uint64, part: int) -> NDArray[np.uint64]:
    hashes: NDArray[np.uint64] = np.fromfile(shard / _HASHES, dtype=np.uint64)
    chosen: NDArray[np.uint64] = hashes[hashes % parts == np.uint64(part)]
    return chosen


def _compare(reader: Reader, shards: Iterable[Path], hashes: NDArray[np.uint64]) -> None:
    known: dict[str, int] = {}
    for shard in shards:
        rows = np.flatnonzero(np.isin(np.fromfile(shard / _HASHES, dtype=np.uint64), hashes))
        places = np.fromfile(shard / _PLACES, dtype=np.int64)
        for row, place in zip(read_rows_at(shard, rows), places[rows].tolist(), strict=True):
            if row.id in known:
                raise DataError(
                    f"{reader.path}, {reader.unit} {place}, field id: {row.id!r} is the id of {reader.unit} "
                    f"{known[row.id]} too",
                    remedy="give every row its own id",
                    code="duplicate_id",
                )
            known[row.id] = place
