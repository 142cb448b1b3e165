"""What a trained folder says of how it came about: `training.json`, written beside the weights, read for its card."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from executor_train.config import PolicyConfig
from inference.datasets.config import DatasetConfig
from mia import __version__, embedded
from mia.checkpoints import Trained
from mia.errors import DataError
from mia.types import Record

FILE = "training.json"


class TrainingRecord(Record):
    """How a model was trained. `base`: name on the hub, or folder, of the model that training began with."""

    command: str
    role: Trained
    method: Literal["SFT", "GRPO"]
    base: str
    dataset: str
    seed: int
    mia: str = __version__


def base_of(policy: PolicyConfig) -> str:
    """The name of the model that training begins with."""
    return embedded.HUB if policy.path == "embedded:" else policy.path


def dataset_of(dataset: DatasetConfig) -> str:
    """A dataset in words: its name, file and split."""
    return ", ".join(filter(None, (dataset.name, dataset.path.name if dataset.path else "", dataset.split)))


def write_record(folder: Path, record: TrainingRecord) -> None:
    """Write the record into a trained folder, whole or not at all; of several processes the last one's stays."""
    part = folder / f".{FILE}.{os.getpid()}"
    part.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    part.replace(folder / FILE)


def read_record(folder: Path) -> TrainingRecord | None:
    """The record in a folder; None where there is none.

    Raises:
        DataError: it cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return TrainingRecord.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, ValidationError) as error:
        raise DataError(f"{path} is no record of a training: {error}", remedy="mend it, or take it away") from error
