"""Runs that users said something about go to memory, with the user's verdict; one run is one memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from memory_serve.protocol import Edit
from memory_serve.store import SqliteMemory
from memory_serve.workflow import Summary, prepare
from mia.chat import ChatModel
from mia.errors import DataError
from mia.types import Judgement
from ttrl_streaming.records import Ask


@dataclass
class Remembering:
    """Keeps runs in memory.

    Attributes:
        store: the memory of all namespaces.
        k: memories of each outcome that are recalled.
        summary: how workflows are made of runs.
        manager: the Manager model, for `summary = "model"`.
    """

    store: SqliteMemory
    k: int
    summary: Summary
    manager: ChatModel | None = None

    def memory(self, namespace: str) -> SqliteMemory:
        """The memory of a namespace."""
        return self.store.scoped(namespace, "streaming")

    async def backup(self, path: Path) -> None:
        """Copy all of it to a new file."""
        await self.store.backup(path)

    async def keep(self, ask: Ask, correct: bool, before: str) -> str:
        """Store the run of a question, and credit what was recalled for it; gives the id of its memory.

        Args:
            ask: the question, with its run.
            correct: what the user said.
            before: the memory that was made of it, if something else was said before: its outcome is changed.

        Returns:
            The id; empty if the run says nothing that could be stored, or a better memory is kept in its place.

        Raises:
            MemoryStoreError: memory is out of order.
            ModelError: the Manager model did not answer.
            ParseError: it wrote no workflow.
        """
        run = ask.rolled.run if ask.rolled is not None else None
        if run is None:
            return ""
        store = self.memory(ask.namespace)
        judgement = Judgement(correct=correct, method="none")
        if before:
            found = await store.get(before)
            if found is not None and found.trajectory_id == run.id and found.outcome != judgement.outcome:
                await store.update(before, Edit(outcome=judgement.outcome, trust="user"), found.version)
            return before if found is not None else ""
        if run.recalled_ids:
            await store.credit(run.recalled_ids, correct, key=run.id)
        try:
            drafted = await prepare(run, judgement, self.summary, self.manager)
        except DataError:  # no call was answered: there is no workflow to remember
            return ""
        (added,) = await store.add([drafted.model_copy(update={"trust": "user"})])
        return "" if added.action == "kept" else added.id
