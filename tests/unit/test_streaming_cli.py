"""Profiles and verbs of the service that learns: what they set, what they refuse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from inference.cli import read_profile
from mia.errors import ConfigError, ModelError
from ttrl_streaming.cli import chats, replay, serve, stream
from ttrl_streaming.config import StreamConfig, settled


@pytest.mark.parametrize(
    ("name", "batch", "rate"), [("ttrl/streaming_tiny", 8, 1e-4), ("ttrl/streaming", 32, 1e-6)]
)  # fmt: skip
def test_profiles(name: str, batch: int, rate: float, tmp_path: Path) -> None:
    config = settled(read_profile(StreamConfig, name, {}), tmp_path)
    assert (config.streaming.batch, config.streaming.n, config.grpo["learning_rate"]) == (batch, 4, rate)
    assert config.policy.lora_rank > 0
    assert (config.memory.path, config.memory.enabled) == (tmp_path / "memory.db", True)


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        ({"grpo.num_generations": 8}, r"set streaming\.n instead"),
        ({"grpo.max_steps": 8}, "a service has no end"),
        ({"grpo.lr_scheduler_type": "cosine"}, "no last step"),
        ({"memory.path": "x.db"}, "in the folder of its run"),
        ({"memory.url": "http://127.0.0.1:5000"}, "in the folder of its run"),
        ({"streaming.reward": "my_reward"}, "module:function"),
        ({"streaming.keep": 1}, "streaming.keep"),
        ({"streaming.stale": 1}, "staleness"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(flags: dict[str, Any], fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        settled(read_profile(StreamConfig, "ttrl/streaming_tiny", flags), tmp_path)
    assert re.search(fault, str(caught.value))


def test_a_service_has_a_folder() -> None:
    with pytest.raises(SystemExit) as stop:
        serve(["ttrl/streaming_tiny"])
    assert stop.value.code == 2


def test_a_token_that_is_not_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"streaming\.token_env names NOT_SET"):
        serve(["ttrl/streaming_tiny", "--out", str(tmp_path), "--streaming.token_env", "NOT_SET"])


def test_clients_say_that_nobody_serves(tmp_path: Path) -> None:
    nobody = ["--url", "http://127.0.0.1:9"]
    log = tmp_path / "log.jsonl"
    log.write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, '
        '{"role": "user", "content": "c"}]}\n',
        encoding="utf-8",
    )
    for run, words in ((stream, ["status"]), (chats, [str(log)]), (replay, ["--limit", "1"])):
        with pytest.raises(ModelError, match="cannot be reached"):
            run([*words, *nobody])


def test_words_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="rollback"):
        stream(["status", "--version", "1"])
    with pytest.raises(ConfigError, match="--users"):
        replay(["--users", "0"])
