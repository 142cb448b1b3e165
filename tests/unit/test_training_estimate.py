"""The estimate of memory against what a real step of a small model holds, tensor by tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor_train.config import PolicyConfig, RolloutConfig

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")

TOKENS = 512


class Args:
    """What the estimate reads of TRL's settings."""

    per_device_train_batch_size = 1
    generation_batch_size = 8
    use_vllm = False

    def __init__(self, gradient_checkpointing: bool) -> None:
        self.gradient_checkpointing = gradient_checkpointing


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("estimate") / "model"
    config = LlamaConfig(
        vocab_size=1000, hidden_size=96, intermediate_size=256, num_hidden_layers=6, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def stored(tensors: Any) -> int:
    """Bytes behind tensors, each storage once."""
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


def step(place: Path, dtype: str, rank: int, checkpointing: bool) -> dict[str, int]:
    """Bytes that weights, kept activations, gradients and moments take in one step of a model."""
    import peft
    from transformers import AutoModelForCausalLM

    from executor_train.training import adapter

    model: Any = AutoModelForCausalLM.from_pretrained(place, dtype=dtype).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if rank:
        model = peft.get_peft_model(model, adapter(PolicyConfig(path=str(place), lora_rank=rank)))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: list[Any] = []

    def keep(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept.append(tensor)
        return tensor

    bare = model.get_base_model() if rank else model
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        read = bare.model(input_ids=torch.arange(TOKENS)[None], use_cache=False).last_hidden_state
    activations = stored(kept)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained)
    read.float().pow(2).mean().backward()
    optimiser.step()
    moments = [value for state in optimiser.state.values() for name, value in state.items() if name != "step"]
    return {
        "weights": stored(model.parameters()),
        "activations": activations,
        "gradients": stored(parameter.grad for parameter in trained if parameter.grad is not None),
        "moments": stored(moments),
    }


@pytest.mark.parametrize("checkpointing", [False, True], ids=["whole", "checkpointing"])
@pytest.mark.parametrize("rank", [0, 4], ids=["full", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_estimate_is_above_what_is_held_and_not_far(
    place: Path, dtype: str, rank: int, checkpointing: bool
) -> None:
    from executor_train.estimate import estimate, shape_of

    held = step(place, dtype, rank, checkpointing)
    size = {"float32": 4, "bfloat16": 2}[dtype]
    rollout = RolloutConfig(context=TOKENS, limit=TOKENS)
    made = estimate(shape_of(str(place), rank), Args(checkpointing), size, rollout, gpus=1, sharded=False)
    for name in ("weights", "gradients", "moments"):
        assert getattr(made, name) == held[name], name
    # With checkpointing the estimate also holds one layer of six computed anew, which this forward pass does not.
    most = 1.5 if not checkpointing else 7
    assert held["activations"] <= made.activations <= most * held["activations"]
