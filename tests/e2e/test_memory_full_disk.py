"""A disk that really is full: a small file system in RAM, in a namespace of its own (Linux)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

CHILD = """
import asyncio, json, sys
from pathlib import Path
from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.protocol import Draft
from memory_serve.store import SqliteMemory
from mia.errors import MemoryStoreError
from mia.types import Question

folder, size = Path(sys.argv[1]), int(sys.argv[2])

def draft(n, words=500):
    return Draft(question=f"Which river flows through town{n}?", workflow=f"1. Search: town{n} " + "x " * words,
                 outcome="correct", source_id=f"q{n}", trajectory_id=f"t{n}")

async def state(store):
    memories, after = [], ""
    while page := await store.export(after):
        memories += page
        after = page[-1].id
    recalled = await store.recall(Question(id="new", text="Which river flows through town1?"), k=100)
    return {m.source_id: m.id for m in memories}, sorted(recalled.ids)

async def main():
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(size // 4))
    config = MemoryConfig(path=folder / "m.db")
    store = SqliteMemory(config, HashEncoder())
    stored, refused, codes = {}, set(), set()

    async def client(k):
        for n in range(k, 10**6, 8):
            try:
                (added,) = await store.add([draft(n)])
            except MemoryStoreError as error:
                refused.add(n)
                codes.add((error.code, error.retryable, error.remedy))
                return
            stored[f"q{n}"] = added.id

    await asyncio.gather(*(client(k) for k in range(8)))
    told = {"codes": sorted(codes), "acknowledged": stored, "refused": sorted(f"q{n}" for n in refused)}
    told["full"] = await state(store)  # reading still works
    # What was refused was a whole group; less of it may still fit. These are larger than all that can be left.
    (told["retry"],) = {e.code for e in await asyncio.gather(
        *(store.add([draft(n, 90_000)]) for n in range(10**6, 10**6 + 3)), return_exceptions=True)}
    ballast.unlink()
    told["again"] = {f"q{n}": (await store.add([draft(n)]))[0].action for n in sorted(refused)}
    told["freed"] = await state(store)
    await store.aclose()
    store = SqliteMemory(config, HashEncoder())
    told["reopened"] = await state(store)
    await store.aclose()
    print(json.dumps(told))

asyncio.run(main())
"""


def isolated(*command: str) -> list[str]:
    """The command in a namespace where it may mount; a test is skipped where that is not allowed."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no `unshare` here")
    start = [unshare, "--user", "--map-root-user", "--mount"]
    if subprocess.run([*start, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system gives no namespaces to users")
    return [*start, *command]


def test_nothing_acknowledged_is_lost_when_the_disk_is_full(tmp_path: Path) -> None:
    size = 4_000_000
    mount = 'mount -t tmpfs -o size="$1" none "$2" && exec "$3" -c "$4" "$2" "$1"'
    command = isolated("sh", "-c", mount, "sh", str(size), str(tmp_path), sys.executable, CHILD)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["codes"] == [["disk_full", True, "free some space; nothing that was acknowledged is lost"]]
    assert told["retry"] == "disk_full"
    stored, refused = told["acknowledged"], told["refused"]
    assert len(stored) > 50
    assert len(refused) == 8
    memories, recalled = told["full"]
    assert memories == stored
    assert set(recalled) <= set(stored.values())
    assert len(recalled) == min(100, len(stored))
    # With room again, the same store takes what it refused, once each.
    assert told["again"] == dict.fromkeys(refused, "stored")
    memories, _ = told["freed"]
    assert {name: memories[name] for name in stored} == stored
    assert set(memories) == {*stored, *refused}
    assert told["reopened"] == told["freed"]
