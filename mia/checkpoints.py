"""Whether a checkpoint folder is what a role needs: files, base model, and the chat template, by what it writes.

The paper's Executor is a Qwen2.5-VL-7B, its Planner a Qwen3-8B (Qiao et al. 2026, arXiv 2604.04503); ours for a laptop
are adapters of the embedded model. Nothing is loaded: the base is known by its config, and the template is rendered.
Left out: where the folder comes from (`mia.hub`), and the weights' own dtypes and shapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mia import embedded
from mia.errors import ModelError
from mia.extras import need

Trained = Literal["executor", "planner"]
"""The roles that are trained."""
FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.md", "LICEN[CS]E*")
"""What belongs to a checkpoint. Pickles are left out: reading one runs what it says."""
SMALL = ("config.json", "adapter_config.json", "tokenizer_config.json", "chat_template.*", "preprocessor_config.json")
"""What tells base and template, without the weights."""
CONFIG, ADAPTER = "config.json", "adapter_config.json"
_ADAPTER_WEIGHTS, _INDEX = "adapter_model.safetensors", "model.safetensors.index.json"
_NEVERTHELESS = "fetch another one; --any-model takes it nevertheless"
_PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


@dataclass(frozen=True)
class Base:
    """A base model: its name on the hub, and what its config says."""

    hub: str
    model_type: str
    width: int
    layers: int
    licence: str = "apache-2.0"
    pictures: bool = False

    @property
    def name(self) -> str:
        """The name without its owner."""
        return self.hub.split("/")[1]


EXECUTOR = Base("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_5_vl", 3584, 28, pictures=True)
PLANNER = Base("Qwen/Qwen3-8B", "qwen3", 4096, 36)
TINY = Base(embedded.HUB, "llama", 576, 30)
BASES: dict[Trained, tuple[Base, ...]] = {"executor": (EXECUTOR, TINY), "planner": (PLANNER, TINY)}
"""The bases that a role may have: the paper's, and the embedded model."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder. `base` is None where it is none that we know; `base_name` is then what is known of it."""

    folder: Path
    adapter: bool
    base: Base | None
    base_name: str


def read(folder: Path) -> Checkpoint:
    """What a folder holds, by its config.

    Raises:
        ModelError: it holds no checkpoint, or its config cannot be read.
    """
    if (folder / ADAPTER).is_file():
        name = str(_json(folder / ADAPTER).get("base_model_name_or_path") or "")
        return Checkpoint(folder, True, _named(name), name)
    if not (folder / CONFIG).is_file():
        raise ModelError(
            f"{folder} holds no checkpoint: no {CONFIG}, no {ADAPTER}",
            remedy="name the folder of a checkpoint",
            code="no_checkpoint",
        )
    config = _json(folder / CONFIG)
    text = config.get("text_config") or config
    shape: tuple[Any, ...] = (config.get("model_type"), text.get("hidden_size"), text.get("num_hidden_layers"))
    known: dict[tuple[Any, ...], Base] = {
        (base.model_type, base.width, base.layers): base for base in (EXECUTOR, PLANNER, TINY)
    }
    return Checkpoint(folder, False, known.get(shape), f"{shape[0]}, {shape[1]} wide, {shape[2]} layers")


def check_base(found: Checkpoint, role: Trained) -> None:
    """Refuse a checkpoint of another base than a role's.

    Raises:
        ModelError: see above (`wrong_base`).
    """
    if found.base in BASES[role]:
        return
    fitting = [other for other in BASES if found.base in BASES[other]]
    right = " or ".join(base.name for base in BASES[role])
    raise ModelError(
        f"{found.folder}: the {role} is a {right}, this is a {found.base.name if found.base else found.base_name}",
        remedy=f"fetch it as --role {fitting[0]}" if fitting else _NEVERTHELESS,
        code="wrong_base",
    )


