"""The folder of a run: what was asked, what came of it, and all that is needed to go on after a kill.

    config.json         resolved config with its digest             environment.json   versions, processor
    dataset.json        name, version, checksum, faults             summary.json       see `summary.py`
    trajectories.jsonl  one line for each run, before it is judged  report.md, report.html
    rows.jsonl          one line for each judged run                predictions.jsonl  in order; equal for equal runs
    learned.jsonl       one line for each run memory learned from   memory.jsonl       what memory holds in the end
    memory.db           the memory, unless the config names another

A line of the three journals is on disk before anything builds on it; the last line of a run counts. Pictures are
named by their hash in trajectories.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import JsonValue, ValidationError

from inference.datasets import Dataset
from inference.evaluation.config import EvalConfig
from inference.evaluation.environment import environment
from inference.evaluation.journal import Journal, lines
from inference.evaluation.row import Item, Learned, Row
from inference.runs import Run
from mia.errors import ConfigError, DataError
from mia.types import Message, Record, Role

R = TypeVar("R", bound=Record)
JOURNALS = ("trajectories", "rows", "learned")
_BEGUN = ("dataset.json", "dataset.json.part", "config.json.part")
"""What a start that was killed may have left before there was a run."""
_FREE = ("eval.concurrency", "eval.failures", "eval.keep_traces", "eval.engine", "eval.actors", "runs")
"""Settings that may differ when a run is resumed: no answer depends on them."""
_FREE_OF_ENDPOINTS = ("api_key_env", "timeout_s", "retries")


class RunFolder:
    """An open folder; see `open_folder`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journals = {name: Journal(path / f"{name}.jsonl") for name in JOURNALS}
        self.rows = {row.run: row for row in _read(path / "rows.jsonl", Row)}
        self.learned = {entry.run: entry for entry in _read(path / "learned.jsonl", Learned)}
        self.traces: dict[str, int] = {}
        self.models: dict[Role, set[str]] = {}
        """The models that answered before this start, by role."""
        for offset, line in lines(path / "trajectories.jsonl"):
            run = json.loads(line)
            self.traces[run["id"]] = offset
            for step in run["steps"]:
                if step["reply"] is not None and step["reply"]["model"]:
                    self.models.setdefault(step["role"], set()).add(step["reply"]["model"])

    def add_run(self, run: Run) -> asyncio.Future[None]:
        """Keep a run that is not judged yet; done when it is on disk, or with a DataError."""
        self.traces[run.id] = self._journals["trajectories"].end
        return self._journals["trajectories"].append(_without_pictures(run).model_dump_json())

    def add_row(self, row: Row) -> asyncio.Future[None]:
        """Keep a row; done when it is on disk, or with a DataError."""
        self.rows[row.run] = row
        return self._journals["rows"].append(row.model_dump_json())

    def add_learned(self, entry: Learned) -> asyncio.Future[None]:
        """Keep that memory learned; done when it is on disk, or with a DataError."""
        self.learned[entry.run] = entry
        return self._journals["learned"].append(entry.model_dump_json())

    def load_run(self, item: Item) -> Run:
        """The kept run of a question, with the question's pictures; it is not judged."""
        with (self.path / "trajectories.jsonl").open("rb") as file:
            file.seek(self.traces[item.run])
            run = Run.model_validate_json(file.readline())
        question = run.question.model_copy(update={"images": item.example.question.images})
        return run.model_copy(update={"question": question})

    def write(self, name: str, text: str) -> None:
        """Write a file whole or not at all.

        Raises:
            DataError: it cannot be written.
        """
        write_file(self.path / name, text)

    async def aclose(self) -> None:
        """Close the journals; what was appended is written first."""
        for journal in self._journals.values():
            await journal.aclose()


def open_folder(path: Path, config: EvalConfig, dataset: Dataset, resume: bool) -> RunFolder:
    """Make the folder of a run, or open it again.

    Args:
        path: the folder.
        config: the run's config, without what the folder itself adds to it.
        dataset: what was read.
        resume: go on with the run that is there, if there is one.

    Raises:
        ConfigError: the folder is in use already, or its run was another one (code `other_run`).
        DataError: it cannot be written, or is open in another process.
    """
    begun = (path / "trajectories.jsonl").is_file() and (path / "trajectories.jsonl").stat().st_size > 0
    known = (path / "config.json").is_file()
    if known and begun and not resume:
        raise ConfigError(f"{path} holds a run already", remedy="go on with --resume, or give another --out")
    if not known and path.is_dir() and any(file.name not in _BEGUN for file in path.iterdir()):
        raise ConfigError(f"{path} is not empty and holds no run", remedy="give another --out")
    if known and resume:
        _check_same(path, config, dataset)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make {path}: {error.strerror}", remedy="give another --out") from error
    if not (known and resume):
        settings = resolved(config)
        write_file(path / "dataset.json", _pretty(describe(dataset)))
        write_file(path / "config.json", _pretty({"digest": digest(settings), "config": settings}))
    folder = RunFolder(path)
    started = _json(path / "environment.json") if (path / "environment.json").is_file() else []
    folder.write("environment.json", _pretty([*started, environment()]))
    return folder


