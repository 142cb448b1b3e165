"""What happens to feedback in the background: it is scored, remembered, and learned from in batches, behind a gate.

    scored      the reward says what the official answer is worth; a failure leaves the feedback in the queue
    remembered  the run goes to memory with the user's verdict
    learned     a batch that is due (full, or old enough, or flushed) makes one step of the optimiser

Where feedback brings a reference, the question is played n - 1 times more by the weights that serve, all n rollouts are
scored by the reference, and they are a group of GRPO. Where it only tells of the official answer, that one rollout is
held against earlier rewards: advantage = (reward - mean) / (deviation + 1e-4), over the last `window` official answers
of the namespace, the batch included. The loss is GRPO's in both cases, with the ratio of the weights now to the
log-probabilities that were recorded when the answer was given, clipped; answers that are more than `staleness` versions
old go to memory only. Left out: answering (`ttrl_streaming.service`), the gate's rule (`ttrl_streaming.gate`).
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import shutil
import statistics
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from executor_train.game import Row
from executor_train.reward import planner_format
from inference.config import JudgeConfig
from mia.chat import ChatModel
from mia.errors import MiaError, as_error
from mia.types import Failure
from planner_train.rows import recalled_rows
from ttrl.learner import Baseline, Update, withheld
from ttrl.records import Rolled
from ttrl_streaming.config import StreamingSection
from ttrl_streaming.gate import Gate
from ttrl_streaming.process import Trains
from ttrl_streaming.records import Entry, Settling, Stepped
from ttrl_streaming.remembering import Remembering
from ttrl_streaming.reward import Reward, case_of, read_words
from ttrl_streaming.schema import FeedbackItem
from ttrl_streaming.serving import Weights
from ttrl_streaming.store import Store
from ttrl_streaming.trainer import Play, Step, first_folder

_CHUNK = 32


def folder_of(out: Path, namespace: str, version: int) -> Path:
    """Where a version of a namespace is."""
    return out / "namespaces" / namespace / f"{version:06d}" if version else first_folder(out)


@dataclass
class _Batch:
    """Feedback that is learned from together, with its rollouts and their rewards."""

    entries: list[Entry]
    groups: list[tuple[Rolled, ...]]
    rewards: list[tuple[float | None, ...]]
    baselines: list[Baseline | None]

    def tells(self, place: int) -> bool:
        """Whether the rollouts of a question move the weights."""
        base = self.baselines[place]
        pairs = zip(self.groups[place], self.rewards[place], strict=True)
        given = [reward for rolled, reward in pairs if reward is not None and rolled.tokens is not None]
        if base is not None:
            return any(abs(base.advantage(reward)) > 1e-9 for reward in given)
        return bool(given) and not math.isclose(min(given), max(given), abs_tol=1e-9)


@dataclass
class Learning:
    """See the module.

    Attributes:
        settings: `[streaming]`.
        judging: how the judge model is asked about conversations.
        out: folder of the run.
        store: the queue.
        trainer: takes the steps.
        weights: are told of new versions.
        reward: what answers are worth.
        judge: reads what users said in conversations.
        remembering: keeps runs in memory; None: nothing is remembered.
    """

    settings: StreamingSection
    judging: JudgeConfig
    out: Path
    store: Store
    trainer: Trains
    weights: Weights
    reward: Reward
    judge: ChatModel
    remembering: Remembering | None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a version may change."""
    last_failure: Failure | None = None
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate = Gate(self.settings.gate, self.store, self._played, self.reward_of)

    def tell(self) -> None:
        """There is new feedback."""
        self._news.set()

    async def run(self) -> None:
        """Work until cancelled. What fails is noted, and tried again after a pause."""
        while True:
            self._news.clear()
            try:
                failed = await self._look()
                for namespace in await self._due():
                    await self.learn(namespace)
            except MiaError as error:
                self.last_failure, failed = error.failure(), True
            if failed:
                await asyncio.sleep(self.settings.retry_s)
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), self._pause())

    def _pause(self) -> float | None:
        """Seconds until an update may be due for its age; None: none will be."""
        oldest = [received for _, _, received in self.store.due()]
        if not oldest or not self.settings.partial_s:
            return None
        return max(0.05, min(oldest) + self.settings.partial_s - time.time())

    async def _due(self) -> list[str]:
        """Namespaces whose queue is long or old enough for an update."""
        settings, now = self.settings, time.time()
        waiting = await asyncio.to_thread(self.store.due)
        return [
            namespace
            for namespace, count, oldest in waiting
            if count >= settings.batch or (settings.partial_s and now - oldest >= settings.partial_s)
        ]

    async def flush(self, namespace: str) -> int:
        """Score and learn from all feedback of a namespace that is there now; gives how much left the queue.

        Raises:
            MiaError: something failed; what is left stays in the queue.
        """
        before = _open(await asyncio.to_thread(self.store.counts, namespace))
        if await self._look() and self.last_failure is not None:
            raise as_error(self.last_failure)
        while await self.learn(namespace):
            pass
        return before - _open(await asyncio.to_thread(self.store.counts, namespace))

    # ------------------------------------------------------------------------------------------ scoring

    async def _look(self) -> bool:
        """Score what waits, and bring amended feedback to memory; gives whether something failed."""
        async with self._looking:
            return await self._looked()

    async def _looked(self) -> bool:
        failed, last = False, 0
        for entry, item in await asyncio.to_thread(self.store.amended):
            failed |= not await self._guarded(self._amend(entry, item))
        while chunk := await asyncio.to_thread(self.store.waiting, _CHUNK, last):
            last = chunk[-1].number
            done = await asyncio.gather(*(self._guarded(self._score(entry)) for entry in chunk))
            failed |= not all(done)
            for namespace in await self._due():
                await self.learn(namespace)
        return failed

    async def _guarded(self, work: Awaitable[None]) -> bool:
        try:
            await work
        except MiaError as error:
            self.last_failure = error.failure()
            return False
        return True

    async def _score(self, entry: Entry) -> None:
        ask, settings = entry.ask, self.settings
        if ask.state == "elsewhere":
            await self._read(entry)
            return
        reward = await self.reward_of(entry, entry.item, ask.rolled) if ask.state == "answered" else None
        memory = entry.memory
        if self.remembering is not None and ask.rolled is not None and reward is not None:
            memory = await self.remembering.keep(ask, reward >= settings.right_from, memory)
            await asyncio.to_thread(self.store.remembered, entry.number, memory)
        reference = entry.item.reference
        why = ""
        if not settings.learn:
            why = "learning_off"
        elif reference is None and (ask.rolled is None or ask.rolled.tokens is None):
            why = "failed_answer"
        elif reference is None and reward is None:
            why = "no_reward"
        if why:
            await asyncio.to_thread(self.store.end, entry, why, reward, memory)
        elif reference is not None and self.gate.holds(ask):
            await asyncio.to_thread(self.store.end, entry, "held_back", reward, memory, True)
        else:
            answers = reference.answers if reference is not None else None
            await asyncio.to_thread(self.store.score, entry, reward, answers)

    async def _read(self, entry: Entry) -> None:
        """Find the right answer to a question that was answered elsewhere in what the user said next."""
        ask = entry.ask
        said = entry.item.correction or ""
        found = await read_words(self.judge, self.judging, ask.question.text, ask.elsewhere, said)
        right = ask.elsewhere if found.verdict == "right" else found.answer if found.verdict == "wrong" else ""
        if right.strip():
            await asyncio.to_thread(self.store.score, entry, None, (right.strip(),))
        else:
            why = "unclear" if found.verdict == "unclear" else "no_reference"
            await asyncio.to_thread(self.store.end, entry, why, None, "")

    async def _amend(self, entry: Entry, item: FeedbackItem) -> None:
        reward = await self.reward_of(entry, item, entry.ask.rolled)
        if self.remembering is not None and reward is not None:
            await self.remembering.keep(entry.ask, reward >= self.settings.right_from, entry.memory)
        await asyncio.to_thread(self.store.amend, entry.number, item)

    async def reward_of(
        self, entry: Entry, item: FeedbackItem, rolled: Rolled | None, official: bool = True
    ) -> float | None:
        """What a rollout is worth by what was said; None: nothing can be told of it.

        Raises:
            MiaError: the reward failed.
        """
        if rolled is None or rolled.run is None:
            return None
        run, ask = rolled.run, entry.ask
        about = {"answer": run.answer, "plan": run.plans[0].text if run.plans else "", "format": planner_format(run)}
        case = case_of(item, ask.namespace, ask.question, official=official, **about)
        if entry.reference and not official:
            case = case.model_copy(update={"reference": entry.reference})
        return await self.reward(case)

    # ------------------------------------------------------------------------------------------ updates

    async def learn(self, namespace: str) -> bool:
        """One update from the oldest feedback in the queue; False if there is none.

        Raises:
            MiaError: something failed; the feedback stays in the queue.
        """
        async with self.lock:
            entries = await asyncio.to_thread(self.store.scored, namespace, self.settings.batch)
            if not entries:
                return False
            version = await asyncio.to_thread(self.store.version, namespace)
            stale = [entry for entry in entries if self._stale(entry, version)]
            fresh = [entry for entry in entries if not self._stale(entry, version)]
            if stale:
                await asyncio.to_thread(self.store.settle, [_unlearned(entry, "stale") for entry in stale])
            self.store.learning.update(entry.number for entry in fresh)
            try:
                if fresh:
                    await self._update(namespace, version, fresh)
            finally:
                self.store.learning.clear()
            return True

    def _stale(self, entry: Entry, version: int) -> bool:
        return entry.ask.state == "answered" and version - entry.ask.version > self.settings.staleness

    async def _update(self, namespace: str, version: int, entries: list[Entry]) -> None:
        folder = folder_of(self.out, namespace, version)
        batch = await self._batch(namespace, folder, version, entries)
        before = await self.gate.measure(namespace, version, folder)
        new = await asyncio.to_thread(self.store.next_version, namespace)
        made = folder_of(self.out, namespace, new)
        update: Update = await self.trainer.ask(
            Step(folder, tuple(batch.groups), tuple(batch.rewards), tuple(batch.baselines), made)
        )
        if not update.trained:
            await asyncio.to_thread(self.store.settle, [_unlearned(entry, "no_difference") for entry in entries])
            return
        outcome = await self.gate.judge(namespace, before, made)
        recent = await asyncio.to_thread(self.store.recent, namespace, self.settings.window, version)
        step = Stepped(
            update=update, gate=outcome, questions=len(entries),
            answered=statistics.fmean(reward for _, reward in recent) if recent else None,
        )  # fmt: skip
        if outcome.passed:
            ends = [
                Settling(entry.number, "learned") if batch.tells(place) else _unlearned(entry, "no_difference")
                for place, entry in enumerate(entries)
            ]
            await self.weights.take(namespace, new, made)
            await asyncio.to_thread(self.store.stepped, namespace, version, new, step, ends)
            await self.gate.passed(namespace, new)
            await asyncio.to_thread(self._prune, namespace)
        else:
            ends = [_unlearned(entry, "gate") for entry in entries]
            await asyncio.to_thread(self.store.stepped, namespace, version, None, step, ends)
            await asyncio.to_thread(shutil.rmtree, made)

    async def _batch(self, namespace: str, folder: Path, version: int, entries: list[Entry]) -> _Batch:
        """The rollouts that are learned from, more of them played where there is a reference, with their rewards."""
        counts = [self._more(entry) for entry in entries]
        rows = await self._rows([entry for entry, count in zip(entries, counts, strict=True) if count])
        each = iter(rows)
        asked = [row for count in counts if count for row in [next(each)] * count]
        seeds = [
            self._seed(entry, version, place)
            for entry, count in zip(entries, counts, strict=True)
            for place in range(count)
        ]
        more = iter(await self._played(folder, asked, seeds, version) if asked else [])
        batch = _Batch(entries, [], [], [])
        earlier = await asyncio.to_thread(
            self.store.rewards, namespace, self.settings.window, max(entry.number for entry in entries)
        )
        base = Baseline(statistics.fmean(earlier), statistics.stdev(earlier)) if len(earlier) > 1 else None
        for entry, count in zip(entries, counts, strict=True):
            official = [entry.ask.rolled] if entry.ask.rolled is not None and entry.ask.rolled.tokens else []
            extra = [next(more) for _ in range(count)]
            worth = [await self.reward_of(entry, entry.item, rolled, official=False) for rolled in extra]
            batch.groups.append((*official, *extra))
            batch.rewards.append((*([entry.reward] if official else []), *worth))
            batch.baselines.append(None if count else base)
        return batch

    def _more(self, entry: Entry) -> int:
        """How often a question is played beside its official rollout."""
        if entry.reference is None:
            return 0
        return self.settings.n - int(entry.ask.rolled is not None and entry.ask.rolled.tokens is not None)

    async def _rows(self, entries: Sequence[Entry]) -> list[Row]:
        """What is asked again: with what was recalled for it then, or, for what was answered elsewhere, is now."""
        rows = []
        for entry in entries:
            run = entry.ask.rolled.run if entry.ask.rolled is not None else None
            row = withheld(entry.ask.question)
            if run is not None:
                row = row.model_copy(update={"recalled": run.recalled, "recalled_again": run.recalled_again})
            elif self.remembering is not None:
                store = self.remembering.memory(entry.ask.namespace)
                (row,) = await recalled_rows([row], store, self.remembering.k)
            rows.append(row)
        return rows

    def _seed(self, entry: Entry, version: int, place: int) -> int:
        name = f"{self.settings.seed}/{entry.ask.id}/{version}/{place}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")

    async def _played(
        self, folder: Path, rows: Sequence[Row], seeds: Sequence[int], version: int, greedy: bool = False
    ) -> list[Rolled]:
        rolled: list[Rolled] = await self.trainer.ask(Play(folder, tuple(rows), tuple(seeds), greedy))
        return [each.model_copy(update={"version": version}) for each in rolled]

    def _prune(self, namespace: str) -> None:
        """Let versions go that are too old to go back to."""
        kept = {folder_of(self.out, namespace, v) for v in self.store.lineage(namespace, self.settings.keep)}
        place = folder_of(self.out, namespace, 1).parent
        for folder in place.iterdir() if place.is_dir() else ():
            if folder not in kept:
                shutil.rmtree(folder)


def _unlearned(entry: Entry, reason: str) -> Settling:
    """Feedback that the weights do not learn from: memory has it, or nobody."""
    return Settling(entry.number, "remembered" if entry.memory else "refused", reason)


def _open(counts: tuple[dict[str, int], ...]) -> int:
    """Feedback that is not settled."""
    return counts[1].get("waiting", 0) + counts[1].get("scored", 0)
