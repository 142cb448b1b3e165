"""The gate: new weights answer held-back questions before they serve, and are refused if they lose too much.

Held back are questions whose feedback brought a reference, drawn by a hash of their ids; they are never learned from.
Both versions play them at temperature 0, and the mean rewards are compared; the old version's are kept, so that only
new questions are played twice. A question that either could not play is left out. With too few questions there is no
gate yet, and the update passes.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from executor_train.game import Row
from ttrl.learner import withheld
from ttrl.records import Rolled
from ttrl_streaming.config import GateConfig
from ttrl_streaming.records import Ask, Entry
from ttrl_streaming.schema import GateOutcome
from ttrl_streaming.store import Store

Play = Callable[..., Awaitable[list[Rolled]]]
Worth = Callable[..., Awaitable[float | None]]


class Gate:
    """See the module.

    Args:
        config: how many questions, and what may be lost.
        store: where held-back questions and their rewards are.
        play: plays rows by the weights of a folder: `(folder, rows, seeds, version, greedy)`.
        worth: the reward of a rollout: `(entry, item, rolled, official)`.
    """

    def __init__(self, config: GateConfig, store: Store, play: Play, worth: Worth) -> None:
        self._config = config
        self._store = store
        self._play = play
        self._worth = worth
        self._after: dict[str, float] = {}

    def holds(self, ask: Ask) -> bool:
        """Whether a question is held back; there is room for so many of a namespace."""
        drawn = int.from_bytes(hashlib.sha256(f"held/{ask.id}".encode()).digest()[:7], "big") / 2**56
        return drawn < self._config.share and len(self._store.held(ask.namespace)) < self._config.questions

    async def measure(self, namespace: str, version: int, folder: Path) -> Mapping[str, float]:
        """Rewards of the held-back questions under the version that serves, by their ids; none where there is no gate.

        Raises:
            MiaError: they could not be played or scored.
        """
        entries = await self._entries(namespace)
        known = await asyncio.to_thread(self._store.gate_rewards, namespace, version)
        found = await self._rewards(folder, version, [entry for entry in entries if entry.ask.id not in known])
        await asyncio.to_thread(self._store.keep_gate_rewards, namespace, version, found)
        asked = {entry.ask.id for entry in entries}
        return {name: reward for name, reward in {**known, **found}.items() if name in asked}

    async def judge(self, namespace: str, before: Mapping[str, float], folder: Path) -> GateOutcome:
        """Whether the weights in a folder may serve.

        Raises:
            MiaError: they could not be played or scored.
        """
        self._after = {}
        entries = [entry for entry in await self._entries(namespace) if entry.ask.id in before]
        if len(entries) < self._config.least:
            return GateOutcome(passed=True, questions=len(entries))
        self._after = await self._rewards(folder, 0, entries)
        both = sorted(self._after.keys() & before.keys())
        if len(both) < self._config.least:
            return GateOutcome(passed=False, questions=len(both))
        old = statistics.fmean(before[name] for name in both)
        new = statistics.fmean(self._after[name] for name in both)
        return GateOutcome(passed=new >= old - self._config.bound - 1e-9, questions=len(both), before=old, after=new)

    async def passed(self, namespace: str, version: int) -> None:
        """Keep what was measured of the weights that are a version now."""
        await asyncio.to_thread(self._store.keep_gate_rewards, namespace, version, self._after)

    async def _entries(self, namespace: str) -> list[Entry]:
        held = await asyncio.to_thread(self._store.held, namespace)
        held = held[: self._config.questions]
        return held if len(held) >= self._config.least else []

    async def _rewards(self, folder: Path, version: int, entries: Sequence[Entry]) -> dict[str, float]:
        if not entries:
            return {}
        rows = [_row(entry) for entry in entries]
        rolled = await self._play(folder, rows, [0] * len(rows), version, True)
        worth = {
            entry.ask.id: await self._worth(entry, entry.item, each, False)
            for entry, each in zip(entries, rolled, strict=True)
        }
        return {name: reward for name, reward in worth.items() if reward is not None}


def _row(entry: Entry) -> Row:
    """A held-back question as it was asked."""
    row = withheld(entry.ask.question)
    run = entry.ask.rolled.run if entry.ask.rolled is not None else None
    if run is None:
        return row
    return row.model_copy(update={"recalled": run.recalled, "recalled_again": run.recalled_again})
