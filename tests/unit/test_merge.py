"""`mia model merge`: logits are those of the weights added up by hand; what belongs to the adapter comes along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from executor_train.record import TrainingRecord, read_record, write_record
from mia.cli import main
from tests import tiny_models

torch = pytest.importorskip("torch")
pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("default")

TEMPLATE = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_models.chat_llama(tmp_path / "base")


@pytest.fixture
def adapter(tmp_path: Path, base: Path) -> Path:
    """An adapter as a training leaves it, with a chat template of its own and a record."""
    made = tiny_models.lora(base, tmp_path / "adapter", ["q_proj", "down_proj"])
    (made / "chat_template.jinja").write_text(TEMPLATE)
    record = TrainingRecord(command="mia train sft", role="planner", method="SFT", base="b", dataset="d", seed=3)
    write_record(made, record)
    return made


def weights_by_hand(base: Path, adapter: Path) -> dict[str, Any]:
    """W + (alpha / r) B A, from the files alone."""
    from safetensors.torch import load_file

    whole: dict[str, Any] = load_file(base / "model.safetensors")
    parts = load_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    for name, a in parts.items():
        if name.endswith("lora_A.weight"):
            b = parts[name.replace("lora_A", "lora_B")]
            whole[name.removeprefix("base_model.model.").replace("lora_A.", "")] += scale * (b @ a)
    return whole


def logits(folder: Path, weights: dict[str, Any] | None = None) -> Any:
    """(1, 8, vocabulary) of some tokens, in float32; with other weights if they are given."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if weights is not None:
        missing = model.load_state_dict(weights, strict=False)
        assert not missing.unexpected_keys
    with torch.inference_mode():
        return model(torch.arange(10, 18)[None]).logits


def test_logits_are_those_of_base_and_adapter(
    tmp_path: Path, base: Path, adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "merged"
    assert main(["model", "merge", str(adapter), str(out), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["folder"], shown["base"], shown["dtype"]) == (str(out), str(base), "float32")
    by_hand = logits(base, weights_by_hand(base, adapter))
    torch.testing.assert_close(logits(out), by_hand, rtol=1e-5, atol=1e-5)
    assert (logits(base) - by_hand).abs().max() > 0.1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base", "merged"]


def test_template_and_record_of_the_adapter_come_along(tmp_path: Path, base: Path, adapter: Path) -> None:
    from transformers import AutoTokenizer

    assert main(["model", "merge", str(adapter), str(tmp_path / "merged")]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    chat = [{"role": "user", "content": "the river"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "user: the river\n"
    assert tokenizer("the river 12").input_ids == AutoTokenizer.from_pretrained(base)("the river 12").input_ids
    assert read_record(tmp_path / "merged") == read_record(adapter) is not None


def test_in_bfloat16_the_merged_weights_are_rounded_once(tmp_path: Path, base: Path, adapter: Path) -> None:
    from safetensors.torch import load_file

    assert main(["model", "merge", str(adapter), str(tmp_path / "merged"), "--dtype", "bfloat16"]) == 0
    made = load_file(tmp_path / "merged" / "model.safetensors")
    for name, weight in weights_by_hand(base, adapter).items():
        assert made[name].dtype == torch.bfloat16
        torch.testing.assert_close(made[name].float(), weight, rtol=2**-8, atol=1e-6)  # half of the last of 8 bits
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_base_that_has_moved_is_named_by_a_flag(
    tmp_path: Path, base: Path, adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = base.rename(tmp_path / "moved")
    assert main(["model", "merge", str(adapter), str(tmp_path / "merged")]) == 1
    assert "--base" in capsys.readouterr().err
    assert main(["model", "merge", str(adapter), str(tmp_path / "merged"), "--base", str(moved)]) == 0
    torch.testing.assert_close(logits(tmp_path / "merged"), logits(moved, weights_by_hand(moved, adapter)))


def test_only_a_checkpoint_is_replaced_and_only_by_force(
    tmp_path: Path, adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, other = tmp_path / "merged", tmp_path / "photos"
    other.mkdir()
    (other / "photo.jpg").write_bytes(b"dear")
    assert main(["model", "merge", str(adapter), str(other), "--force"]) == 2
    assert (other / "photo.jpg").read_bytes() == b"dear"
    assert main(["model", "merge", str(adapter), str(out)]) == 0
    (out / "model.safetensors").write_bytes(b"spoilt")
    assert main(["model", "merge", str(adapter), str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert (out / "model.safetensors").read_bytes() == b"spoilt"
    assert main(["model", "merge", str(adapter), str(out), "--force"]) == 0
    assert (out / "model.safetensors").stat().st_size > 1000


def test_what_does_not_fit_leaves_nothing(
    tmp_path: Path, base: Path, adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "merged"
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    assert main(["model", "merge", str(adapter), str(out)]) == 1
    assert "does not fit" in capsys.readouterr().err
    assert main(["model", "merge", str(base), str(out)]) == 2
    assert "holds no adapter" in capsys.readouterr().err
    assert not out.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


def test_an_adapter_that_merging_would_change_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where in- and output share their weights, what is added to one would be added to the other."""
    tied = tiny_models.chat_llama(tmp_path / "tied", tied=True)
    made = tiny_models.lora(tied, tmp_path / "adapter", ["lm_head"])
    assert main(["model", "merge", str(made), str(tmp_path / "merged")]) == 1
    assert "other logits" in capsys.readouterr().err
    assert not (tmp_path / "merged").exists()


def test_the_adapter_of_a_model_that_sees_takes_its_eyes_along(tmp_path: Path) -> None:
    from scripts.tiny_vision import qwen_vl

    base = qwen_vl(tmp_path / "base")
    made = tiny_models.lora(base, tmp_path / "adapter", r".*layers\.\d+\.self_attn\.q_proj")
    assert main(["model", "merge", str(made), str(tmp_path / "merged")]) == 0
    eyes = "preprocessor_config.json"
    assert (tmp_path / "merged" / eyes).read_bytes() == (base / eyes).read_bytes()
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())
