"""For tests of the service that learns: a tiny random Planner, scripted partners, a trainer in a thread."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from executor_train.training import own_sampling
from inference.tools import SearchTool, ToolBox
from memory_serve.hashing import HashEncoder
from mia.chat import ChatModel
from mia.chat.scripted import ScriptedChat
from mia.config import load
from mia.errors import MiaError, as_error
from planner_train.game import PlannerGame
from tests.doubles import FixedSearch, call
from tests.evaluating import Brain, chat
from tests.learning import PLAIN
from ttrl_streaming.app import create_app
from ttrl_streaming.client import StreamingClient
from ttrl_streaming.config import StreamConfig, settled
from ttrl_streaming.open import open_service
from ttrl_streaming.process import TrainerState
from ttrl_streaming.service import Service
from ttrl_streaming.trainer import Command, Trainer

if TYPE_CHECKING:
    from ttrl_streaming.trainer import Games


def executor(first: str, last: str) -> str:
    """Searches once, then answers by the plan: yes if a hash of it says so."""
    if "<tool_response>" not in last:
        return call("Vienna")
    plan = first.partition("Plan")[2] or first
    return f"<answer>{'yes' if hashlib.sha256(plan.encode()).digest()[0] % 2 else 'no'}</answer>"


@contextmanager
def scripted_game(config: StreamConfig, settings: Any, brain: Brain = executor) -> Iterator[PlannerGame]:
    """The Planner's game with scripted partners; the process that trains opens it by its name."""
    agent = config.agent.model_copy(
        update={role: own_sampling(getattr(config.agent, role), settings) for role in ("planner", "reflector")}
    )
    partners: dict[Any, ChatModel] = {"executor": chat(brain)}
    yield PlannerGame(ToolBox([SearchTool(FixedSearch(), 2)]), agent, partners, config.judge)


class InThread:
    """Does the trainer's commands in a thread of this process; see `ttrl_streaming.process.Trains`."""

    def __init__(self, config: StreamConfig, out: Path, games: Games) -> None:
        self.state: TrainerState = "off"
        self.commands: list[Command] = []
        self.failing: MiaError | None = None
        """Raised by the next commands, if set."""
        self.going, self.held = asyncio.Event(), asyncio.Event()
        """`going` is set when a command comes; it is done once `held` is set, which it is unless a test clears it."""
        self.held.set()
        self._given = (config, out, games)
        self._trainer: Trainer | None = None
        self._thread = ThreadPoolExecutor(1)

    async def start(self) -> None:
        """Open the learner."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        self.state = "idle"

    async def ask(self, command: Command) -> Any:
        """Have a command done."""
        await self.start()
        self.commands.append(command)
        self.going.set()
        await self.held.wait()
        if self.failing is not None:
            raise as_error(self.failing.failure())
        assert self._trainer is not None
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._trainer.run, command)

    async def aclose(self) -> None:
        """Close the learner."""
        if self._trainer is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._trainer.close)
        self._thread.shutdown()

    def _open(self) -> None:
        if self._trainer is None:
            self._trainer = Trainer(*self._given)


def config_of(place: Path, out: Path, **flags: Any) -> StreamConfig:
    """A config for a tiny Planner whose every update shows; flags are dotted names with `__` for the dots."""
    plain = {
        **PLAIN, "policy.path": str(place), "policy.lora_rank": 4, "rollout.context": 4096, "rollout.limit": 4096,
        "grpo.learning_rate": 0.05, "agent.planner.max_tokens": 8, "agent.reflector.max_tokens": 4, "memory.k": 1,
        "streaming.n": 3, "streaming.batch": 4, "streaming.retry_s": 0.05, "streaming.gate.questions": 0,
    }  # fmt: skip
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return settled(load(StreamConfig, None, {**plain, **named}), out)


def opened(
    place: Path,
    out: Path,
    games: Games = scripted_game,
    judge: Brain | None = None,
    trains: Any = InThread,
    **flags: Any,
) -> Service:
    """A service that is not started."""
    model = chat(judge) if judge else ScriptedChat()
    return open_service(config_of(place, out, **flags), out, games, HashEncoder(), lambda _: model, trains)


@asynccontextmanager
async def running(place: Path, out: Path, token: str = "", **given: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A service that runs, and a client of it over ASGI."""
    service = opened(place, out, **given)
    client = StreamingClient("http://service", httpx.ASGITransport(create_app(service, token)), token=token)
    try:
        await service.start()
        yield service, client
    finally:
        await client.aclose()
        await service.aclose()
