"""The model that is trained: an adapter to start from goes on, and what is saved fits the base model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor_train.config import PolicyConfig
from executor_train.training import adapter, policy
from mia.errors import ConfigError, ModelError
from tests import playing, tiny_models

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.chat_llama(tmp_path_factory.mktemp("policy") / "model")


@pytest.fixture(scope="module")
def begun(place: Path) -> Path:
    """An adapter whose B is not zero, so that it changes the model."""
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    config = adapter(PolicyConfig(path=str(place), lora_rank=2))
    made = peft.get_peft_model(base, config)
    torch.manual_seed(0)
    for name, parameter in made.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
    made.save_pretrained(place.parent / "begun")
    return place.parent / "begun"


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.arange(20)[None]).logits


def test_an_adapter_goes_on_or_is_merged_in(place: Path, begun: Path) -> None:
    config = PolicyConfig(path=str(place), dtype="float32", lora_rank=8, adapter=str(begun))
    on, _, _ = policy(config)
    assert adapter(config) is None
    trained = {name for name, parameter in on.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    whole = config.model_copy(update={"lora_rank": 0})
    merged, _, _ = policy(whole)
    assert all(parameter.requires_grad for parameter in merged.parameters())
    base, _, _ = policy(whole.model_copy(update={"adapter": None}))
    assert torch.allclose(logits(on), logits(merged), atol=1e-5)
    assert not torch.allclose(logits(on), logits(base), atol=1e-2)


def test_what_is_saved_after_a_start_from_an_adapter_fits_the_base(place: Path, begun: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.trainer.grpo_config import GRPOConfig

    from executor_train.grpo import WaveTrainer

    model, _, _ = policy(PolicyConfig(path=str(place), dtype="float32", lora_rank=2, adapter=str(begun)))
    settings: dict[str, Any] = {"output_dir": str(tmp_path), "per_device_train_batch_size": 8, "num_generations": 4}
    settings |= {"max_steps": 1, "report_to": [], "use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    settings |= {"learning_rate": 1e-2, "beta": 0.0, "save_strategy": "no", "disable_tqdm": True}
    trainer = WaveTrainer(
        playing.TwoTurns(), model, AutoTokenizer.from_pretrained(place), GRPOConfig(**settings), playing.rows(2),
        context=1024, limit=1024,
    )  # fmt: skip
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    trainer.close()
    base = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    again = peft.PeftModel.from_pretrained(base, tmp_path / "final")
    assert torch.allclose(logits(again), logits(trainer.model), atol=1e-5)
    before, _, _ = policy(PolicyConfig(path=str(place), dtype="float32", lora_rank=2, adapter=str(begun)))
    assert not torch.allclose(logits(again), logits(before), atol=1e-6)


def test_a_folder_without_an_adapter_is_named(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no adapter"):
        policy(PolicyConfig(path=str(place), adapter=str(tmp_path)))


@pytest.mark.parametrize("words", [["--dry-run"], ["--out", "made"]])
def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path: Path, words: list[str]) -> None:
    from executor_train.cli import main

    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=str(tmp_path)) as raised:
        main(["train/executor_tiny", "--policy.path", str(tmp_path), *words])
    assert raised.value.code == "no_model"
    assert not Path("made").exists()
