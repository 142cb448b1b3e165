"""FP8 of a Qwen2.5-VL: the language layers' matrices in blocks of 128 × 128, everything else as it was.

The format is compressed-tensors' `FP8_BLOCK`, which vLLM serves: weights in e4m3 with one scale for each block,
activations quantised as they come, in groups of 128. Written by llmcompressor without calibration and without loading
the model, so the names of both layouts of transformers stay as they are; what it wrote is checked tensor by tensor.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mia.errors import ConfigError, DataError
from mia.extras import need

if TYPE_CHECKING:
    import torch

BLOCK = 128
MODEL_TYPE = "qwen2_5_vl"
_LAYER = re.compile(
    r"(?:model\.|model\.language_model\.|language_model\.model\.)layers\.\d+\."
    r"(?:self_attn\.[qkvo]_proj|mlp\.(?:gate|up|down)_proj)\.weight"
)
"""A matrix of a language layer, by its name in either layout; those of the vision tower begin otherwise."""
_LEFT = ("re:.*visual.*", "re:.*lm_head", "re:.*embed_tokens")
ERROR = 2.0**-4
"""e4m3 has three bits behind the first: a number is off by at most 2^-4 of itself, half of the last bit."""
TINY = 2.0**-10
"""Below 2^-6 its steps are 2^-9: there a number is off by at most 2^-10 times the scale."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found of a checkpoint: matrices in FP8, tensors that are as they were, errors, bytes.

    Errors are of blocks, the length of the difference over the length of the block (Frobenius).
    """

    quantized: int
    kept: int
    worst_block: float
    mean_block: float
    bytes_before: int
    bytes_after: int

    @property
    def ratio(self) -> float:
        """Size after over size before."""
        return self.bytes_after / self.bytes_before

    def report(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "ratio": self.ratio}


def quantize(model: Path, out: Path, device: str = "") -> Checked:
    """Write the FP8 checkpoint of a model, check it, and put it in its place whole.

    Args:
        model: a checkpoint folder of Qwen2.5-VL, in safetensors.
        out: a folder that is not there yet.
        device: torch's name; empty: all GPUs, or the CPU.

    Raises:
        ConfigError: the model is of another kind, or `out` is there.
        DataError: what was written is not what it should be.
    """
    check_kind(model)
    if out.exists():
        raise ConfigError(f"{out} is there already", remedy="name another folder, or remove it")
    _check_widths(model)
    ptq = need("llmcompressor", "fp8").model_free_ptq
    part = out.with_name(f"{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    ptq(str(model), str(part), scheme="FP8_BLOCK", ignore=list(_LEFT), device=device or None)
    checked = verify(model, part)
    part.replace(out)
    return checked


def check_kind(model: Path) -> None:
    """Refuse what is no Qwen2.5-VL in full precision.

    Raises:
        ConfigError: see above.
    """
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{model} is no checkpoint folder: {error}", remedy="give a folder with config.json"
        ) from error
    kind = config.get("model_type")
    if kind != MODEL_TYPE:
        raise ConfigError(f"{model} is a {kind}; only {MODEL_TYPE} is known here", remedy="quantise the Executor")
    if "quantization_config" in config:
        raise ConfigError(f"{model} is quantised already", remedy="give the checkpoint in bfloat16")


def _check_widths(model: Path) -> None:
    with _opened(model) as tensors:
        for name in sorted(tensors.names):
            if _LAYER.fullmatch(name) and any(width % BLOCK for width in tensors.shape(name)):
                raise ConfigError(
                    f"{name} of {model} is {tensors.shape(name)}: blocks of {BLOCK} do not fit",
                    remedy="quantise a model whose widths are multiples of 128, as Qwen2.5-VL 3B and 7B are",
                )


def verify(model: Path, made: Path) -> Checked:
    """Compare an FP8 checkpoint with the model that it was made of.

    Each number of a quantised matrix is off by at most `ERROR` of itself, or `TINY` times its block's scale if that is
    more; everything else is the same to the bit.

    Raises:
        DataError: a tensor is missing, has another type or shape, or is further off; or the config says otherwise.
    """
    _check_config(made)
    quantized = kept = 0
    blocks: list[float] = []
    worst = 0.0
    sizes = [0, 0]
    with _opened(model) as before, _opened(made) as after:
        scales = {f"{name}_scale" for name in before.names if _LAYER.fullmatch(name)}
        strange = after.names ^ (before.names | scales)
        if strange:
            raise _wrong(made, min(strange), "is missing, or was not in the model")
        for name in sorted(before.names):
            was, now = before[name], after[name]
            sizes[0] += was.nbytes
            sizes[1] += now.nbytes
            if f"{name}_scale" in scales:
                scale = after[f"{name}_scale"]
                sizes[1] += scale.nbytes
                errors = _block_errors(made, name, was, now, scale)
                blocks += errors
                worst = max(worst, *errors)
                quantized += 1
            elif was.dtype != now.dtype or was.shape != now.shape or not bool((was == now).all()):
                raise _wrong(made, name, "is not as it was")
            else:
                kept += 1
    if not quantized:
        raise ConfigError(f"{model} has no language layers that are known here", remedy="give a Qwen2.5-VL checkpoint")
    return Checked(quantized, kept, worst, sum(blocks) / len(blocks), sizes[0], sizes[1])


def _check_config(made: Path) -> None:
    """Refuse a folder whose config does not tell a server what its tensors are."""
    config = json.loads((made / "config.json").read_text(encoding="utf-8")).get("quantization_config", {})
    said: Any = list(config.get("config_groups", {}).values())
    wanted = {
        "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [BLOCK, BLOCK]},
        "input_activations": {
            "num_bits": 8,
            "type": "float",
            "strategy": "group",
            "group_size": BLOCK,
            "dynamic": True,
        },
    }
    for part, settings in wanted.items():
        for name, value in settings.items():
            given = said[0].get(part, {}).get(name) if len(said) == 1 else None
            if given != value:
                raise _wrong(made, f"config.json: {part}.{name}", f"is {given!r}, not {value!r}")
    if config.get("quant_method") != "compressed-tensors":
        raise _wrong(made, "config.json: quant_method", f"is {config.get('quant_method')!r}, not compressed-tensors")


def _block_errors(made: Path, name: str, was: torch.Tensor, now: torch.Tensor, scale: torch.Tensor) -> list[float]:
    """Relative errors of the blocks of a matrix."""
    import torch

    rows, columns = was.shape
    wanted = (rows // BLOCK, columns // BLOCK)
    if now.dtype != torch.float8_e4m3fn or now.shape != was.shape:
        raise _wrong(made, name, f"is {now.dtype} {tuple(now.shape)}, not e4m3 {tuple(was.shape)}")
    if tuple(scale.shape) != wanted or not bool(torch.isfinite(scale.float()).all()) or not bool((scale > 0).all()):
        raise _wrong(made, f"{name}_scale", f"has shape {tuple(scale.shape)}, not {wanted}, or is not positive")
    spread = scale.float().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    exact = was.float()
    off = (now.float() * spread - exact).abs()
    # The last factor is for the rounding of the scale itself.
    if bool((off > torch.maximum(ERROR * exact.abs(), TINY * spread) * (1 + 2.0**-6)).any()):
        raise _wrong(made, name, "is further from the model than FP8 may be")
    return [
        float(off[i : i + BLOCK, j : j + BLOCK].norm() / exact[i : i + BLOCK, j : j + BLOCK].norm().clamp_min(1e-30))
        for i in range(0, rows, BLOCK)
        for j in range(0, columns, BLOCK)
    ]


def _wrong(made: Path, name: str, what: str) -> DataError:
    return DataError(f"{made}: {name} {what}", remedy="quantise it again", code="bad_checkpoint")


class _opened(Mapping[str, "torch.Tensor"]):
    """The tensors of a checkpoint, read one by one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._where: dict[str, Any] = {}

    def __enter__(self) -> _opened:
        from safetensors import safe_open

        files = sorted(self._folder.glob("*.safetensors"))
        if not files:
            raise DataError(f"{self._folder} has no safetensors files", remedy="give a whole checkpoint")
        for file in files:
            opened = self._stack.enter_context(safe_open(file, "pt"))
            self._where |= dict.fromkeys(opened.keys(), opened)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._where)

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._where[name].get_tensor(name)
        return tensor

    def shape(self, name: str) -> list[int]:
        """Shape of a tensor, without reading it."""
        shape: list[int] = self._where[name].get_slice(name).get_shape()
        return shape

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)
