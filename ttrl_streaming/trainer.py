"""The process that trains: a learner of its own, with lower priority and few threads, so that answers go first.

The parent sends one command at a time over a pipe and gets one result back. It decides everything; this process plays,
steps, saves and loads. When the parent is gone, it ends.
"""

from __future__ import annotations

import os
import queue
import shutil
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mia.errors import MiaError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from executor_train.game import Row
    from mia.chat import ChatModel
    from planner_train.game import Attempt, PlannerGame
    from ttrl.learner import Baseline, Learner, Update
    from ttrl.records import Rolled
    from ttrl_streaming.config import StreamConfig

    Games = Callable[[StreamConfig, Any], AbstractContextManager[PlannerGame]]
"""What opens the game of a config; it travels by its name."""


@dataclass(frozen=True, slots=True)
class Play:
    """Play rows, with the weights of a folder; `greedy` takes the likeliest tokens."""

    folder: Path | None
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    greedy: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Load the weights of a folder, take one step, and keep the result in another."""

    folder: Path
    groups: tuple[tuple[Rolled, ...], ...]
    rewards: tuple[tuple[float | None, ...], ...]
    baselines: tuple[Baseline | None, ...]
    out: Path


Command = Play | Step


def open_game(config: StreamConfig, settings: Any) -> AbstractContextManager[PlannerGame]:
    """The Planner's game with its frozen partners."""
    from planner_train.cli import game

    return game(config, settings)


class _Turning:
    """A game that samples as training does, or takes the likeliest tokens."""

    def __init__(self, game: PlannerGame) -> None:
        from dataclasses import replace

        agent = game.agent
        cold = {
            name: getattr(agent, name).model_copy(update={"temperature": 0.0, "top_p": 1.0})
            for name in ("planner", "reflector")
        }
        self.greedy = False
        self._games = {False: game, True: replace(game, agent=agent.model_copy(update=cold))}

    async def attempt(self, row: Row, model: ChatModel) -> Attempt:
        """See `ttrl.learner.Attempting`."""
        return await self._games[self.greedy].attempt(row, model)


class Trainer:
    """The learner, and which folder its weights are those of. Runs in its own process; tests run it in theirs.

    Args:
        config: settled.
        out: folder of the run.
        games: opens the game.
    """

    def __init__(self, config: StreamConfig, out: Path, games: Games) -> None:
        from ttrl.learner import learning_settings, open_learner

        streaming = config.streaming
        settings = learning_settings(config, streaming.batch, streaming.n, out)
        self._opened = games(config, settings)
        self._game = _Turning(self._opened.__enter__())
        self._learner: Learner = open_learner(config, settings, self._game, 10**8)
        self._at: Path | None = None
        first = first_folder(out)
        if not first.is_dir():
            self._save(first)

    def run(self, command: Command) -> list[Rolled] | Update:
        """Do what is asked.

        Raises:
            MiaError: it could not be done.
        """
        if isinstance(command, Play):
            if command.folder is not None:
                self._load(command.folder)
            self._game.greedy = command.greedy
            return cut(self._learner.play(command.rows, command.seeds))
        self._load(command.folder)
        self._at = None
        update = self._learner.update(command.groups, command.rewards, command.baselines)
        if update.trained:
            self._save(command.out)
        else:
            self._at = command.folder
        return update

    def close(self) -> None:
        """Close the learner and the game."""
        self._learner.close()
        self._opened.__exit__(None, None, None)

    def _load(self, folder: Path) -> None:
        if self._at != folder:
            self._learner.load(folder)
            self._at = folder

    def _save(self, folder: Path) -> None:
        """Write a version whole, or not at all; what a killed process left there is replaced."""
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        self._learner.save(part)
        for file in part.rglob("*"):
            if file.is_file():
                handle = os.open(file, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)
        shutil.rmtree(folder, ignore_errors=True)
        part.replace(folder)
        self._at = folder


def first_folder(out: Path) -> Path:
    """Where the weights are that all namespaces begin with."""
    return out / "versions" / "start"


def main(pipe: Connection, config: StreamConfig, out: Path, games: Games) -> None:
    """The process: open, say so, then one command after the other until the parent is gone."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.nice(config.streaming.niceness)
    commands: queue.Queue[Command | None] = queue.Queue()
    threading.Thread(target=_listen, args=(pipe, commands), daemon=True).start()
    import torch

    torch.set_num_threads(config.streaming.threads)
    sys.stdout = sys.stderr
    try:
        trainer = Trainer(config, out, games)
    except MiaError as error:
        pipe.send(error.failure())
        return
    pipe.send(None)
    while (command := commands.get()) is not None:
        pipe.send(_result(trainer, command))
    trainer.close()


def _result(trainer: Trainer, command: Command) -> Any:
    try:
        return trainer.run(command)
    except MiaError as error:
        return error.failure()
    except (RuntimeError, ValueError, OSError) as error:
        fault = ModelError(f"the trainer: {type(error).__name__}: {error}", remedy="see its log", code="trainer")
        return fault.failure()


def _listen(pipe: Connection, commands: queue.Queue[Command | None]) -> None:
    """Take commands; end at once when the parent is gone, whatever is being computed."""
    while True:
        try:
            command = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        commands.put(command)
        if command is None:
            return


def cut(rolled: Sequence[Rolled]) -> list[Rolled]:
    """Rollouts without the tokens of single replies: those of the whole conversation are enough."""
    return [each if each.run is None else each.model_copy(update={"run": _bare(each.run)}) for each in rolled]


def _bare(run: Any) -> Any:
    steps = [
        step
        if step.reply is None
        else step.model_copy(update={"reply": step.reply.model_copy(update={"tokens": None})})
        for step in run.steps
    ]
    return run.model_copy(update={"steps": tuple(steps)})
