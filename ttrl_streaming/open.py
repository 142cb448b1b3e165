"""Opens the service that a config asks for, with everything it works with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from local_search.protocol import Encoder
from mia import embedded
from mia.chat import ChatModel, open_chat
from planner_train.game import PlannerGame
from ttrl_streaming.answering import Answerer
from ttrl_streaming.config import StreamConfig
from ttrl_streaming.learning import Learning
from ttrl_streaming.process import TrainerProcess, Trains
from ttrl_streaming.remembering import Remembering
from ttrl_streaming.reward import AtUrl, open_reward
from ttrl_streaming.service import Service
from ttrl_streaming.serving import Weights
from ttrl_streaming.store import Store
from ttrl_streaming.trainer import open_game

if TYPE_CHECKING:
    from ttrl_streaming.trainer import Games


@dataclass
class _Game:
    """Closes a game."""

    opened: AbstractContextManager[PlannerGame]

    async def aclose(self) -> None:
        import asyncio

        await asyncio.to_thread(self.opened.__exit__, None, None, None)


def open_service(
    config: StreamConfig,
    out: Path,
    games: Games = open_game,
    encoder: Encoder | None = None,
    chat: Callable[[Any], ChatModel] = open_chat,
    trains: Callable[[StreamConfig, Path, Games], Trains] = TrainerProcess,
) -> Service:
    """The service of a config; no model is loaded before it starts.

    Args:
        config: settled.
        out: folder of the run: queue, memory, versions of the weights.
        games: opens the Planner's game, here and in the process that trains; a function of a module.
        encoder: of the memory; None for all-MiniLM-L6-v2.
        chat: opens the models of judge and Manager.
        trains: opens what trains.

    Raises:
        MiaError: something named there is missing or broken.
    """
    settings = config.streaming
    judge = chat(config.models.of("judge"))
    reward = open_reward(settings.reward, settings.reward_timeout_s, config.judge, judge, settings.format)
    store = Store(out / "queue.db")
    sampling = SimpleNamespace(
        temperature=config.grpo.get("temperature", 1.0), top_p=config.grpo.get("top_p", 1.0)
    )  # what TRL's settings are asked for; TRL itself takes seconds to import
    opened = games(config, sampling)
    remembering = _remembering(config, encoder, chat) if settings.memory else None
    place = str(embedded.ensure()) if config.policy.path == "embedded:" else config.policy.path
    rollout, policy = config.rollout, config.policy
    weights = Weights(place, policy.lora_rank > 0, policy.dtype, rollout.context, rollout.batch)
    trainer = trains(config, out, games)
    learning = Learning(settings, config.judge, out, store, trainer, weights, reward, judge, remembering)
    memory = remembering.memory if remembering is not None else None
    answerer = Answerer(opened.__enter__(), weights, memory, config.memory.k, rollout.limit)
    held = [] if remembering is None else [remembering.store]
    managers = [remembering.manager] if remembering is not None and remembering.manager is not None else []
    asked = [reward] if isinstance(reward, AtUrl) else []
    closing = (_Game(opened), *held, judge, *managers, *asked)
    return Service(out, store, answerer, learning, settings.concurrency, settings.waiting, settings.limit, closing)


def _remembering(config: StreamConfig, encoder: Encoder | None, chat: Callable[[Any], ChatModel]) -> Remembering:
    from memory_serve.open import open_file

    memory = config.memory
    wanted = "model" in (memory.summary, memory.classify)
    manager = chat(config.models.of("manager")) if wanted else None
    return Remembering(open_file(memory, encoder, manager), memory.k, memory.summary, manager)