def check_files(found: Checkpoint) -> None:
    """Refuse a checkpoint that lacks weights, or what turns text into tokens.

    Raises:
        ModelError: see above (`incomplete`).
    """
    folder, missing = found.folder, []
    if found.adapter:
        missing += _absent(folder, [_ADAPTER_WEIGHTS])
    else:
        index = folder / _INDEX
        shards = set(_json(index).get("weight_map", {}).values()) if index.is_file() else {"model.safetensors"}
        missing += _absent(folder, sorted(map(str, shards)))
        if _absent(folder, ["tokenizer.json"]) and _absent(folder, ["vocab.json", "merges.txt"]):
            missing.append("tokenizer.json")
        if found.base and found.base.pictures:
            missing += _absent(folder, ["preprocessor_config.json"])
    if missing:
        named = found.base.hub if found.base else "its base model"
        only_tokenizer = missing == ["tokenizer.json"]
        raise ModelError(
            f"{folder} is not complete: it lacks {', '.join(missing)}",
            remedy=f"put the tokenizer's files of {named} there, and run the command again"
            if only_tokenizer
            else "fetch a checkpoint that is whole, in safetensors",
            code="incomplete",
        )


def check_template(found: Checkpoint, strict: bool) -> None:
    """Render the chat template of a checkpoint, and compare with what the models were trained on, ChatML.

    An adapter without one uses its base's.

    Args:
        found: the checkpoint.
        strict: it must be ChatML (with Qwen2.5-VL's marks around a picture); else it must only render.

    Raises:
        ModelError: there is none (`no_template`), or it writes something else (`wrong_template`).
    """
    templates = dict(_templates(found.folder))
    if not templates and not found.adapter:
        source = found.base.hub if found.base else "its base model"
        raise ModelError(
            f"{found.folder} has no chat template",
            remedy=f"put the chat_template.jinja of {source} there, and run the command again",
            code="no_template",
        )
    pictures = bool(found.base and found.base.pictures)
    expected = _chatml(pictures)
    for name, template in templates.items():
        written = _rendered(found.folder / name, template, pictures)
        if strict and written != expected:
            pairs = zip(written, expected, strict=False)
            place = next(
                (i for i, (is_, should) in enumerate(pairs) if is_ != should), len(min(written, expected, key=len))
            )
            raise ModelError(
                f"{found.folder / name}: the chat template is another one: after {expected[:place][-30:]!r} it writes "
                f"{written[place:][:30]!r}, where the role's writes {expected[place:][:30]!r}",
                remedy=_NEVERTHELESS,
                code="wrong_template",
            )


def _probe(pictures: bool) -> list[dict[str, Any]]:
    """A conversation whose form is the same in all models of the two families: no thinking, no calls."""
    asked: Any = [{"type": "image"}, {"type": "text", "text": "What is it?"}] if pictures else "What is it?"
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": asked},
        {"role": "assistant", "content": "A bridge."},
        {"role": "user", "content": "Where?"},
    ]


def _chatml(pictures: bool) -> str:
    return (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        f"<|im_start|>user\n{_PICTURE if pictures else ''}What is it?<|im_end|>\n"
        "<|im_start|>assistant\nA bridge.<|im_end|>\n<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n"
    )


def _rendered(path: Path, template: str, pictures: bool) -> str:
    """What a template makes of the probe, rendered as transformers does, in a sandbox."""
    need("transformers", "embedded")
    from jinja2.exceptions import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered, _ = render_jinja_template(
            [_probe(pictures)], chat_template=template, add_generation_prompt=True, bos_token="", eos_token="<|im_end|>"
        )
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(
            f"{path}: the chat template fails: {error}", remedy=_NEVERTHELESS, code="wrong_template"
        ) from error
    return str(rendered[0])


def _templates(folder: Path) -> Iterable[tuple[str, str]]:
    """The default templates of a folder, with the file each is in; `chat_template.jinja` goes before all others.

    Of these, some programs read the one and some the other.
    """
    if (folder / "chat_template.jinja").is_file():
        yield "chat_template.jinja", (folder / "chat_template.jinja").read_text(encoding="utf-8")
        return
    for name in ("chat_template.json", "tokenizer_config.json"):
        given = _json(folder / name).get("chat_template") if (folder / name).is_file() else None
        if isinstance(given, list):
            given = {entry.get("name"): entry.get("template") for entry in given}.get("default")
        if isinstance(given, str):
            yield name, given


def _named(name: str) -> Base | None:
    """The base of a name: on the hub, or of a folder, such as where the embedded model is kept."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    known = {base.name.lower(): base for base in (EXECUTOR, PLANNER, TINY)} | {embedded.NAME: TINY}
    return known.get(last)


def _absent(folder: Path, names: Sequence[str]) -> list[str]:
    return [name for name in names if not (folder / name).is_file()]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}", remedy="fetch it again", code="bad_file") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} is no JSON object", remedy="fetch it again", code="bad_file")
    return found
