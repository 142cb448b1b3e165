"""Benchmark files as `Example` records: one loader per dataset, every bad row named and counted.

    from inference.datasets import DatasetConfig, load_dataset
    dataset = load_dataset(DatasetConfig(name="hotpotqa", path="hotpot_dev_distractor_v1.json"))
    dataset.examples[0].question.text, dataset.sha256, dataset.counts, dataset.faults

A module per dataset documents its row, its source and its licence. Left out: nothing is downloaded, and how many
examples are used, and in which order, is the runner's business.
"""

from __future__ import annotations

from inference.datasets.config import NAMES, Columns, DatasetConfig
from inference.datasets.load import load_dataset
from inference.datasets.records import Counts, Dataset, Fault

__all__ = ["NAMES", "Columns", "Counts", "Dataset", "DatasetConfig", "Fault", "load_dataset"]
