"""Settings of training. What runs the agent (search, tools, judge, frozen partners) is set as for other commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from inference.config import RunConfig
from inference.datasets.config import DatasetConfig
from mia.config import Section


class PolicyConfig(Section):
    """The model that is trained."""

    path: str = Field("embedded:", description="`embedded:`, a checkpoint folder, or a name on the Hugging Face hub")
    adapter: str | None = Field(
        None,
        description="adapter to start from, with its own rank: a folder, e.g. of the warm start, or the package's "
        "embedded:executor or embedded:planner; merged in if lora_rank is 0",
    )
    template: Literal["own", "chatml"] = Field(
        "own",
        description="chat template: the checkpoint's own, or plain ChatML, which keeps the thinking of earlier turns "
        "as it was written (Qwen3's own does not); it is saved with what is trained",
    )
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="type of the weights")
    lora_rank: int = Field(0, ge=0, description="rank of a LoRA adapter on all linear layers; 0 trains all weights")
    lora_alpha: int = Field(16, ge=1, description="scale of the adapter, over its rank")
    attention: Literal["sdpa", "flash_attention_2"] = Field("sdpa", description="kernel of the attention")
    min_pixels: int | None = Field(None, ge=1, description="smaller pictures are enlarged; empty: the checkpoint's own")
    max_pixels: int = Field(1280 * 28 * 28, ge=1, description="larger pictures are shrunk; a token is 28 x 28 pixels")


class RolloutConfig(Section):
    """How rollouts are played."""

    context: int = Field(16384, ge=256, description="window in tokens that a conversation may fill while it is played")
    limit: int = Field(16384, ge=256, description="tokens of a conversation that are trained on; its end is cut off")
    batch: int = Field(64, ge=1, description="turns that one process decodes at once, at most (not with vLLM)")
    backward: int = Field(1, ge=1, description="conversations whose loss is computed at once; not with DeepSpeed")
    rows: int = Field(0, ge=0, description="first rows of the dataset to train on; 0: all")
    validation_rows: int = Field(64, ge=1, description="first rows of the validation set that are played")


class ExecutorRolloutConfig(RolloutConfig):
    """How the Executor's rollouts are played."""

    plans: Literal["none", "rows", "planner"] = Field(
        "none", description="the plan in the prompt: none, the rows' own, or one that the frozen Planner writes"
    )
    plan_column: str = Field("plan", description="column of the plans in the dataset's Parquet files")
    oracle: bool = Field(
        False, description="after a wrong answer let the frozen Planner plan once more; off in validation"
    )


class RewardConfig(Section):
    """Weights of the parts of the Executor's reward."""

    correct: float = Field(0.7, ge=0, description="the judge says the answer is right")
    tool: float = Field(0.2, ge=0, description="each round made a call that a tool accepted")
    format: float = Field(0.1, ge=0, description="every reply kept to the grammar")
    first_try: float = Field(0.0, ge=0, description="bonus to `correct` for a right answer without a replan")


class TracesConfig(Section):
    """What the warm start learns from."""

    role: Literal["executor", "planner"] = Field("executor", description="whose replies are learned")
    limit: int = Field(4096, ge=64, description="tokens; longer conversations are left out, and counted")
    runs: Path | None = Field(
        None, description="folder of `mia eval`, whose right runs are learned from; empty: scripted runs of miniwiki"
    )
    questions: int = Field(0, ge=0, description="first questions of miniwiki's train split, in random order; 0: all")
    early: float = Field(0.2, ge=0, le=1, description="share of scripted runs that answer too early, and plan again")
    notes: float = Field(
        0.5, ge=0, le=1, description="share of scripted runs that recall what memory learned from the earlier ones"
    )
    short: float = Field(
        0.0, ge=0, le=1, description="share of conversations that end with the first reply, so that more of them fit"
    )
    seed: int = Field(0, description="of the order, of which runs answer early, and of which conversations are short")


class WarmConfig(RunConfig):
    """The whole config of `mia train sft`."""

    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    traces: TracesConfig = Field(default_factory=TracesConfig)
    sft: dict[str, Any] = Field(default_factory=dict, description="TRL's SFTConfig, key by key")


class GrpoConfig(RunConfig):
    """What the configs of all roles share."""

    policy: PolicyConfig = Field(default_factory=PolicyConfig)
    dataset: DatasetConfig = Field(default_factory=DatasetConfig)
    validation: DatasetConfig | None = None
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    grpo: dict[str, Any] = Field(default_factory=dict, description="TRL's GRPOConfig, key by key")


class TrainConfig(GrpoConfig):
    """The whole config of `mia train executor`."""

    rollout: ExecutorRolloutConfig = Field(default_factory=ExecutorRolloutConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
