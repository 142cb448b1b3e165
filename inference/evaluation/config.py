"""Settings of an evaluation: the dataset, the order of the questions, how memory takes part, what is counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from inference.config import RunConfig
from inference.datasets import DatasetConfig
from mia.config import Section

Metric = Literal["em", "f1", "sub_em", "accepted", "choice", "gaia", "title_recall"]
"""Metrics that need no model; each counts only rows it applies to (see `inference.evaluation.scores`)."""

_JUDGES: Mapping[str, Literal["accepted", "gaia"]] = {"gaia": "gaia", "livevqa": "accepted"}
"""How benchmarks are judged whose makers use another rule than EM."""


class Price(Section):
    """What a million tokens costs, in any currency; 0 means that cost is not counted."""

    input: float = Field(0.0, ge=0, description="price of a million prompt tokens")
    output: float = Field(0.0, ge=0, description="price of a million completion tokens")


class EvalSection(Section):
    """How the questions are asked."""

    limit: int = Field(0, ge=0, description="how many questions; 0: all")
    order: Literal["dataset", "shuffled"] = Field("dataset", description="order of the questions, before the limit")
    seed: int = Field(0, ge=0, description="seed of the shuffled order and of the intervals")
    repeats: int = Field(1, ge=1, le=100, description="times that all questions are asked, each with its own memory")
    memory: Literal["online", "read-only"] = Field(
        "online", description="whether memory learns from the questions, or is only recalled from"
    )
    concurrency: int = Field(8, ge=1, le=4096, description="questions worked on at once")
    batch: int = Field(
        0, ge=0, description="online memory: questions answered together before memory learns; 0: as `concurrency`"
    )
    metrics: tuple[Metric, ...] = Field(
        ("em", "f1", "sub_em", "accepted", "choice", "title_recall"), description="metrics beside the judge"
    )
    price: Price = Price()
    failures: int = Field(5, ge=1, description="failures in a row at one boundary that end the run")
    keep_traces: bool = Field(True, description="keep trajectories.jsonl when the run is complete")
    engine: Literal["local", "ray"] = Field("local", description="this process, or a Ray cluster (read-only memory)")
    actors: int = Field(0, ge=0, description="ray: agents on the cluster; 0: one for each of its cores")

    @model_validator(mode="after")
    def _on_a_cluster(self) -> EvalSection:
        if self.engine == "ray" and self.memory == "online":
            raise ValueError('engine "ray" needs memory "read-only": online memory learns in one place, in order')
        return self

    @property
    def together(self) -> int:
        """Questions of a batch."""
        return self.batch or self.concurrency


class EvalConfig(RunConfig):
    """The whole config of `mia eval`."""

    dataset: DatasetConfig = Field(default_factory=DatasetConfig)
    eval: EvalSection = Field(default_factory=EvalSection)

    @model_validator(mode="after")
    def _memories_of_repeats(self) -> EvalConfig:
        named = "path" in self.memory.model_fields_set or self.memory.url or self.method.path is not None
        if self.eval.repeats > 1 and self.learns and named:
            raise ValueError("repeats with online memory need memories of their own: name no memory")
        return self

    @property
    def learns(self) -> bool:
        """Whether memory learns during the run."""
        return self.eval.memory == "online" and self.method.traits.memory and self.memory.enabled

    @property
    def in_batches(self) -> bool:
        """Whether answers depend on which questions are asked together."""
        return self.eval.memory == "online"


def with_own_judge(config: EvalConfig) -> EvalConfig:
    """The config with the judge that its dataset is used with, where the config names none.

    That is the letter for questions with options, a list of accepted answers for LiveVQA's open form, GAIA's own
    scorer, and EM for all others.
    """
    if "method" in config.judge.model_fields_set:
        return config
    dataset = config.dataset
    options = dataset.form == "choice" or (dataset.name == "jsonl" and bool(dataset.columns.choice))
    method = "choice" if options else _JUDGES.get(dataset.name, "em")
    return config.model_copy(update={"judge": config.judge.model_copy(update={"method": method})})
