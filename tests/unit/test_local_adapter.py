"""A LoRA adapter on an in-process checkpoint: replies are those of the weights added up by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mia.chat.local import LocalChat
from mia.config import Endpoint
from mia.errors import ConfigError, ModelError
from mia.types import Message, Sampling
from tests import tiny_models

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("default")

ASKED = [Message(role="user", text="How far is it to the sea?")]
GREEDY = Sampling(temperature=0, max_tokens=12)


def endpoint(place: Path, **more: str) -> Endpoint:
    return Endpoint(url=f"local:{place}", context=512, extra_body={"device": "cpu", **more})


async def reply(at: Endpoint) -> list[int]:
    model = LocalChat(at)
    try:
        tokens = (await model.generate(ASKED, GREEDY)).tokens
    finally:
        await model.aclose()
    assert tokens is not None
    return list(tokens.completion_ids)


async def test_an_adapter_is_merged_in(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = tiny_models.chat_llama(tmp_path / "model")
    base = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    config = peft.LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(base, config)
    torch.manual_seed(3)
    parts = {name: p.data.normal_(std=0.5) for name, p in adapted.named_parameters() if "lora_" in name}
    adapted.save_pretrained(tmp_path / "adapter")
    # The same by hand: W + (alpha / r) B A.
    plain = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    for name, a in parts.items():
        if "lora_A" in name:
            module = name.removeprefix("base_model.model.").split(".lora_A")[0]
            plain.get_submodule(module).weight.data += 4 * parts[name.replace("lora_A", "lora_B")] @ a
    plain.save_pretrained(tmp_path / "merged")
    AutoTokenizer.from_pretrained(place).save_pretrained(tmp_path / "merged")
    by_hand = await reply(endpoint(tmp_path / "merged"))
    assert await reply(endpoint(place, adapter=str(tmp_path / "adapter"))) == by_hand
    assert await reply(endpoint(place)) != by_hand


async def test_an_adapter_that_is_not_there_or_does_not_fit_is_named(tmp_path: Path) -> None:
    place = tiny_models.chat_llama(tmp_path / "model")
    with pytest.raises(ConfigError, match="nowhere"):
        await reply(endpoint(place, adapter=str(tmp_path / "nowhere")))
    # Of a deeper model PEFT would take what fits: the first layer of two.
    adapter = tiny_models.lora(place, tmp_path / "adapter", ["q_proj"])
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    with pytest.raises(ModelError, match=r"does not fit: .*layers\.1\.self_attn\.q_proj.* is in it alone"):
        await reply(endpoint(place, adapter=str(adapter)))
