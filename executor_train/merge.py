"""A LoRA adapter added into its base model: a whole checkpoint, for servers that take no adapter.

Added in float32 (4 bytes a parameter of memory), whatever it is written in; then the logits must be those of base and
adapter, else nothing is written. Left out: adapters of other kinds than LoRA's, and mixing several.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from executor_train.record import FILE
from mia import checkpoints, embedded
from mia.errors import ConfigError, ModelError
from mia.extras import need

if TYPE_CHECKING:
    import torch

Dtype = Literal["float32", "bfloat16"]
EYES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
TOLERANCE = 1e-3
"""How far merged logits may be off, relative to the largest; float32 is off by some 1e-6."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What was written; `off`: how far its logits were off before rounding to `dtype`, relative to the largest."""

    folder: str
    adapter: str
    base: str
    dtype: Dtype
    parameters: int
    bytes: int
    off: float

    def report(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def merge(adapter: Path, out: Path, base: str = "", dtype: Dtype = "float32", force: bool = False) -> Merged:
    """Write a base with an adapter merged in; the folder appears whole, or not at all.

    Args:
        adapter: folder of a LoRA adapter (PEFT's); its chat template and record of training come along.
        out: folder to write.
        base: folder or hub name of its base, or `embedded:`; empty: as the adapter names it.
        dtype: of the weights as they are written.
        force: replace a checkpoint that is there.

    Raises:
        ConfigError: `out` is there.
        ModelError: the base is not there, or the adapter does not fit it or cannot be merged.
    """
    _refuse_taken(out, force)
    need("peft", "embedded")
    place = _base(adapter, base)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        part = Path(scratch) / "made"
        parameters, off = _write(place, adapter, part, dtype)
        if (adapter / FILE).is_file():
            shutil.copyfile(adapter / FILE, part / FILE)
        checkpoints.check_files(checkpoints.read(part))
        if out.exists():
            out.rename(Path(scratch) / "old")
        part.rename(out)
    size = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    return Merged(str(out), str(adapter), place, dtype, parameters, size, off)


def _refuse_taken(out: Path, force: bool) -> None:
    if not out.exists():
        return
    if not force:
        raise ConfigError(f"{out} is there already", remedy="name another folder, or give --force to replace it")
    if not (out / checkpoints.CONFIG).is_file():
        raise ConfigError(f"{out} is there and is no checkpoint", remedy="name another folder; it is not replaced")


def _base(adapter: Path, given: str) -> str:
    """Folder or hub name of the base. An adapter of the embedded model was trained on the weights that we unpack."""
    named = checkpoints.read(adapter)
    if given == "embedded:" or (not given and named.base == checkpoints.TINY):
        return str(embedded.ensure())
    base = given or named.base_name
    if not base:
        raise ModelError(f"{adapter} does not say what its base is", remedy="name it with --base", code="no_base")
    return base


def _write(base: str, adapter: Path, part: Path, dtype: Dtype) -> tuple[int, float]:
    """Merge and save; gives the number of parameters, and how far the logits are off."""
    import torch

    from mia.chat.engine import adapted, loaded

    try:
        tokenizer, plain, sees = loaded(base, "cpu", "float32")
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the base {base} of {adapter} cannot be loaded: {error}", remedy="name it with --base", code="no_base"
        ) from error
    try:
        model = adapted(plain, tokenizer, adapter)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"{adapter} does not fit {base}: {error}", remedy="name its base with --base", code="wrong_base"
        ) from error
    wanted = _logits(model, len(tokenizer))
    merged = model.merge_and_unload().eval()
    off = float((_logits(merged, len(tokenizer)) - wanted).abs().max() / wanted.abs().max())
    if not off < TOLERANCE:
        raise ModelError(
            f"merged, {adapter} gives other logits than beside {base} ({off:.1g} off, relative to the largest)",
            remedy="serve it as an adapter; or train one that leaves matrices alone which the base uses twice",
            code="not_mergeable",
        )
    merged.to(getattr(torch, dtype)).save_pretrained(part)
    tokenizer.save_pretrained(part)
    if sees:
        _copy_eyes(base, part)
    return sum(parameter.numel() for parameter in merged.parameters()), off


def _copy_eyes(base: str, part: Path) -> None:
    """Settings of the image processor, as they are: to load it as a whole one needs torchvision."""
    from transformers.utils.hub import cached_file

    for name in EYES:
        found = cached_file(base, name, _raise_exceptions_for_missing_entries=False)
        if found is not None:
            shutil.copyfile(found, part / name)


def _logits(model: Any, vocabulary: int) -> torch.Tensor:
    """Logits (1, T, vocabulary) of some tokens from all over the vocabulary."""
    import torch

    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.linspace(0, vocabulary - 1, 16).long()[None]).logits
    return logits
