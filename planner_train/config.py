"""Settings of the Planner's training; what all roles share is in `executor_train.config`."""

from __future__ import annotations

from pydantic import Field

from executor_train.config import GrpoConfig, RolloutConfig
from mia.config import Section


class RewardConfig(Section):
    """Weights of the parts of the Planner's reward."""

    final: float = Field(0.7, ge=0, description="the last answer is right")
    first: float = Field(0.2, ge=0, description="the answer before the verdict is right")
    decision: float = Field(0.05, ge=0, description="the verdict fits: yes to a wrong answer, no to a right one")
    format: float = Field(0.05, ge=0, description="plans and verdict could be read")


class PlannerRolloutConfig(RolloutConfig):
    """How the Planner's rollouts are played."""

    recall: bool = Field(False, description="rows bring what `[memory]` recalls for them; it is read once, before")


class PlannerConfig(GrpoConfig):
    """The whole config of `mia train planner`."""

    rollout: PlannerRolloutConfig = Field(default_factory=PlannerRolloutConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
