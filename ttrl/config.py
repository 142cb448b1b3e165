"""Settings of test-time learning. `[learn]` says what is learned and from what; `mia ttrl` is the command.

The other sections are those of `mia train planner` (policy, rollout, reward, grpo) and of `mia eval` (dataset, eval).
What `[learn]` decides is not set there a second time: `settled` derives it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from executor_train.config import PolicyConfig
from inference.evaluation.config import EvalConfig, with_own_judge
from inference.methods.config import Feedback as JudgedBy
from mia.config import Section
from mia.errors import ConfigError
from planner_train.config import PlannerConfig

ChoiceRule = Literal["first", "shortest", "majority", "router"]
Feedback = Literal["truth", "panel", "none"]
_JUDGED_BY: dict[Feedback, JudgedBy] = {"truth": "reference", "panel": "panel", "none": "none"}
_ELSEWHERE = {
    "eval": {"memory": "learn.memory", "repeats": "learn.epochs", "engine": "nothing: it learns in one place"},
    "memory": {"enabled": "learn.memory", "url": "memory.path: a file that each run copies, to learn in the copy"},
    "method": {"name": "learn.memory", "feedback": "learn.feedback", "path": "learn.memory", "k": "memory.k"},
    "rollout": {"rows": "eval.limit", "recall": "learn.memory", "validation_rows": "dataset"},
    "grpo": {
        "per_device_train_batch_size": "eval.batch",
        "gradient_accumulation_steps": "eval.batch",
        "steps_per_generation": "eval.batch",
        "generation_batch_size": "eval.batch",
        "num_generations": "learn.n",
        "num_iterations": "nothing: a batch is one step",
        "num_train_epochs": "learn.epochs",
        "max_steps": "eval.limit",
        "output_dir": "--out",
        "vllm_importance_sampling_correction": "nothing: the ratio is to what was sampled",
    },
}
"""Settings of other commands, and where this one has them."""


class PanelReward(Section):
    """Weights of the reward where a panel judges."""

    verdict: float = Field(0.9, ge=0, description="the panel accepts the answer")
    format: float = Field(0.1, ge=0, description="plans and verdict could be read")


class LearnSection(Section):
    """What is learned during the stream, and from what; with all of it off, the stream is only answered."""

    weights: bool = Field(True, description="update the Planner's weights after each batch")
    memory: Literal["off", "frozen", "online"] = Field(
        "online", description="none, one that is only recalled from (memory.path), or one that learns after each batch"
    )
    n: int = Field(4, ge=1, le=64, description="plans of each question, all of which are executed")
    policy: ChoiceRule = Field(
        "first",
        description="whose answer is the official one, decided before any feedback: the first plan's, the shortest "
        "plan's, the most frequent answer, or that of the plan which the router model picks",
    )
    feedback: Feedback = Field(
        "truth", description="what is learned from: gold answers, a panel that never sees them, or nothing"
    )
    epochs: int = Field(1, ge=1, le=100, description="passes over the stream; each has files of its own")
    pairs: int = Field(3, ge=0, le=20, description="pairs of a right and a wrong plan that the router is shown")
    panel_reward: PanelReward = PanelReward()

    @model_validator(mode="after")
    def _can_learn(self) -> LearnSection:
        if self.weights and self.n < 2:
            raise ValueError("weights learn from differences in a group: set n to 2 or more, or weights = false")
        if self.weights and self.feedback == "none":
            raise ValueError("weights cannot learn from nothing: set feedback, or weights = false")
        return self

    @property
    def learns(self) -> bool:
        """Whether anything is learned."""
        return self.weights or self.memory == "online"

    @property
    def arm(self) -> str:
        """What an ablation calls these settings."""
        known = {(False, False): "frozen" if self.n == 1 else f"best of {self.n}", (False, True): "memory only",
                 (True, False): "weights only", (True, True): "full"}  # fmt: skip
        name = known[self.weights, self.memory == "online"]
        chosen = "" if self.policy == "first" or self.n == 1 else f", {self.policy}"
        taught = "" if self.feedback == "truth" or not self.learns else f", {self.feedback}"
        return name + chosen + taught


class LearnedPolicy(PolicyConfig):
    """The Planner that learns; LoRA unless all weights are asked for."""

    lora_rank: int = Field(16, ge=0, description="rank of a LoRA adapter on all linear layers; 0 trains all weights")


class TtrlConfig(PlannerConfig, EvalConfig):
    """The whole config of `mia ttrl`."""

    policy: LearnedPolicy = Field(default_factory=LearnedPolicy)
    learn: LearnSection = Field(default_factory=LearnSection)

    @property
    def in_batches(self) -> bool:
        """See `EvalConfig`."""
        return True


def settled(config: TtrlConfig) -> TtrlConfig:
    """The config with what follows from `[learn]` filled in where other commands look for it.

    Raises:
        ConfigError: something is set that `[learn]` decides, or that this command does not have.
    """
    for section, names in _ELSEWHERE.items():
        part: Any = getattr(config, section)
        given = part.keys() if isinstance(part, dict) else part.model_fields_set
        for name in sorted(names.keys() & given):
            raise ConfigError(f"{section}.{name} is not for test-time learning", remedy=f"set {names[name]} instead")
    if config.validation is not None:
        raise ConfigError("[validation] is not for test-time learning", remedy="leave it out")
    learn = config.learn
    if learn.memory == "frozen" and "path" not in config.memory.model_fields_set:
        raise ConfigError("a frozen memory must come from somewhere", remedy="set memory.path, or learn.memory = off")
    changed = {
        "eval": config.eval.model_copy(update={"memory": "online" if learn.memory == "online" else "read-only"}),
        "method": config.method.model_copy(update={"feedback": _JUDGED_BY[learn.feedback]}),
        "memory": config.memory.model_copy(update={"enabled": learn.memory != "off"}),
    }
    settled = with_own_judge(config.model_copy(update=changed))
    assert isinstance(settled, TtrlConfig)
    return settled
