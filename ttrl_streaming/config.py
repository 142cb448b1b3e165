"""Settings of the service that learns. `[streaming]` says what is learned from, and when."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, field_validator

from mia.config import Section
from mia.errors import ConfigError
from planner_train.config import PlannerConfig
from ttrl.config import LearnedPolicy

_OURS = {
    "per_device_train_batch_size": "streaming.batch",
    "gradient_accumulation_steps": "streaming.batch",
    "steps_per_generation": "streaming.batch",
    "generation_batch_size": "streaming.batch",
    "num_generations": "streaming.n",
    "num_iterations": "nothing: a batch is one step",
    "num_train_epochs": "nothing: a service has no end",
    "max_steps": "nothing: a service has no end",
    "output_dir": "--out",
    "vllm_importance_sampling_correction": "nothing: the ratio is to what was sampled",
}
"""Settings of TRL that follow from `[streaming]`."""


class GateConfig(Section):
    """New weights answer held-back questions before they serve."""

    share: float = Field(0.1, ge=0, le=0.5, description="share of the questions with a reference that is held back")
    questions: int = Field(16, ge=0, le=512, description="held-back questions of a namespace at most; 0: no gate")
    least: int = Field(4, ge=1, description="with fewer of them there is no gate yet")
    bound: float = Field(0.05, ge=0, description="mean reward that new weights may lose")


class AlarmConfig(Section):
    """When `GET /v1/status` raises an alarm; learning goes on."""

    drift: float = Field(0.2, gt=0, description="loss of mean reward from one window of answers to the next")
    entropy: float = Field(0.05, ge=0, description="entropy of the Planner's tokens, in nats, below which it collapsed")
    malformed: float = Field(0.5, gt=0, le=1, description="share of answers whose plans or verdict cannot be read")


class StreamingSection(Section):
    """What the service learns from, and when."""

    learn: bool = Field(True, description="update the Planner's weights; off: feedback goes to memory only")
    memory: bool = Field(True, description="recall for each question, and remember what feedback was given for")
    n: int = Field(4, ge=1, le=64, description="rollouts of a question whose feedback brings a reference")
    batch: int = Field(8, ge=1, le=1024, description="questions with feedback that make an update due")
    partial_s: float = Field(0.0, ge=0, description="seconds after which fewer make one due; 0: only a flush does")
    staleness: int = Field(4, ge=0, description="versions that an answer may be behind; older ones go to memory only")
    window: int = Field(64, ge=2, description="earlier rewards that a rollout without a group is held against")
    right_from: float = Field(0.5, ge=-1, le=1, description="reward from which an answer counts as right in memory")
    format: float = Field(0.1, ge=0, le=1, description="part of the reward that is for plans that can be read")
    reward: str = Field(
        "judge", description="`judge`, the address of a service, or a Python entry point, module:function"
    )
    reward_timeout_s: float = Field(60.0, gt=0, description="limit of one call of the reward's service, in seconds")
    retry_s: float = Field(10.0, gt=0, description="pause after a reward, memory or trainer failed, in seconds")
    concurrency: int = Field(16, ge=1, description="questions that are worked on at once")
    waiting: int = Field(256, ge=0, description="questions that may wait for that; more are refused (429)")
    limit: int = Field(0, ge=0, description="questions that are answered in all; 0: no limit")
    keep: int = Field(5, ge=2, description="versions of the weights that are kept, for rollbacks")
    niceness: int = Field(10, ge=0, le=19, description="of the process that trains, so that answers go first")
    threads: int = Field(1, ge=1, description="threads of the process that trains")
    seed: int = Field(0, description="of all sampling")
    token_env: str = Field("", description="environment variable with the bearer token to ask for; empty: no token")
    gate: GateConfig = GateConfig()
    alarms: AlarmConfig = AlarmConfig()

    @field_validator("reward")
    @classmethod
    def _known_kind(cls, reward: str) -> str:
        known = reward == "judge" or reward.startswith(("http://", "https://"))
        if not known and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", reward):
            raise ValueError("must be judge, an address that begins with http, or module:function")
        return reward


class StreamConfig(PlannerConfig):
    """The whole config of `mia serve stream`."""

    policy: LearnedPolicy = Field(default_factory=LearnedPolicy)
    streaming: StreamingSection = Field(default_factory=StreamingSection)


def settled(config: StreamConfig, out: Path) -> StreamConfig:
    """The config with the memory in the folder of the run.

    Raises:
        ConfigError: something is set that `[streaming]` decides, or that a service cannot have.
    """
    for name in sorted(_OURS.keys() & config.grpo.keys()):
        raise ConfigError(f"grpo.{name} is not for a service that learns", remedy=f"set {_OURS[name]} instead")
    if not str(config.grpo.get("lr_scheduler_type", "constant")).startswith("constant"):
        raise ConfigError("a service has no last step", remedy='set grpo.lr_scheduler_type = "constant"')
    if config.memory.url or "path" in config.memory.model_fields_set:
        raise ConfigError("the service's memory is in the folder of its run", remedy="leave memory.path and url out")
    memory = {"path": out / "memory.db", "enabled": config.streaming.memory}
    return config.model_copy(update={"memory": config.memory.model_copy(update=memory)})
