"""kill -9 of the service while eight writers add and credit through HTTP: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from memory_serve.client import MemoryClient
from memory_serve.config import MemoryConfig
from memory_serve.protocol import Draft
from mia.errors import MemoryStoreError
from tests import postgres

WRITERS = 8
SERVICE = """
import sys
from memory_serve.app import create_app
from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.open import open_served
from mia.http import serve

config = MemoryConfig.model_validate_json(sys.argv[1])
serve("127.0.0.1", 0, lambda: (create_app(open_served(config, HashEncoder())), "it"))
"""


@pytest.fixture(params=["sqlite", "postgres"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryConfig:
    """Of a new memory."""
    return MemoryConfig(path=tmp_path / "m.db") if request.param == "sqlite" else postgres.config()


class Acknowledged:
    """What the service said it had done."""

    def __init__(self) -> None:
        self.stored: dict[str, str] = {}
        """Run to memory."""
        self.credits: Counter[str] = Counter()
        self.credits_sent: Counter[str] = Counter()
        self.deleted: set[str] = set()
        self.deletions_sent: set[str] = set()


async def write(client: MemoryClient, name: str, said: Acknowledged, chance: random.Random) -> None:
    """Add, credit and delete until the service is gone."""
    number = 0
    while True:
        number += 1
        run = f"{name}n{number}"  # one word: the encoder of the service does not know the order of words
        draft = Draft(question=f"Which river flows through {run}?", workflow="1. x", outcome="correct",
                      source_id=run, trajectory_id=run)  # fmt: skip
        try:
            (added,) = await client.add([draft])
            assert added.action == "stored"
            said.stored[run] = added.id
            said.credits_sent[added.id] += 1
            await client.credit([added.id], success=True)
            said.credits[added.id] += 1
            if chance.random() < 0.1:
                said.deletions_sent.add(added.id)
                await client.delete([added.id])
                said.deleted.add(added.id)
        except MemoryStoreError:
            return


def start(config: MemoryConfig) -> subprocess.Popen[str]:
    """The service, as a process of its own."""
    command = [sys.executable, "-c", SERVICE, config.model_dump_json()]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


async def one_round(config: MemoryConfig, number: int, said: Acknowledged) -> None:
    chance = random.Random(number)
    process = await asyncio.to_thread(start, config)
    try:
        assert process.stderr is not None
        line = await asyncio.to_thread(process.stderr.readline)
        client = MemoryClient(line.split(" at ")[1].strip(), retries=0)
        writers = [asyncio.create_task(write(client, f"r{number}w{w}", said, chance)) for w in range(WRITERS)]
        await asyncio.sleep(0.1 + 0.4 * chance.random())
        process.send_signal(signal.SIGKILL)
        await asyncio.gather(*writers)
        await client.aclose()
    finally:
        process.kill()
        process.communicate()


def read(config: MemoryConfig) -> list[tuple[str, str, int]]:
    """Id, run and uses of all memories, read without our code; a file must be sound."""
    query = "SELECT id, trajectory_id, uses FROM memories"
    if config.url:
        import psycopg

        with psycopg.connect(config.url, options=f"-c search_path={config.postgres.schema_name}") as database:
            return database.execute(query).fetchall()
    connection = sqlite3.connect(config.path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    rows = connection.execute(query).fetchall()
    connection.close()
    return rows


def check(config: MemoryConfig, said: Acknowledged) -> None:
    rows = read(config)
    found = {memory_id: uses for memory_id, _, uses in rows}
    assert len({run for _, run, _ in rows}) == len(rows), "a run is stored twice"
    wanted = set(said.stored.values())
    assert wanted - said.deletions_sent <= found.keys(), "an acknowledged memory is lost"
    assert not said.deleted & found.keys(), "a deleted memory is back"
    for memory_id in wanted & found.keys():
        assert said.credits[memory_id] <= found[memory_id] <= said.credits_sent[memory_id]


async def killed(config: MemoryConfig, rounds: int) -> None:
    said = Acknowledged()
    for number in range(rounds):
        await one_round(config, number, said)
        check(config, said)
    assert len(said.stored) > rounds


async def test_killed_three_times(config: MemoryConfig) -> None:
    await killed(config, 3)


@pytest.mark.long
async def test_killed_fifty_times(config: MemoryConfig) -> None:
    await killed(config, 50)
