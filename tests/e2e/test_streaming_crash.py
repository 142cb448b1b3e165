"""The real command in a process of its own, killed while it learns and answers: nothing that it said is lost."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mia.cli import main
from tests import tiny_models
from tests.doubles import chat_endpoint
from tests.evaluating import wire
from tests.streaming import executor
from ttrl_streaming.client import StreamingClient
from ttrl_streaming.schema import AskRequest, FeedbackItem

pytest.importorskip("trl")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]


@contextmanager
def served(words: list[str], log: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, and its address; killed in the end. Its log goes to a file, which never fills up."""
    command = [sys.executable, "-m", "mia.cli", "serve", "stream", *words, "--port", "0"]
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file, text=True)
    try:
        while (found := re.search(r"at (http://\S+)\n", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield process, found.group(1)
    finally:
        process.kill()
        process.wait()


def small_index(place: Path) -> Path:
    """An index of one passage."""
    corpus = place / "corpus.jsonl"
    corpus.write_text(
        json.dumps({"id": "1", "contents": "Vienna\nVienna lies on the Danube."}) + "\n", encoding="utf-8"
    )
    assert main(["index", "build", str(corpus), "--out", str(place / "index"), "--engines", "bm25"]) == 0
    return place / "index"


def children(pid: int) -> list[int]:
    """Processes that a process started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def training(client: StreamingClient) -> None:
    async with asyncio.timeout(300):
        while (await client.status()).trainer != "training":
            pass


def ended(pids: list[int]) -> bool:
    """Whether processes end within a minute."""
    limit = time.monotonic() + 60
    while not all(map(gone, pids)):
        if time.monotonic() > limit:
            return False
        time.sleep(0.1)
    return True


async def test_killed_while_it_learns_and_answers(tmp_path: Path) -> None:
    place = tiny_models.chat_llama(tmp_path / "model", positions=4096)
    index = small_index(tmp_path)
    with chat_endpoint(wire(executor)) as url:
        flags: dict[str, Any] = {
            "policy.path": place, "policy.lora_rank": 4, "rollout.context": 4096, "rollout.limit": 4096,
            "agent.planner.max_tokens": 8, "agent.reflector.max_tokens": 4, "models.executor.url": url,
            "grpo.learning_rate": 0.05, "streaming.memory": "false", "streaming.batch": 4, "streaming.n": 2,
            "streaming.gate.questions": 0, "search.index": index,
        }  # fmt: skip
        words = ["ttrl/streaming_tiny", "--out", str(tmp_path / "run")]
        words += [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        with served(words, tmp_path / "one.log") as (process, address):
            client = StreamingClient(address)
            answers = [await client.ask(AskRequest(question=f"Is {n} lucky?", id=f"q{n}")) for n in range(8)]
            told = [FeedbackItem(id=each.id, reward=float(each.answer == "yes")) for each in answers]
            assert [each.outcome for each in await client.feedback(told)] == ["queued"] * 8
            await training(client)
            asking = asyncio.create_task(client.ask(AskRequest(question="Cut off?", id="cut")))
            await asyncio.sleep(0)
            started = children(process.pid)
            os.kill(process.pid, signal.SIGKILL)
            await asyncio.gather(asking, return_exceptions=True)
            await client.aclose()
        assert ended(started)  # the process that trains ends with its parent
        with served(words, tmp_path / "two.log") as (_, address):
            client = StreamingClient(address)
            status = await client.status()
            settled = sum(status.feedback[name] for name in ("learned", "remembered", "refused"))
            assert settled + status.feedback["queued"] == 8
            again = [await client.ask(AskRequest(question=f"Is {n} lucky?", id=f"q{n}")) for n in range(8)]
            assert again == answers
            assert (await client.ask(AskRequest(question="Cut off?", id="cut"))).answer in ("yes", "no")
            await client.flush()
            status = await client.status()
            assert (status.feedback["queued"], status.answered, status.failed) == (0, 9, 0)
            assert status.version == status.updates >= 1
            assert {each.outcome for each in await client.feedback(told)} == {"known"}
            await client.aclose()
