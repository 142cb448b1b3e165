"""`mia model fetch` against a stub of the hub: what comes, what is resumed, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor_train.config import GrpoConfig, TrainConfig
from executor_train.hub_cli import fetch, fetch_words
from executor_train.publish_cli import push_words
from executor_train.released import RELEASED
from inference.config import RunConfig
from mia.config import Endpoint, load
from mia.errors import ConfigError, DataError, ModelError
from mia.hub import File, Listing, Source
from mia.hub_files import bring
from tests import hubs

pytest.importorskip("huggingface_hub")
pytest.importorskip("jinja2")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}"
    "{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VISION = {"model_type": "qwen2_5_vl", "text_config": {"hidden_size": 3584, "num_hidden_layers": 28}}
QWEN3 = {"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36}


def model(config: dict[str, Any], template: str | None = CHATML, prefix: str = "") -> dict[str, bytes]:
    """Files of a whole checkpoint, as small as can be."""
    tokenizer: dict[str, Any] = {"eos_token": "<|im_end|>"}
    files = {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": json.dumps(tokenizer | ({"chat_template": template} if template else {})).encode(),
        "preprocessor_config.json": b"{}",
        "model.safetensors": b"weights" * 1000,
        "training_args.bin": b"a pickle",
    }
    return {prefix + name: data for name, data in files.items()}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MIA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MIA_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hubs.Hub]:
    with hubs.hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        yield made


def released() -> hubs.Repo:
    return hubs.Repo({**model(VISION, prefix="Trained-Executor/"), **model(QWEN3, prefix="Trained-Planner/")})


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_the_originals_models_come_whole_and_a_profile_uses_them(
    hub: hubs.Hub, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.repos["models/LightningCreeper/MIA"] = released()
    assert fetch(["mia-executor", "mia-planner"]) == 0
    *_, shown = said(capsys)
    profile = home / "home" / "profiles" / "mia-executor+mia-planner.toml"
    assert shown == str(profile)
    config = load(RunConfig, profile)
    for role in ("executor", "planner"):
        folder = home / "cache" / "hub" / f"mia-{role}" / f"Trained-{role.title()}"
        assert config.models.of(role).url == f"local:{folder}"
        kept = {path.name for path in folder.iterdir()}
        assert kept == set(model(VISION)) - {"training_args.bin"}  # no pickle is fetched
        assert (folder / "model.safetensors").read_bytes() == b"weights" * 1000
    assert config.models.default.url == "embedded:"
    assert config.agent.executor.max_tokens == 2048
    load(TrainConfig, profile)
    assert sorted(set(hub.fetched())) == sorted(hub.fetched())  # each file once


def test_what_is_there_is_checked_and_not_fetched_again(hub: hubs.Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.repos["models/me/planner"] = hubs.Repo(model(QWEN3))
    assert fetch(["me/planner", "--role", "planner", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["fetched"][0]["commit"] == hubs.COMMIT
    assert shown["fetched"][0]["base"] == "Qwen/Qwen3-8B"
    hub.seen.clear()
    assert fetch(["me/planner", "--role", "planner"]) == 0
    assert hub.fetched() == []
    weights = Path(shown["fetched"][0]["folder"]) / "model.safetensors"
    weights.write_bytes(b"w" + weights.read_bytes()[1:-1] + b"s")
    damaged = bytearray(weights.read_bytes())
    damaged[3] ^= 1
    weights.write_bytes(damaged)
    assert fetch(["me/planner", "--role", "planner"]) == 0  # found by its checksum, and mended
    assert hub.fetched() == ["model.safetensors"]
    assert weights.read_bytes() == b"weights" * 1000


@pytest.mark.parametrize("ranges", [True, False])
def test_a_fetch_that_was_killed_goes_on_where_it_stopped(hub: hubs.Hub, home: Path, ranges: bool) -> None:
    big, stop = bytes(range(256)) * (3 << 12), (5 << 20) // 2  # 3 MiB, of which two and a half come
    hub.repos["models/me/planner"] = hubs.Repo(model(QWEN3) | {"model.safetensors": big}, ranges=ranges)
    hub.stall["model.safetensors"] = stop
    words = [str(Path(sys.executable).parent / "mia"), "model", "fetch", "me/planner", "--role", "planner"]
    folder = home / "cache" / "hub" / "me--planner"
    process = subprocess.Popen(words)
    try:
        while not (part := [p for p in folder.glob(".model.safetensors.*.part") if p.stat().st_size]):
            assert process.poll() is None
            time.sleep(0.02)
        with pytest.raises(ModelError, match="another process") as caught:
            fetch(["me/planner", "--role", "planner"])
        assert caught.value.code == "busy"
    finally:
        process.kill()
        process.wait()
    came = part[0].stat().st_size
    assert 1 << 20 <= came <= stop
    hub.stall.clear()
    hub.seen.clear()
    assert fetch(["me/planner", "--role", "planner"]) == 0
    asked = {path.rpartition("/")[2]: part for verb, path, part in hub.seen if verb == "GET" and "/resolve/" in path}
    assert asked == {"model.safetensors": f"bytes={came}-"}
    assert (folder / "model.safetensors").read_bytes() == big
    assert list(folder.glob(".*.part")) == []


def test_a_line_that_breaks_is_taken_up_again(hub: hubs.Hub, home: Path) -> None:
    big = bytes(range(256)) * (3 << 12)
    hub.repos["models/me/planner"] = hubs.Repo(model(QWEN3) | {"model.safetensors": big})
    hub.broken["model.safetensors"] = (5 << 20) // 2
    assert fetch(["me/planner", "--role", "planner"]) == 0
    asked = [part for verb, path, part in hub.seen if verb == "GET" and path.endswith("/model.safetensors")]
    assert asked == ["bytes=0-", f"bytes={2 << 20}-"]
    assert (home / "cache" / "hub" / "me--planner" / "model.safetensors").read_bytes() == big


def test_a_file_that_comes_damaged_is_fetched_once_more_and_then_refused(hub: hubs.Hub, home: Path) -> None:
    bad = b"Weights" * 1000
    repo = hubs.Repo(model(QWEN3), served={"model.safetensors": [bad]})
    hub.repos["models/me/planner"] = repo
    assert fetch(["me/planner", "--role", "planner"]) == 0
    assert hub.fetched().count("model.safetensors") == 2
    repo.served["model.safetensors"] = [bad, bad]
    with pytest.raises(ModelError, match=r"model\.safetensors came with the checksum") as caught:
        fetch(["me/planner", "--role", "planner", "--force"])
    assert caught.value.code == "bad_checksum"
    kept = home / "cache" / "hub" / "me--planner" / "model.safetensors"
    assert kept.read_bytes() == b"weights" * 1000  # what was there stays, what came damaged goes
    assert list(kept.parent.glob(".*.part")) == []


@pytest.mark.parametrize("role", ["executor", "planner"])
def test_another_base_model_is_refused_before_its_weights_come(hub: hubs.Hub, role: str) -> None:
    other = QWEN3 if role == "executor" else VISION
    hub.repos["models/me/other"] = hubs.Repo(model(other))
    with pytest.raises(ModelError, match=f"the {role} is a Qwen") as caught:
        fetch(["me/other", "--role", role])
    assert caught.value.code == "wrong_base"
    assert "--role" in caught.value.remedy
    assert "model.safetensors" not in hub.fetched()
    assert fetch(["me/other", "--role", role, "--any-model"]) == 0


def test_another_size_of_the_right_family_is_refused(hub: hubs.Hub) -> None:
    hub.repos["models/me/small"] = hubs.Repo(model(QWEN3 | {"hidden_size": 1024}))
    with pytest.raises(ModelError, match="1024 wide, 36 layers") as caught:
        fetch(["me/small", "--role", "planner"])
    assert "--any-model" in caught.value.remedy


def test_a_missing_template_is_named_and_one_put_there_is_taken(hub: hubs.Hub, home: Path) -> None:
    hub.repos["models/me/planner"] = hubs.Repo(model(QWEN3, template=None))
    with pytest.raises(ModelError) as caught:
        fetch(["me/planner", "--role", "planner"])
    assert caught.value.code == "no_template"
    assert "Qwen/Qwen3-8B" in caught.value.remedy
    (home / "cache" / "hub" / "me--planner" / "chat_template.jinja").write_text(CHATML)
    assert fetch(["me/planner", "--role", "planner"]) == 0


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (CHATML.replace("<|im_start|>assistant\n{% endif %}", "ASSISTANT: {% endif %}"), "it writes 'ASSISTANT: '"),
        ("{{ raise_exception('no system message') }}", "no system message"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{% if %}", "fails"),
    ],
)
def test_another_template_is_refused(hub: hubs.Hub, template: str, said: str) -> None:
    hub.repos["models/me/planner"] = hubs.Repo(model(QWEN3, template))
    with pytest.raises(ModelError, match=said) as caught:
        fetch(["me/planner", "--role", "planner"])
    assert caught.value.code == "wrong_template"
    assert "model.safetensors" not in hub.fetched()


@pytest.mark.parametrize(
    ("lost", "code"),
    [("tokenizer.json", "incomplete"), ("preprocessor_config.json", "incomplete"), ("config.json", "no_checkpoint")],
)
def test_what_a_checkpoint_lacks_is_named(hub: hubs.Hub, lost: str, code: str) -> None:
    files = model(VISION)
    del files[lost]
    hub.repos["models/me/executor"] = hubs.Repo(files)
    with pytest.raises(ModelError) as caught:
        fetch(["me/executor", "--role", "executor"])
    assert caught.value.code == code


def test_a_shard_of_the_index_that_is_not_there_is_named(hub: hubs.Hub) -> None:
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    more = {"model.safetensors.index.json": json.dumps(index).encode(), "model-1-of-2.safetensors": b"one"}
    hub.repos["models/me/planner"] = hubs.Repo(model(QWEN3) | more)
    with pytest.raises(ModelError, match=r"lacks model-2-of-2\.safetensors"):
        fetch(["me/planner", "--role", "planner"])


def test_the_folders_of_a_repository_are_named_when_one_is_missing(hub: hubs.Hub) -> None:
    hub.repos["models/LightningCreeper/MIA"] = released()
    with pytest.raises(ModelError) as caught:
        fetch(["LightningCreeper/MIA"])
    assert "Trained-Executor, Trained-Planner" in caught.value.remedy
    with pytest.raises(ModelError, match="no 'Trained-Nobody'") as caught:
        fetch(["LightningCreeper/MIA/Trained-Nobody"])
    assert caught.value.code == "no_entry"


def test_gated_missing_failing_and_unreachable_hubs_say_what_to_do(
    hub: hubs.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["models/me/gated"] = hubs.Repo(model(QWEN3), gated=True)
    hub.repos["models/me/planner"] = hubs.Repo(model(QWEN3))

    def fault(*words: str) -> tuple[str, bool, str]:
        with pytest.raises(ModelError) as caught:
            fetch(words)
        return caught.value.code, caught.value.retryable, caught.value.remedy

    code, _, remedy = fault("me/gated")
    assert (code, f"{hub.url}/me/gated" in remedy, "HF_TOKEN" in remedy) == ("gated", True, True)
    assert fault("me/nothing")[0] == "no_repo"
    assert fault("me/planner", "--revision", "v9")[0] == "no_revision"
    hub.down = 503
    assert fault("me/planner")[:2] == ("hub_failed", True)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fault("me/planner")[:2] == ("no_connection", True)


@pytest.mark.parametrize(
    "path",
    ["../outside.json", "a/../../outside.json", "/etc/outside.json", "..\\outside.json", "C:outside.json",
     ".lock", "a/.b.0.part", "a//b.json"],
)  # fmt: skip
def test_a_name_that_leaves_the_folder_is_refused_and_nothing_is_fetched(hub: hubs.Hub, home: Path, path: str) -> None:
    hub.repos["datasets/me/data"] = hubs.Repo({"rows.jsonl": b"{}", path: b"{}"})
    with pytest.raises(DataError) as caught:
        fetch(["datasets/me/data"])
    assert caught.value.code == "unsafe_name"
    assert hub.fetched() == []
    assert [p for p in home.rglob("*") if p.is_file()] == []


def test_an_adapter_is_used_on_its_base(hub: hubs.Hub, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct", "r": 2}
    files = {"adapter_config.json": json.dumps(config).encode(), "adapter_model.safetensors": b"weights"}
    hub.repos["models/me/tiny"] = hubs.Repo({f"executor/{name}": data for name, data in files.items()})
    assert fetch(["me/tiny/executor", "--role", "executor"]) == 0
    profile = load(RunConfig, Path(said(capsys)[-1]))
    endpoint = profile.models.of("executor")
    assert endpoint.url == "embedded:"
    assert (Path(endpoint.extra_body["adapter"]) / "adapter_model.safetensors").read_bytes() == b"weights"


def test_a_private_repository_is_read_with_a_token(hub: hubs.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["models/me/secret"] = hubs.Repo(model(QWEN3), private=True)
    with pytest.raises(ModelError, match="private"):
        fetch(["me/secret"])
    monkeypatch.setenv("HF_TOKEN", hubs.TOKEN)
    assert fetch(["me/secret"]) == 0


def test_a_model_without_a_role_plays_all_and_may_have_any_base(
    hub: hubs.Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    template = CHATML.replace("<|im_start|>", "[").replace("<|im_end|>", "]")
    hub.repos["models/me/other"] = hubs.Repo(model({"model_type": "llama", "hidden_size": 64}, template))
    assert fetch(["me/other"]) == 0
    profile = load(RunConfig, Path(said(capsys)[-1]))
    assert profile.models.default.url.endswith("/me--other")


async def test_a_fetched_model_answers(hub: hubs.Hub, home: Path) -> None:
    pytest.importorskip("torch")
    from mia.chat import open_chat
    from mia.types import Message, Sampling
    from tests import tiny_models

    made = tiny_models.chat_llama(home / "made")
    hub.repos["models/me/llama"] = hubs.Repo({path.name: path.read_bytes() for path in made.iterdir()})
    profile = home / "llama.toml"
    assert fetch(["me/llama", "--profile", str(profile)]) == 0
    replies = []
    for endpoint in (load(RunConfig, profile).models.of("planner"), Endpoint(url=f"local:{made}")):
        chat = open_chat(endpoint)
        replies.append(
            await chat.generate([Message(role="user", text="one two")], Sampling(max_tokens=6, temperature=0))
        )
        await chat.aclose()
    assert replies[0].tokens == replies[1].tokens
    assert replies[0].tokens


@pytest.mark.parametrize(("name", "role", "config"), [("qwen2_5_vl", "executor", VISION), ("qwen3", "planner", QWEN3)])
def test_the_base_models_own_templates_are_right(hub: hubs.Hub, name: str, role: str, config: dict[str, Any]) -> None:
    trl = pytest.importorskip("trl")
    template = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()
    hub.repos["models/me/model"] = hubs.Repo(model(config, template))
    assert fetch(["me/model", "--role", role]) == 0
    other = (Path(trl.__file__).parent / "chat_templates" / "llama3.jinja").read_bytes()
    hub.repos["models/me/wrong"] = hubs.Repo(model(config) | {"chat_template.jinja": other})
    with pytest.raises(ModelError, match="start_header_id") as caught:
        fetch(["me/wrong", "--role", role])
    assert caught.value.code == "wrong_template"


def test_data_comes_with_a_profile_that_names_it(hub: hubs.Hub, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"Train/fvqa.parquet": b"rows", "Test/a.jsonl": b"a", "Test/b.jsonl": b"b", "TTRL/Explore/x.parquet": b"x"}
    hub.repos["datasets/LightningCreeper/MIA"] = hubs.Repo(files, large=(".parquet",))
    assert fetch(["mia-train"]) == 0
    folder, profile = said(capsys)
    config = load(GrpoConfig, Path(profile))
    assert config.dataset.name == "original"
    assert config.dataset.path is not None
    assert config.dataset.path.read_bytes() == b"rows"
    assert hub.fetched() == ["Train/fvqa.parquet"]
    assert fetch(["mia-test"]) == 0  # two files: which one, the user says
    assert load(GrpoConfig, Path(said(capsys)[-1])).dataset.path is None
    assert Path(folder.split("   ")[0]).name == "Train"


def test_a_profile_that_was_changed_is_not_overwritten(hub: hubs.Hub, home: Path) -> None:
    hub.repos["models/me/planner"] = hubs.Repo(model(QWEN3))
    profile = home / "mine.toml"
    words = ["me/planner", "--role", "planner", "--profile", str(profile)]
    assert fetch(words) == 0
    written = profile.read_text()
    profile.write_text(written + "\n[search]\nk = 5\n")
    with pytest.raises(ConfigError, match="already"):
        fetch(words)
    assert "k = 5" in profile.read_text()
    assert fetch([*words, "--force"]) == 0
    assert profile.read_text() == written


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mia-executr"], "no release"),
        (["me/../x"], "no name"),
        (["me/.."], "no name"),
        (["mia-executor", "--role", "planner"], "is the trained Executor"),
        (["me/a", "me/b"], "two models for the role"),
        (["me/a", "mia-train", "--out", "x"], "--out"),
        (["--role", "planner"], "without a NAME"),
    ],
)
def test_words_that_do_not_fit_are_refused(hub: hubs.Hub, words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fetch(words)
    assert hub.fetched() == []


def test_a_disk_that_is_too_small_is_said_before_anything_comes(hub: hubs.Hub, tmp_path: Path) -> None:
    files = {"model.safetensors": File(1 << 60, "0" * 64, "")}
    with pytest.raises(ModelError, match=r"needs 1152921504\.6 GB more") as caught:
        bring(Listing(Source("me/huge"), hubs.COMMIT, files), tmp_path, files)
    assert caught.value.code == "no_space"
    assert hub.seen == []


def test_commands_of_the_readme_are_good_ones() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    found = [line.partition("  #")[0].split()[2:] for line in text.splitlines() if line.startswith("mia model ")]
    assert {words[0] for words in found} == {"fetch", "push"}
    for verb, *words in found:
        args = (fetch_words() if verb == "fetch" else push_words()).parse_args(words)
        assert verb == "push" or set(args.names) <= set(RELEASED)
