"""FP8 checkpoints: what is written, against scales reckoned by hand, and what the check finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor_train.quantize import quantize, verify
from executor_train.quantize_cli import main
from mia.errors import ConfigError, DataError
from scripts.tiny_vision import qwen_vl

torch = pytest.importorskip("torch")
pytest.importorskip("llmcompressor", reason="needs the extra fp8: pip install -e '.[fp8]' -c constraints.txt")
pytestmark = pytest.mark.filterwarnings("default")

MATRICES = [f"self_attn.{one}_proj" for one in "qkvo"] + [f"mlp.{one}_proj" for one in ("gate", "up", "down")]


def tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def rewritten(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]], to: Path) -> Path:
    """A copy of a checkpoint with other tensors."""
    import shutil

    from safetensors.torch import save_file

    shutil.copytree(folder, to)
    for file in to.glob("*.safetensors*"):
        file.unlink()
    save_file(change(tensors(folder)), to / "model.safetensors", metadata={"format": "pt"})
    return to


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_vl(tmp_path_factory.mktemp("fp8") / "model", wide=True)


@pytest.fixture(scope="module")
def made(model: Path) -> Path:
    quantize(model, model.parent / "made")
    return model.parent / "made"


def test_language_layers_are_in_blocks_and_nothing_else_is(model: Path, made: Path) -> None:
    before, after = tensors(model), tensors(made)
    fp8 = {name for name, tensor in after.items() if tensor.dtype == torch.float8_e4m3fn}
    assert len(fp8) == 2 * len(MATRICES)
    assert all(".layers." in name and "visual" not in name for name in fp8)
    assert {name.rsplit(".", 3)[-3] + "." + name.rsplit(".", 3)[-2] for name in fp8} == set(MATRICES)
    for name, was in before.items():
        if name not in fp8:
            assert torch.equal(was, after[name]), name
            continue
        # By hand: a scale for each 128 x 128, so that its largest number is e4m3's largest, 448.
        rows, columns = was.shape
        blocks = was.float().reshape(rows // 128, 128, columns // 128, 128)
        scale = blocks.abs().amax(dim=(1, 3)) / 448
        given = after[f"{name}_scale"].float()
        assert given.shape == scale.shape
        assert torch.allclose(given, scale, rtol=2**-7)
        back = after[name].float().reshape(blocks.shape) * given[:, None, :, None]
        off = (back - blocks).norm(dim=(1, 3)) / blocks.norm(dim=(1, 3))
        assert float(off.max()) < 0.03  # evenly spread mantissas: 2^-4 / sqrt(3) / 1.4 = 0.026
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    (group,) = config["config_groups"].values()
    assert group["weights"]["block_structure"] == [128, 128]
    assert (group["input_activations"]["dynamic"], group["input_activations"]["group_size"]) == (True, 128)
    assert (made / "chat_template.jinja").read_text() == (model / "chat_template.jinja").read_text()


def other_layout(given: dict[str, Any]) -> dict[str, Any]:
    """The names of the other layout of transformers."""
    old = any(name.startswith("visual.") for name in given)

    def name(text: str) -> str:
        if old:
            return text.replace("visual.", "model.visual.", 1).replace("model.layers.", "model.language_model.layers.")
        return text.replace("model.visual.", "visual.", 1).replace("model.language_model.", "model.", 1)

    return {name(text): tensor for text, tensor in given.items()}


def test_both_layouts_of_names_are_known(model: Path, made: Path, tmp_path: Path) -> None:
    other = rewritten(model, other_layout, tmp_path / "other")
    found = quantize(other, tmp_path / "made")
    same = verify(model, made)
    assert (found.quantized, found.kept, found.worst_block) == (14, same.kept, same.worst_block)
    wanted = {name for name, tensor in other_layout(tensors(made)).items() if tensor.dtype == torch.float8_e4m3fn}
    assert {name for name, t in tensors(tmp_path / "made").items() if t.dtype == torch.float8_e4m3fn} == wanted


def test_the_command_tells_what_it_found(model: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(model), "--out", str(made), "--check", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["quantized"], found["kept"]) == (14, len(tensors(model)) - 14)
    sizes = [sum(t.nbytes for t in tensors(folder).values()) for folder in (model, made)]
    assert [found["bytes_before"], found["bytes_after"]] == sizes
    assert found["ratio"] == pytest.approx(sizes[1] / sizes[0])
    assert 0.02 < found["mean_block"] <= found["worst_block"] < 0.03
    with pytest.raises(ConfigError, match="is there already"):
        main([str(model), "--out", str(made)])


def doubled(given: dict[str, Any]) -> dict[str, Any]:
    name = next(name for name in given if name.endswith("weight_scale"))
    return {**given, name: given[name] * 2}


def touched(given: dict[str, Any]) -> dict[str, Any]:
    name = next(name for name in given if "visual" in name)
    return {**given, name: given[name] + 1}


def without(given: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in given.items() if "lm_head" not in name}


def too_much(given: dict[str, Any]) -> dict[str, Any]:
    return {**given, "lm_head.weight": given["lm_head.weight"].to(torch.float8_e4m3fn)}


def cut(given: dict[str, Any]) -> dict[str, Any]:
    name = next(name for name in given if name.endswith("weight_scale"))
    return {**given, name: given[name][:1].contiguous()}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (doubled, "further from the model"),
        (touched, "not as it was"),
        (without, "is missing"),
        (too_much, "not as it was"),
        (cut, "shape"),
    ],
)
def test_what_is_wrong_is_found(
    model: Path, made: Path, tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], why: str
) -> None:
    with pytest.raises(DataError, match=why):
        verify(model, rewritten(made, change, tmp_path / "wrong"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda config: config.pop("quantization_config"), "weights.num_bits is None"),
        (lambda config: config["quantization_config"].update(quant_method="fp8"), "quant_method is 'fp8'"),
        (
            lambda config: next(iter(config["quantization_config"]["config_groups"].values()))["weights"].update(
                block_structure=[64, 64]
            ),
            "block_structure is .64, 64., not",
        ),
    ],
)
def test_a_config_that_says_otherwise_is_found(
    model: Path, made: Path, tmp_path: Path, change: Callable[[Any], Any], why: str
) -> None:
    wrong = rewritten(made, dict, tmp_path / "wrong")
    config = json.loads((made / "config.json").read_text())
    change(config)
    (wrong / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=why):
        verify(model, wrong)


def test_a_block_of_zeros_stays_one(model: Path, tmp_path: Path) -> None:
    def emptied(given: dict[str, Any]) -> dict[str, Any]:
        name = next(name for name in given if name.endswith("layers.0.mlp.up_proj.weight"))
        given[name][:128, :128] = 0
        return given

    empty = rewritten(model, emptied, tmp_path / "empty")
    found = quantize(empty, tmp_path / "made")
    assert found.quantized == 14
    after = tensors(tmp_path / "made")
    (name, *_) = [name for name in after if name.endswith("layers.0.mlp.up_proj.weight")]
    assert not after[name][:128, :128].float().any()
    assert after[name][:128, 128:].float().any()


def test_other_models_are_refused(model: Path, made: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quantised already"):
        quantize(made, tmp_path / "out")
    with pytest.raises(ConfigError, match="blocks of 128 do not fit"):
        quantize(qwen_vl(tmp_path / "narrow"), tmp_path / "out")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="is a llama"):
        quantize(tmp_path, tmp_path / "out")
    with pytest.raises(ConfigError, match="no checkpoint folder"):
        quantize(tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_transformers_reads_it_and_its_logits_are_near(model: Path, made: Path) -> None:
    """14 matrices, each with weights and input off by 2.6%: the logits by some 2.6% · sqrt(2 · 14) = 14%."""
    from transformers import Qwen2_5_VLForConditionalGeneration as Model

    ids = torch.arange(40)[None] % 250
    with torch.no_grad():
        exact = Model.from_pretrained(model, dtype=torch.bfloat16)(ids).logits.float()
        read = Model.from_pretrained(made, dtype=torch.bfloat16)(ids).logits.float()
    off = float((read - exact).norm() / exact.norm())
    assert 0.05 < off < 0.2
