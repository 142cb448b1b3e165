"""What a training run will take on each GPU, reckoned from the model's config; nothing is loaded.

Weights, gradients and AdamW's two moments are exact; activations and the cache of the sampler are upper bounds for
full conversations, so that what fits here fits. Left out: fragmentation, NCCL's buffers, and vLLM's own share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from executor_train.config import RolloutConfig

GB = 1e9
FULL = 4
"""Bytes of a float32."""
LOGPROB_CHUNK = 32768
"""Tokens whose logits the loss holds at once, at most."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the estimate needs to know of a model; `trained` of `parameters` get gradients and moments.

    Those of an adapter (`trained` is less than `parameters`) are in float32 whatever the model is, as PEFT makes them.
    """

    parameters: int
    trained: int
    layers: int
    hidden: int
    intermediate: int
    kv_width: int
    vocabulary: int

    @property
    def adapted(self) -> bool:
        """Whether only an adapter is trained."""
        return self.trained < self.parameters


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes on each GPU, and tokens of a step over all of them."""

    weights: float
    gradients: float
    moments: float
    activations: float
    logits: float
    cache: float
    rollouts: int
    tokens: int

    @property
    def sampling(self) -> float:
        """While rollouts are played; gradients are freed by then."""
        return self.weights + self.moments + self.cache

    @property
    def training(self) -> float:
        """While the loss is computed."""
        return self.weights + self.gradients + self.moments + self.activations + self.logits

    def lines(self) -> list[str]:
        """The estimate as text."""
        parts = ("weights", "gradients", "moments", "activations", "logits", "cache")
        shown = [f"{name:12}{getattr(self, name) / GB:9.2f} GB" for name in parts]
        peak = max(self.sampling, self.training)
        return [
            *shown,
            f"{'sampling':12}{self.sampling / GB:9.2f} GB",
            f"{'training':12}{self.training / GB:9.2f} GB",
            f"{'peak':12}{peak / GB:9.2f} GB for each GPU",
            f"{'a step':12}{self.rollouts:9d} rollouts, at most {self.tokens} tokens",
        ]


def shape_of(path: str, lora_rank: int) -> Shape:
    """The shape of a checkpoint, read from its config alone."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    from mia.chat.vision import MODEL_TYPES

    config = AutoConfig.from_pretrained(path)
    kind = AutoModelForImageTextToText if config.model_type in MODEL_TYPES else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config)
    text = config.get_text_config()
    count = sum(weight.numel() for weight in model.parameters())
    adapter = 0
    head = model.get_output_embeddings()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not head:
            adapter += lora_rank * (module.in_features + module.out_features)
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return Shape(
        parameters=count + adapter,
        trained=adapter or count,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        kv_width=text.num_key_value_heads * width,
        vocabulary=text.vocab_size,
    )


def estimate(shape: Shape, args: Any, bytes_each: int, rollout: RolloutConfig, gpus: int, sharded: bool) -> Estimate:
    """Reckon a run.

    Args:
        shape: of the model.
        args: TRL's settings, as one process reads them.
        bytes_each: of a weight.
        rollout: windows and batches.
        gpus: how many.
        sharded: weights, gradients and moments are spread over all of them (ZeRO-3, FSDP).
    """
    share = gpus if sharded else 1
    tokens = min(rollout.backward, args.per_device_train_batch_size) * rollout.limit
    # A layer keeps about 14 vectors of the hidden and 3 of the intermediate size for the way back; with checkpointing
    # only its input is kept, and one layer at a time is computed anew.
    layer = tokens * (14 * shape.hidden + 3 * shape.intermediate + 4 * shape.kv_width) * bytes_each
    if shape.adapted and bytes_each < FULL:  # each adapter keeps its input once more, in float32
        layer += tokens * (6 * shape.hidden + shape.intermediate) * FULL
    kept = tokens * shape.hidden * bytes_each
    activations = shape.layers * kept + layer if args.gradient_checkpointing else shape.layers * layer
    here = args.generation_batch_size  # of this one process
    rollouts = here * gpus
    each = 2 * shape.layers * shape.kv_width * bytes_each
    held = 0 if args.use_vllm else (here + min(here, rollout.batch)) * rollout.context * each
    size = FULL if shape.adapted else bytes_each
    frozen = shape.parameters - shape.trained
    return Estimate(
        weights=(frozen * bytes_each + shape.trained * size) / share,
        gradients=shape.trained * size / share,
        moments=2 * shape.trained * size / share,
        activations=activations,
        logits=3 * min(tokens, LOGPROB_CHUNK) * shape.vocabulary * FULL,
        cache=held,
        rollouts=rollouts,
        tokens=rollouts * rollout.limit,
    )
