"""The web service as its users start it: `mia serve web`, and `bash ./run.sh` in its folder, over real sockets."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from mia.errors import ConfigError
from web_tools.cli import serve
from web_tools.client import WebClient
from web_tools.stub import Answer, Server, found, serving

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def serper() -> Iterator[Server]:
    with serving(lambda request: Answer(found(request.json["q"], 3))) as server:
        yield server


@contextmanager
def started(command: Sequence[str], folder: Path, **environment: str) -> Iterator[str]:
    """A service in a process of its own; yields its URL, and sees to it that it ends well."""
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.search(r"http://127\.0\.0\.1:\d+$", line.strip())
        try:
            assert match is not None, line + process.stderr.read()
            yield match.group()
        finally:
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
        assert process.wait(20) == 0, rest
        assert rest == ""


def flags(serper: Server, folder: Path, *more: str) -> list[str]:
    return ["--port", "0", "--web.base_url", serper.url, "--web.cache.path", str(folder / "cache"), *more]


async def test_live_then_replay(serper: Server, tmp_path: Path) -> None:
    mia = [sys.executable, "-m", "mia.cli", "serve", "web"]
    with started([*mia, *flags(serper, tmp_path)], tmp_path, SERPER_KEY_ID="key", PYTHONPATH=str(ROOT)) as url:
        client = WebClient(url)
        first = await client.search(["Danube", "Inn"], 3)
        await client.aclose()
    asked = len(serper.seen)
    replay = flags(serper, tmp_path, "--web.mode", "replay")
    with started([*mia, *replay], tmp_path, PYTHONPATH=str(ROOT)) as url:
        client = WebClient(url)
        second = await client.search(["Danube", "Inn"], 3)
        [missing] = await client.results(["Enns"], 3)
        await client.aclose()
    assert (asked, len(serper.seen)) == (2, 2)
    assert second == first
    assert [hit.passage.title for hit in first[1]] == ["Inn, page 1", "Inn, page 2", "Inn, page 3"]
    assert missing.failure is not None
    assert missing.failure.code == "not_in_cache"


def test_the_originals_way_to_start(serper: Server, tmp_path: Path) -> None:
    command = ["bash", "./run.sh", *flags(serper, tmp_path)]
    with started(command, ROOT / "web_tools", SERPER_API_KEY="key") as url:
        answer = httpx.get(f"{url}/server/search", params={"q": "Danube"}).json()
    assert answer["result"]["results"].startswith("Results for Danube:\n[1] Danube, page 1")
    assert serper.seen[0].headers["x-api-key"] == "key"


def test_run_sh_is_sound_and_has_help() -> None:
    script = ROOT / "web_tools" / "run.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    shown = subprocess.run(["bash", str(script), "--help"], capture_output=True, text=True, check=True, cwd="/").stdout
    assert "bash ./run.sh" in shown
    assert "bash web_tools/run.sh" in shown


def test_bad_starts_are_told(serper: Server, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SERPER_API_KEY and SERPER_KEY_ID are not set"):
        serve(flags(serper, tmp_path))
    with pytest.raises(ConfigError, match=r"web\.url is set"):
        serve(["--web.url", "http://127.0.0.1:8002"])
    with pytest.raises(ConfigError, match="bases_url"):
        serve(["--web.bases_url", "http://127.0.0.1:8002"])
    with pytest.raises(ConfigError, match="70000"):
        serve(["--port", "70000", "--web.mode", "replay"])
