"""kill -9 in the middle of 200 writes, at random: what was acknowledged is there after the restart, once."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.store import SqliteMemory
from mia.types import Memory, Question

WRITES = 200

CHILD = """
import asyncio, sys
from pathlib import Path
from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.protocol import Draft
from memory_serve.store import SqliteMemory

async def main():
    path, start, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = SqliteMemory(MemoryConfig(path=path), HashEncoder())
    for n in range(start, start + count):
        draft = Draft(question=f"Which river flows through town{n}?", workflow=f"1. Search: town{n}",
                      outcome="correct", source_id=f"q{n}", trajectory_id=f"t{n}")
        (added,) = await store.add([draft])
        print("stored", added.id, n, added.action, flush=True)
        await store.credit([added.id], True)
        print("credited", added.id, n, flush=True)
    await store.aclose()

asyncio.run(main())
"""


def moment(chance: random.Random) -> int:
    """After how many acknowledged writes (each memory is stored, then credited) to kill."""
    return chance.randrange(1, 2 * WRITES * 3 // 4)


def write_and_die(path: Path, after: int | None) -> tuple[dict[int, str], set[int]]:
    """Run the child and kill it once it has acknowledged so many writes; ids and credits it had acknowledged."""
    command = [sys.executable, "-c", CHILD, str(path), "0", str(WRITES)]
    stored: dict[int, str] = {}
    credited: set[int] = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            kind, memory_id, number, *_ = line.split()
            if kind == "stored":
                stored[int(number)] = memory_id
            else:
                credited.add(int(number))
            if len(stored) + len(credited) == after:
                child.send_signal(signal.SIGKILL)
                # What it wrote to the pipe before it died was acknowledged too: the loop goes on to the end.
    # On a busy machine it may have come to its end before the kill reached it.
    assert child.returncode == -signal.SIGKILL or (child.returncode == 0 and len(credited) == WRITES)
    return stored, credited


def reopen(path: Path) -> tuple[dict[int, Memory], int]:
    """All memories by the number in their question, and how many are recalled; the file must be sound."""

    async def run() -> tuple[Sequence[Memory], int]:
        store = SqliteMemory(MemoryConfig(path=path), HashEncoder())
        memories = await store.list(limit=1000)
        recalled = await store.recall(Question(id="new", text="Which river flows through town0?"), k=100)
        await store.aclose()
        return memories, len(recalled.ids)

    memories, recalled = asyncio.run(run())
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()
    numbered = {int(m.source_id[1:]): m for m in memories}
    assert len(numbered) == len(memories), "a memory is there twice"
    return numbered, recalled


def one_round(path: Path, after: int) -> None:
    stored, credited = write_and_die(path, after)
    found, recalled = reopen(path)
    assert {n: m.id for n, m in found.items() if n in stored} == stored, "an acknowledged memory is gone"
    # At most the one write that was under way may be there without its acknowledgement having come through.
    assert len(found) - len(stored) in (0, 1)
    assert {n for n in credited if (found[n].uses, found[n].successes) != (1, 1)} == set()
    assert all(m.workflow == f"1. Search: town{n}" and m.uses in (0, 1) for n, m in found.items())
    assert recalled == min(len(found), 100)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_once(tmp_path: Path, seed: int) -> None:
    one_round(tmp_path / "m.db", moment(random.Random(seed)))


@pytest.mark.long
@pytest.mark.parametrize("number", range(10))
def test_killed_ten_times_at_random(tmp_path: Path, number: int) -> None:
    one_round(tmp_path / "m.db", moment(random.SystemRandom()))


@pytest.mark.long
def test_killed_again_and_again_on_one_file_until_all_is_written(tmp_path: Path) -> None:
    chance, path = random.Random(7), tmp_path / "m.db"
    for _ in range(5):
        # Each run begins with the first memory again; those that were stored before are known by their run.
        stored, _ = write_and_die(path, moment(chance))
        found, _ = reopen(path)
        assert {n: m.id for n, m in found.items() if n in stored} == stored
    stored, _ = write_and_die(path, None)
    found, _ = reopen(path)
    assert {n: m.id for n, m in found.items()} == stored
    assert len(stored) == WRITES


OPENER = """
import sys, time
from pathlib import Path
from memory_serve.database import Database

print("ready", flush=True)
sys.stdin.readline()
Database(Path(sys.argv[1]), busy_s=5).close()
"""


def test_a_new_file_opened_by_several_processes_at_the_same_moment(tmp_path: Path) -> None:
    """SQLite itself answers all but one of them with `database is locked` at once."""
    for attempt in range(3):
        command = [sys.executable, "-c", OPENER, str(tmp_path / f"{attempt}.db")]
        children = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(5)
        ]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        ends = [(child.communicate(timeout=60)[1], child.returncode) for child in children]
        assert ends == [("", 0)] * 5


@pytest.mark.parametrize("processes", [4])
def test_several_processes_on_one_new_file(tmp_path: Path, processes: int) -> None:
    """They create it at once and write at once: nothing is lost, and nobody is told that the file is locked."""
    path, each = tmp_path / "m.db", 25
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), str(n * each), str(each)], stdout=subprocess.PIPE, text=True
        )
        for n in range(processes)
    ]
    stored: dict[int, str] = {}
    for child in children:
        out, _ = child.communicate(timeout=120)
        assert child.returncode == 0
        stored |= {int(line.split()[2]): line.split()[1] for line in out.splitlines() if line.startswith("stored")}
    found, recalled = reopen(path)
    assert {n: m.id for n, m in found.items()} == stored
    assert len(stored) == processes * each == recalled
    assert all((m.uses, m.successes) == (1, 1) for m in found.values())
