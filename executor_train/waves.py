"""Waves: rollouts play at one table; when all of them wait for the trained model, it takes their turns as one batch.

Between two waves every rollout goes on alone, as in serving: its tools, its memory and its frozen partners are awaited
while those of all others are. A rollout that fails leaves the table; the others do not notice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from executor_train.rollout import Conversation
from mia.chat.template import Template
from mia.errors import MiaError, ModelError
from mia.types import Message, Reply, Sampling, ToolSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn to take: the conversation as tokens (one placeholder for each picture) and as messages."""

    ids: list[int]
    messages: tuple[Message, ...]
    sampling: Sampling


class Played(Protocol):
    """What a seat knows of the model that takes its turns."""

    name: str
    context: int
    template: Template
    ends: frozenset[int]


class Sampler(Played, Protocol):
    """What takes turns: the trained model."""

    def sample(self, turns: Sequence[Turn]) -> list[Reply | MiaError]:
        """A reply with its `tokens`, or what went wrong, for each turn."""
        ...

    def anyone(self, here: bool) -> bool:
        """Whether any process has turns to take; all of them ask together where they must sample together."""
        ...


class Turns(Protocol):
    """Where a seat has its turns taken; a `Table` is one, and so is a server of the trained model."""

    @property
    def sampler(self) -> Played:
        """The model."""
        ...

    async def turn(self, seat: int, turn: Turn) -> Reply:
        """Wait for the turn of a seat to be taken. Raises MiaError when it failed."""
        ...


@dataclass
class Table:
    """Where rollouts of one batch meet.

    Attributes:
        sampled_s: seconds that each wave was sampled for.
        between_s: seconds between waves, and before the first.
    """

    sampler: Sampler
    sampled_s: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)
    _waiting: dict[int, tuple[Turn, asyncio.Future[Reply]]] = field(default_factory=dict)
    _seats: int = 0
    _playing: int = 0
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    def seat(self, seed: int) -> Seat:
        """A place for one rollout."""
        self._seats += 1
        return Seat(self, self._seats, seed)

    async def play(self, rollouts: Sequence[Coroutine[Any, Any, T]]) -> list[T | MiaError]:
        """Let rollouts play to their ends; gives what each returned, or the error that ended it."""
        self._playing = len(rollouts)
        tasks = [asyncio.ensure_future(self._one(rollout)) for rollout in rollouts]
        try:
            await self._waves()
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _waves(self) -> None:
        while True:
            started = time.perf_counter()
            self._check()
            await self._ready.wait()
            self._ready.clear()
            ended = time.perf_counter()
            # Who came first depends on the clock, and so would the last bits of what is sampled as one batch.
            wave = [self._waiting[number] for number in sorted(self._waiting)]
            self._waiting = {}
            if not self.sampler.anyone(bool(wave)):
                return
            self.between_s.append(ended - started)
            replies = self.sampler.sample([turn for turn, _ in wave])
            self.sampled_s.append(time.perf_counter() - ended)
            for (_, future), reply in zip(wave, replies, strict=True):
                if future.done():  # cancelled
                    continue
                if isinstance(reply, MiaError):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)

    async def _one(self, rollout: Coroutine[Any, Any, T]) -> T | MiaError:
        try:
            return await rollout
        except MiaError as error:
            return error
        finally:
            self._playing -= 1
            self._check()

    async def turn(self, seat: int, turn: Turn) -> Reply:
        """Wait for the turn of a seat to be taken."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[seat] = turn, future
        self._check()
        return await future

    def _check(self) -> None:
        if len(self._waiting) == self._playing:
            self._ready.set()


class Seat:
    """The trained role's chat model in one rollout. It keeps the tokens of its one conversation.

    Args:
        table: where the others are.
        number: its place among them.
        seed: of all its sampling.
    """

    def __init__(self, table: Turns, number: int, seed: int) -> None:
        sampler = table.sampler
        self.name = sampler.name
        self.context = sampler.context
        self.conversation = Conversation(sampler.template, sampler.ends)
        self._table = table
        self._number = number
        self._seed = seed
        self._turns = 0

    async def generate(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec] = ()) -> Reply:
        """See `ChatModel.generate`."""
        if tools:
            raise ModelError("native tool calling is not trained", remedy='set tool_format = "grammar"')
        ids = self.conversation.extend(messages)
        own = sampling.model_copy(update={"seed": (self._seed + self._turns) % 2**63})
        self._turns += 1
        reply = await self._table.turn(self._number, Turn(ids, tuple(messages), own))
        self.conversation.add(reply)
        return reply

    async def aclose(self) -> None:
        """Nothing to free."""