def resolved(config: EvalConfig) -> dict[str, Any]:
    """The settings as they are kept: paths that the folder will choose are left out, the size of a batch is not."""
    settings = config.model_dump(mode="json")
    settings["eval"]["batch"] = config.eval.together if config.in_batches else 0
    if "path" not in config.memory.model_fields_set:
        del settings["memory"]["path"]
    return settings


def digest(settings: Mapping[str, Any]) -> str:
    """SHA-256 of settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def describe(dataset: Dataset) -> dict[str, JsonValue]:
    """A dataset without its examples; files by their names."""
    faults = [fault.model_dump() | {"file": Path(fault.file).name} for fault in dataset.faults]
    return {**dataset.model_dump(mode="json", include={"name", "version", "sha256", "counts"}), "faults": faults}


def read_config(path: Path) -> dict[str, Any]:
    """The settings of the run in a folder.

    Raises:
        DataError: the folder holds no run.
    """
    if not (path / "config.json").is_file():
        raise DataError(f"{path} holds no run", remedy="give the folder of `mia eval`")
    settings: dict[str, Any] = _json(path / "config.json")["config"]
    return settings


def read_dataset(path: Path) -> dict[str, Any]:
    """What is kept of the dataset of a run."""
    found: dict[str, Any] = _json(path / "dataset.json")
    return found


def read_summary(path: Path) -> dict[str, Any]:
    """The summary of a run.

    Raises:
        DataError: the folder holds no run, or its run has not come to an end yet.
    """
    read_config(path)
    if not (path / "summary.json").is_file():
        raise DataError(f"{path} has no summary yet", remedy="let the run end, or go on with `mia eval … --resume`")
    found: dict[str, Any] = _json(path / "summary.json")
    return found


def read_rows(path: Path) -> list[Row]:
    """The rows of a run in the order of its questions, the last of each.

    Raises:
        DataError: the file cannot be read.
    """
    rows = {row.run: row for row in _read(path / "rows.jsonl", Row)}
    return sorted(rows.values(), key=lambda row: row.place)


def read_runs(path: Path) -> Iterable[Run]:
    """The trajectories of a run as they were written; of a question that was asked again, the last one counts."""
    return _read(path / "trajectories.jsonl", Run)


def read_learned(path: Path) -> list[Learned]:
    """What memory learned in a run, in the order in which it did."""
    return list({entry.run: entry for entry in _read(path / "learned.jsonl", Learned)}.values())


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises DataError when it cannot be written."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(path)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror}",
            remedy="free space; `--resume` goes on from what is there",
            code="unwritable",
        ) from error


def _check_same(path: Path, config: EvalConfig, dataset: Dataset) -> None:
    """Refuse to mix two runs."""
    old, new = flat(read_config(path)), flat(resolved(config))
    differing = [name for name in sorted(old | new) if not _free(name, old, new) and old.get(name) != new.get(name)]
    if differing:
        told = "; ".join(f"{name} was {old.get(name)!r} and is {new.get(name)!r}" for name in differing)
        raise ConfigError(
            f"the run in {path} was another one: {told}",
            remedy="give the settings it began with, or another --out",
            code="other_run",
        )
    kept = read_dataset(path) if (path / "dataset.json").is_file() else describe(dataset)
    for name in ("version", "sha256"):
        if kept[name] != getattr(dataset, name):
            raise ConfigError(
                f"the run in {path} was of another dataset: {name} was {kept[name]} and is {getattr(dataset, name)}",
                remedy="give the file it began with, or another --out",
                code="other_run",
            )


def flat(settings: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """Settings by dotted names."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{inside}{name}.") if isinstance(value, Mapping) else {f"{inside}{name}": value}
    return found


def _free(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a setting may differ: where an endpoint answers is no part of a run, a checkpoint in-process is."""
    last = name.rpartition(".")[2]
    if name.startswith("models.") and last == "url":
        return all(str(settings.get(name, "")).startswith("http") for settings in (old, new))
    return name in _FREE or (name.startswith("models.") and last in _FREE_OF_ENDPOINTS)


def _read(path: Path, kind: type[R]) -> Iterable[R]:
    for number, (_, line) in enumerate(lines(path), start=1):
        try:
            yield kind.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise DataError(f"{path}, line {number}: {where}: {first['msg']}") from error


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def _without_pictures(run: Run) -> Run:
    """The run with each picture that it carries in itself replaced by its hash; addresses stay."""
    if not any((run.question.images, *(message.images for step in run.steps for message in step.told))):
        return run

    def named(images: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            f"sha256:{hashlib.sha256(url.encode()).hexdigest()}" if url.startswith("data:") else url for url in images
        )

    def told(message: Message) -> Message:
        return message.model_copy(update={"images": named(message.images)})

    steps = tuple(
        step.model_copy(
            update={
                "told": tuple(map(told, step.told)),
                "observations": tuple(o.model_copy(update={"images": named(o.images)}) for o in step.observations),
            }
        )
        for step in run.steps
    )
    question = run.question.model_copy(update={"images": named(run.question.images)})
    return run.model_copy(update={"question": question, "steps": steps})
