"""`mia model push` against a stub of the hub: what is sent, what the card says, what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from executor_train.publish_cli import push
from executor_train.record import TrainingRecord, write_record
from mia import embedded
from mia.errors import ConfigError, DataError, ModelError
from tests import hubs

pytest.importorskip("huggingface_hub")
SUMMARY = {
    "complete": True, "ended": None, "dataset": "miniwiki", "method": "mia", "questions": 200, "done": 200,
    "failed": 0, "unjudged": 0, "degraded": 0,
    "em": {"mean": 0.815, "low": 0.755, "high": 0.863, "n": 200}, "over_all": {"em": 0.815},
}  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hubs.Hub]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with hubs.hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        yield made


@pytest.fixture
def final(tmp_path: Path) -> Path:
    """What a run of GRPO on the embedded model leaves, with its checkpoints beside it."""
    folder = tmp_path / "run" / "final"
    folder.mkdir(parents=True)
    config = {"base_model_name_or_path": str(tmp_path / "models" / embedded.NAME), "r": 8}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(b"weights" * 100)
    (folder / "training_args.bin").write_bytes(b"a pickle")
    (folder / "chat_template.jinja").write_text(embedded.TEMPLATE)
    (folder / "README.md").write_text("---\nlibrary_name: peft\n---\n\n- **License:** [More Information Needed]\n")
    write_record(
        folder,
        TrainingRecord(
            command="mia train executor train/executor_tiny --out run", role="executor", method="GRPO",
            base=embedded.HUB, dataset="miniwiki, train", seed=42,
        ),
    )  # fmt: skip
    for step, last in ((9, 0.125), (10, 0.75)):
        state = folder.parent / f"checkpoint-{step}" / "trainer_state.json"
        state.parent.mkdir()
        log: list[dict[str, Any]] = [{"step": n, "reward": n / 100, "loss": -n} for n in range(1, 40)]
        state.write_text(json.dumps({"log_history": [*log, {"step": 40, "reward": last, "clip_ratio/low_min": 1.0}]}))
    return folder


def sent(hub: hubs.Hub, *words: str, token: str = hubs.TOKEN) -> subprocess.CompletedProcess[str]:
    """`mia model push` as a user runs it; uploads by LFS, since the stub has no other way."""
    return subprocess.run(
        [Path(sys.executable).parent / "mia", "model", "push", *words],
        env=os.environ
        | {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1", "HF_HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )


def card(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert push([*words, "--dry-run"]) == 0
    return capsys.readouterr().out


def test_a_dry_run_shows_card_and_files_and_sends_nothing(
    hub: hubs.Hub, final: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push([str(final), "me/tiny", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert hub.seen == []
    head, _, text = shown.out.removeprefix("---\n").partition("\n---\n")
    assert set(head.splitlines()) >= {
        f"base_model: {embedded.HUB}", "license: apache-2.0", "library_name: peft", "pipeline_tag: text-generation",
        "- mia", "- grpo", "- lora",
    }  # fmt: skip
    assert "# tiny\n" in text
    assert "```bash\nmia train executor train/executor_tiny --out run\n```" in text
    assert "seed 42" in text
    assert "miniwiki, train" in text
    assert "mia model fetch me/tiny --role executor --profile tiny.toml" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[0] == "| step | loss | reward |"  # the curve of the last checkpoint
    assert rows[2] == "| 1 | -1 | 0.01 |"
    assert rows[-1] == "| 40 |  | 0.75 |"
    assert len(rows) == 2 + 12
    assert "weights" not in text
    assert "adapter_model.safetensors" in shown.err
    assert "left out  training_args.bin" in shown.err


def test_a_push_makes_the_repository_and_sends_all_in_one_commit(hub: hubs.Hub, final: Path) -> None:
    done = sent(hub, str(final), "me/tiny", "--private", "--revision", "v1", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["address"] == f"{hub.url}/me/tiny/tree/{hubs.COMMIT}"
    repo = hub.repos["models/me/tiny"]
    assert repo.private
    assert [commit["branch"] for commit in hub.commits] == ["v1"]
    kept = {"README.md", "adapter_config.json", "adapter_model.safetensors", "chat_template.jinja", "training.json"}
    assert set(repo.files) == set(shown["files"]) == kept
    assert repo.files["adapter_model.safetensors"] == (final / "adapter_model.safetensors").read_bytes()
    config = json.loads(repo.files["adapter_config.json"])
    assert config == {"base_model_name_or_path": embedded.HUB, "r": 8}  # not a folder of this machine
    assert b"mia train executor train/executor_tiny" in repo.files["README.md"]


def test_what_was_pushed_can_be_fetched(
    hub: hubs.Hub, final: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from executor_train.hub_cli import fetch
    from inference.config import RunConfig
    from mia.config import load

    assert sent(hub, str(final), "me/tiny").returncode == 0
    monkeypatch.setenv("MIA_CACHE", str(tmp_path / "cache"))
    profile = tmp_path / "tiny.toml"
    assert fetch(["me/tiny", "--role", "executor", "--profile", str(profile)]) == 0
    endpoint = load(RunConfig, profile).models.of("executor")
    assert endpoint.url == "embedded:"
    folder = Path(endpoint.extra_body["adapter"])
    assert (folder / "adapter_model.safetensors").read_bytes() == (final / "adapter_model.safetensors").read_bytes()


def test_a_card_in_the_folder_wins(hub: hubs.Hub, final: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (final / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    assert card(str(final), "me/tiny", capsys=capsys) == "---\nlicense: mit\n---\n# Mine\n\n"


def test_an_evaluation_is_told_with_its_interval(
    hub: hubs.Hub, final: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "eval"
    run.mkdir()
    (run / "config.json").write_text('{"config": {}}')
    with pytest.raises(DataError, match="no summary"):
        push([str(final), "me/tiny", "--dry-run", "--eval", str(run)])
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    text = card(str(final), "me/tiny", "--eval", str(run), capsys=capsys)
    assert "miniwiki, method mia, 200 questions" in text
    assert "| EM | 81.5 | 75.5 to 86.3 | 200 | 81.5 |" in text


def test_a_whole_model_is_known_by_its_shape(hub: hubs.Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = {"hidden_size": 3584, "num_hidden_layers": 28}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", "text_config": text}))
    for name in ("tokenizer.json", "preprocessor_config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    shown = card(str(tmp_path), "me/executor", capsys=capsys)
    assert "base_model: Qwen/Qwen2.5-VL-7B-Instruct\n" in shown
    assert "pipeline_tag: image-text-to-text\n" in shown
    assert "## Training" not in shown  # nothing is known of it, so nothing is said
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks model\.safetensors"):
        push([str(tmp_path), "me/executor", "--dry-run"])


def test_base_and_licence_must_be_known(hub: hubs.Hub, final: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (final / "training.json").unlink()
    config = {"base_model_name_or_path": "/somewhere/else"}
    (final / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="/somewhere/else") as caught:
        push([str(final), "me/tiny", "--dry-run"])
    assert "--base" in caught.value.remedy
    with pytest.raises(ConfigError, match="licence") as caught:
        push([str(final), "me/tiny", "--dry-run", "--base", "someone/model"])
    assert "--licence" in caught.value.remedy
    shown = card(str(final), "me/tiny", "--base", "someone/model", "--licence", "mit", capsys=capsys)
    assert "base_model: someone/model\n" in shown
    assert "license: mit\n" in shown


def test_no_token_a_wrong_one_and_a_public_repository_are_refused(hub: hubs.Hub, final: Path) -> None:
    done = sent(hub, str(final), "me/tiny", token="")
    assert (done.returncode, "config/no_token" in done.stderr, hub.seen) == (2, True, [])
    done = sent(hub, str(final), "me/tiny", token="hf_wrong")
    assert done.returncode == 1
    assert "model/no_" in done.stderr
    assert "HF_TOKEN" in done.stderr
    hub.repos["models/me/tiny"] = hubs.Repo()
    done = sent(hub, str(final), "me/tiny", "--private")
    assert done.returncode == 2
    assert "is public already" in done.stderr
    assert hub.repos["models/me/tiny"].files == {}


@pytest.mark.parametrize(
    ("place", "repo", "said"),
    [
        ("run", "me/tiny", r"give .*/final"),
        ("nowhere", "me/tiny", "no folder"),
        ("run/final", "tiny", "no name"),
        ("run/final", "me/tiny/more", "no repository"),
        ("run/final", "datasets/me/tiny", "no repository"),
    ],
)
def test_words_that_do_not_fit_are_refused(hub: hubs.Hub, final: Path, place: str, repo: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        push([str(final.parents[1] / place), repo])
    assert hub.seen == []


def test_a_folder_is_written_with_rounded_weights_and_nothing_is_sent(
    hub: hubs.Hub, final: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    weights = torch.tensor([1.0, 1.001, -3.14159])
    save_file({"a": weights}, final / "adapter_model.safetensors")
    words = [str(final), "me/tiny", "--dtype", "bfloat16", "--to", str(tmp_path / "packed")]
    assert push(words) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "packed")
    packed = load_file(tmp_path / "packed" / "adapter_model.safetensors")["a"]
    assert packed.tolist() == [1.0, 1.0, -3.140625]  # seven bits behind the binary point
    config = json.loads((tmp_path / "packed" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == embedded.HUB
    assert not (tmp_path / "packed" / "training_args.bin").exists()
    assert not hub.commits
    with pytest.raises(ConfigError, match="is there already"):
        push(words)
