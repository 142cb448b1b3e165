"""Runs on disk: one JSON file per question asked, written whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from datetime import datetime
from pathlib import Path

from pydantic import Field, ValidationError

from memory_serve.protocol import Added
from mia.errors import DataError
from mia.types import Judgement, Trajectory, now

_ID = re.compile(r"[A-Za-z0-9_.\-]{1,80}")


class Run(Trajectory):
    """A trajectory with what followed it: the judgement (if there was a reference) and what memory kept.

    `feedback` is the outcome that memory learned from, where that is not the judgement.
    """

    created: datetime = Field(default_factory=now)
    version: str = ""
    judgement: Judgement | None = None
    feedback: Judgement | None = None
    memory: Added | None = None

    @property
    def recalled_ids(self) -> tuple[str, ...]:
        """Ids of all memories that were recalled for the plan or the replan, each once; to be given back as credit."""
        return tuple(dict.fromkeys((*self.recalled.ids, *self.recalled_again.ids)))


def new_id() -> str:
    """An id that sorts by time, e.g. `20261130-184512-3f9a1c`."""
    return f"{now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


class RunStore:
    """A folder of runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self) -> None:
        """Make the folder, if it is missing, before any work is done.

        Raises:
            DataError: it cannot be written to.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise DataError(
                f"runs cannot be kept in {self.folder}: {error.strerror}",
                remedy="set `runs`, or MIA_HOME, to a folder you may write",
            ) from error

    def save(self, run: Run) -> Path:
        """Write a run; an earlier file of the same id is replaced.

        Raises:
            DataError: the file cannot be written.
        """
        path = self.folder / f"{run.id}.json"
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with part.open("w", encoding="utf-8") as file:
                file.write(run.model_dump_json(indent=1))
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            raise DataError(
                f"cannot write {path}: {error.strerror}", remedy="free space, or set `runs` to a folder you may write"
            ) from error
        return path

    def load(self, name: str) -> Run:
        """Read a run by id, by path, or by the word `last`.

        Raises:
            DataError: there is none, or the file is no run.
        """
        path = self._path(name)
        try:
            return Run.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise DataError(f"no run {name!r} in {self.folder}", remedy="`mia show` lists the runs") from error
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            remedy = "move it out of the folder of runs, or restore it"
            raise DataError(f"{path} is not a run: {where}: {first['msg']}", remedy=remedy) from error

    def ids(self) -> list[str]:
        """Ids of all runs, newest first."""
        found = (path.stem for path in self.folder.glob("*.json") if _ID.fullmatch(path.stem))
        return sorted(found, reverse=True)

    def _path(self, name: str) -> Path:
        if name.endswith(".json"):
            return Path(name)
        if name == "last":
            ids = self.ids()
            if not ids:
                raise DataError(f"no runs in {self.folder}", remedy="ask a question first: mia ask …")
            name = ids[0]
        if not _ID.fullmatch(name):
            raise DataError(f"{name!r} is not the id of a run", remedy="`mia show` lists the runs")
        return self.folder / f"{name}.json"
