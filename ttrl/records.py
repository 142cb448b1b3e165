"""What is kept of a batch, in three files that are each written whole or not at all, and never a second time.

    batches/000007.played.jsonl   each question: its rollouts with their tokens, and which of them is the official one
    batches/000007.scored.jsonl   each question: the verdicts and rewards of its rollouts
    batches/000007.step.json      what the update of the weights did

A batch that was played is not played again after a kill, and one that was scored is not scored again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import Field, ValidationError

from executor_train.rollout import Rollout
from inference.runs import Run
from mia.errors import DataError
from mia.types import Failure, Judgement, Record, Text

R = TypeVar("R", bound=Record)
_LEFT = {"rolled": {"__all__": {"run": {"steps": {"__all__": {"reply": {"tokens"}}}}}}}
"""Tokens of single replies are left out: those of the Planner's whole conversation are kept."""


class Rolled(Record):
    """A rollout, before anybody judged it: its run with its tokens, or what failed.

    `first` is the answer that stood before the Planner's verdict. `version` counts the updates behind the weights that
    sampled it.
    """

    run: Run | None = None
    first: Text | None = None
    tokens: Rollout | None = None
    failure: Failure | None = None
    version: int = Field(0, ge=0)


class Asked(Record):
    """A question with its rollouts. `chosen` is the official one; None if all failed. `unchosen` says why the router
    could not choose, so that the first one stands for it."""

    id: Text
    rolled: tuple[Rolled, ...]
    chosen: int | None = None
    unchosen: Failure | None = None

    @property
    def official(self) -> Rolled:
        """The rollout whose answer is the question's; where all failed, the first."""
        return self.rolled[self.chosen or 0]


class Verdict(Record):
    """What became known of a rollout.

    `judgement` is by the reference (of the official rollout even where nobody learns from it), `feedback` by the panel.
    `reward` is None where none could be given, or none was needed; `failures` say what failed.
    """

    judgement: Judgement | None = None
    feedback: Judgement | None = None
    scores: dict[str, float] = Field(default_factory=dict)
    reward: float | None = None
    failures: tuple[Failure, ...] = ()


class Scored(Record):
    """A question with the verdicts on its rollouts, in their order."""

    id: Text
    verdicts: tuple[Verdict, ...]


class BatchFiles:
    """The files of one batch.

    Args:
        folder: of all batches.
        number: of this one, from 0 through all epochs.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._name = f"{number:06d}"

    def played(self) -> list[Asked] | None:
        """The questions with their rollouts; None if the batch was not played."""
        return _read(self._path("played.jsonl"), Asked)

    def keep_played(self, asked: Sequence[Asked]) -> None:
        """Keep what was played."""
        write_durably(self._path("played.jsonl"), "".join(f"{a.model_dump_json(exclude=_LEFT)}\n" for a in asked))

    def scored(self) -> list[Scored] | None:
        """The verdicts; None if the batch was not scored."""
        return _read(self._path("scored.jsonl"), Scored)

    def keep_scored(self, scored: Sequence[Scored]) -> None:
        """Keep the verdicts."""
        write_durably(self._path("scored.jsonl"), "".join(f"{s.model_dump_json()}\n" for s in scored))

    def keep_step(self, step: Record) -> None:
        """Keep what the update did; one that is made again after a kill replaces it."""
        write_durably(self._path("step.json"), f"{step.model_dump_json()}\n")

    def _path(self, kind: str) -> Path:
        return self._folder / f"{self._name}.{kind}"


def write_durably(path: Path, text: str) -> None:
    """Write a file whole or not at all; it is on disk when this returns.

    Raises:
        DataError: it cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror}",
            remedy="free space; `--resume` goes on from what is there",
            code="unwritable",
        ) from error


def sync_folder(path: Path) -> None:
    """Put the names in a folder on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path, kind: type[R]) -> list[R] | None:
    if not path.is_file():
        return None
    try:
        return [kind.model_validate_json(line) for line in path.read_bytes().split(b"\n") if line]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "a line"
        raise DataError(
            f"{path}: {where}: {first['msg']}", remedy="restore it, or begin anew with another --out"
        ) from error
