"""Any sequence of calls: the store against a model of it in plain Python, which knows no SQL, vectors or mirror."""

from __future__ import annotations

import asyncio
import copy
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.protocol import Draft
from memory_serve.store import SqliteMemory
from mia.errors import DataError
from mia.types import Outcome, Question

T = TypeVar("T")
NAMESPACES = ("default", "other")
WORDS = {"short": "1. go", "long": "1. go there\n2. and back"}
Key = tuple[str, str, str]
"""Namespace, town, outcome: at most one memory of each."""


@dataclass
class Model:
    """What should be remembered: for each key the workflow, uses and successes; runs and spent credits."""

    memories: dict[Key, list[Any]] = field(default_factory=dict)
    runs: dict[tuple[str, str], tuple[Key, str]] = field(default_factory=dict)
    keys: set[tuple[str, str]] = field(default_factory=set)

    def add(self, ns: str, town: str, outcome: Outcome, size: str, run: str) -> str:
        """One draft; returns what becomes of it."""
        known = self.runs.get((ns, run))
        if known and (known[1] != "unjudged" or outcome == "unjudged"):
            return "known"
        own, loose = (ns, town, outcome), (ns, town, "unjudged")
        judged = next((k for o in ("correct", "incorrect") if (k := (ns, town, o)) in self.memories), None)
        if outcome == "unjudged" and judged:
            action, holder = "kept", judged
        elif own in self.memories:
            shorter = len(WORDS[size].split()) < len(self.memories[own][0].split())
            action, holder = ("kept" if outcome == "correct" and not shorter else "replaced"), own
        elif loose in self.memories:
            action, holder = "replaced", own
            self.memories[own] = self.memories.pop(loose)
            self.runs = {r: (own if k == loose else k, o) for r, (k, o) in self.runs.items()}
        else:
            action, holder = "stored", own
            self.memories[own] = ["", 0, 0]
        if action != "kept":
            self.memories[holder][0] = WORDS[size]
        self.runs[ns, run] = holder, outcome
        return action

    def credit(self, key: Key, success: bool, once: str) -> None:
        """One use; once for each name."""
        if once and (key[0], once) in self.keys:
            return
        self.keys.add((key[0], once))
        self.memories[key][1] += 1
        self.memories[key][2] += int(success)

    def drop(self, keys: list[Key]) -> None:
        """Forget memories and that their runs were stored."""
        for key in keys:
            del self.memories[key]
        self.runs = {run: held for run, held in self.runs.items() if held[0] not in keys}


