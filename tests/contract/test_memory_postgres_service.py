"""`mia serve memory` over PostgreSQL: the real command, twice over one database, and the client."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from memory_serve.client import MemoryClient
from memory_serve.protocol import Draft
from mia.types import Question
from tests import postgres

pytestmark = pytest.mark.skipif(bool(postgres.MISSING), reason=postgres.REASON)


@contextmanager
def served(url: str, schema: str) -> Iterator[str]:
    """The command's address; it is ended by an interrupt, which must give exit code 0."""
    command = [sys.executable, "-m", "memory_serve", "--memory.url", url, "--port", "0"]
    command += ["--memory.postgres.schema_name", schema]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        try:
            assert re.match("serving .* at http://127.0.0.1:", said), said + process.stderr.read()
            yield said.rpartition(" at ")[2].strip()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def draft(number: int) -> Draft:
    run = f"t{number}"
    return Draft(question=f"Who wrote book {number} of the series?", workflow="1. Search: the series",
                 outcome="correct", source_id=f"q{number}", trajectory_id=run)  # fmt: skip


async def test_two_services_over_one_database_are_one_memory() -> None:
    config = postgres.config()
    with ExitStack() as stack:
        urls = [stack.enter_context(served(config.url, config.postgres.schema_name)) for _ in range(2)]
        one, two = (MemoryClient(url) for url in urls)
        # Everything is sent to both services: each question must be stored once.
        sent = [client.add([draft(n)]) for n in range(12) for client in (one, two)]
        added = [a for (a,) in await asyncio.gather(*sent)]
        assert sorted(a.action for a in added) == ["known"] * 12 + ["stored"] * 12
        assert len({a.id for a in added}) == 12
        found = await two.recall(Question(id="asked", text="Who wrote book 3 of the series?"), k=1)
        (best,) = found.successes
        assert best.memory.source_id == "q3"
        assert best.similarity == pytest.approx(1.0, abs=1e-5)
        await one.credit([best.memory.id], success=True, key="run")
        await two.credit([best.memory.id], success=True, key="run")
        memory = await two.get(best.memory.id)
        assert memory is not None
        assert (memory.uses, memory.successes) == (1, 1)
        assert await one.delete([best.memory.id]) == 1
        assert (await two.stats()).memories == 11
        assert (await two.undo()).action == "delete"
        assert (await one.stats()).memories == 12
        for client in (one, two):
            await client.aclose()