class MemoryMachine(RuleBasedStateMachine):
    """Calls the store and the model in step."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.model = Model()
        self.past: list[tuple[str, Model]] = []
        self.runs = 0

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def open(self) -> None:
        self.store = SqliteMemory(MemoryConfig(path=self.folder / "m.db"), HashEncoder())

    def keys(self, ns: str) -> list[Key]:
        return sorted(key for key in self.model.memories if key[0] == ns)

    def ids(self, ns: str) -> dict[Key, str]:
        found = self.wait(self.store.scoped(ns).list(limit=1000))
        return {(ns, m.question.split()[-1].rstrip("?"), m.outcome): m.id for m in found}

    def remember(self, ns: str, before: Model) -> None:
        """A change was made, which undo should take back."""
        same = (before.memories, before.runs) == (self.model.memories, self.model.runs)
        if not same:
            self.past.append((ns, before))

    @rule(
        ns=st.sampled_from(NAMESPACES),
        drafts=st.lists(
            st.tuples(
                st.sampled_from(("Graz", "Linz", "Wels")),
                st.sampled_from(("correct", "incorrect", "unjudged")),
                st.sampled_from(("short", "long")),
                st.integers(0, 12),
            ),
            min_size=1,
            max_size=4,
        ),
    )
    def add(self, ns: str, drafts: list[tuple[str, Outcome, str, int]]) -> None:
        before = copy.deepcopy(self.model)
        wanted = [self.model.add(ns, town, outcome, size, f"{town}{run}") for town, outcome, size, run in drafts]
        sent = [
            Draft(question=f"Which river flows through {town}?", workflow=WORDS[size], outcome=outcome,
                  trajectory_id=f"{town}{run}", source_id=town)
            for town, outcome, size, run in drafts
        ]  # fmt: skip
        assert [a.action for a in self.wait(self.store.scoped(ns).add(sent))] == wanted
        self.remember(ns, before)

    @precondition(lambda self: self.model.memories)
    @rule(data=st.data(), success=st.booleans(), once=st.sampled_from(("", "a", "b")))
    def credit(self, data: st.DataObject, success: bool, once: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.model.memories)))
        before = copy.deepcopy(self.model)
        self.model.credit(key, success, once)
        self.wait(self.store.scoped(key[0]).credit([self.ids(key[0])[key], "unknown"], success, once))
        self.remember(key[0], before)

    @precondition(lambda self: self.model.memories)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model.memories)))
        before = copy.deepcopy(self.model)
        other = next(ns for ns in NAMESPACES if ns != key[0])
        memory_id = self.ids(key[0])[key]
        assert self.wait(self.store.scoped(other).delete([memory_id])) == 0
        assert self.wait(self.store.scoped(key[0]).delete([memory_id, memory_id])) == 1
        self.model.drop([key])
        self.remember(key[0], before)

    @rule(ns=st.sampled_from(NAMESPACES))
    def clear(self, ns: str) -> None:
        before = copy.deepcopy(self.model)
        keys = self.keys(ns)
        assert self.wait(self.store.scoped(ns).clear()) == len(keys)
        self.model.drop(keys)
        self.remember(ns, before)

    @rule()
    def undo(self) -> None:
        if not self.past:
            for ns in NAMESPACES:
                with pytest.raises(DataError, match="nothing to undo"):
                    self.wait(self.store.scoped(ns).undo())
            return
        ns, before = self.past.pop()
        self.wait(self.store.scoped(ns).undo())
        self.model.memories, self.model.runs = before.memories, before.runs  # what was credited once stays so

    @rule()
    def reopen(self) -> None:
        self.wait(self.store.aclose())
        self.open()

    @rule(ns=st.sampled_from(NAMESPACES), town=st.sampled_from(("Graz", "Linz", "Wels")))
    def recall(self, ns: str, town: str) -> None:
        asked = Question(id="asked", text=f"Which river flows through {town}?")
        found = self.wait(self.store.scoped(ns).recall(asked, k=100))
        parts = {"correct": found.successes, "incorrect": found.failures, "unjudged": found.unjudged}
        for outcome, part in parts.items():
            shown = {s.memory.source_id: [s.memory.workflow, s.memory.uses, s.memory.successes] for s in part}
            assert shown == {k[1]: m for k, m in self.model.memories.items() if (k[0], k[2]) == (ns, outcome)}
            for scored in part:
                assert (scored.similarity > 1 - 1e-6) == (scored.memory.source_id == town)
        own = self.wait(self.store.scoped(ns).recall(asked.model_copy(update={"id": town}), k=100))
        everything = (*own.successes, *own.failures, *own.unjudged)
        assert sorted({s.memory.source_id for s in everything} | {town}) == sorted(
            {key[1] for key in self.keys(ns)} | {town}
        )
        assert all(s.memory.source_id != town for s in everything)

    def teardown(self) -> None:
        for ns in NAMESPACES:
            found = self.wait(self.store.scoped(ns).list(limit=1000))
            shown = {(ns, m.source_id, m.outcome): [m.workflow, m.uses, m.successes] for m in found}
            assert shown == {key: memory for key, memory in self.model.memories.items() if key[0] == ns}
        self.wait(self.store.aclose())
        self.loop.close()
        shutil.rmtree(self.folder)


QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much]


class LongMachine(MemoryMachine):
    """The same, for long."""


TestMachine = MemoryMachine.TestCase
TestMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=QUIET)
TestMachineLong = pytest.mark.long(LongMachine.TestCase)
TestMachineLong.settings = settings(
    max_examples=2000, stateful_step_count=40, deadline=None, suppress_health_check=QUIET
)
