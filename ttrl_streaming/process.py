"""The process that trains, seen from the service: started, asked, started again when it died."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mia.errors import ModelError, as_error
from mia.types import Failure
from ttrl_streaming.trainer import Command, main

if TYPE_CHECKING:
    from ttrl_streaming.config import StreamConfig
    from ttrl_streaming.trainer import Games

TrainerState = Literal["off", "starting", "idle", "training", "failed"]


class Trains(Protocol):
    """What does the commands of `ttrl_streaming.trainer`, one at a time."""

    state: TrainerState

    async def start(self) -> None:
        """Be ready to be asked. Raises MiaError when it cannot work."""
        ...

    async def ask(self, command: Command) -> Any:
        """Have a command done. Raises MiaError when it could not be."""
        ...

    async def aclose(self) -> None:
        """End it."""
        ...


class TrainerProcess:
    """Sends commands to `ttrl_streaming.trainer`, one at a time.

    Args:
        config: settled.
        out: folder of the run.
        games: opens the game there; a function of a module.
    """

    def __init__(self, config: StreamConfig, out: Path, games: Games) -> None:
        self.state: TrainerState = "off"
        self._given = (config, out, games)
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Start it, if it is not running, and wait until it can be asked.

        Raises:
            MiaError: it cannot work.
        """
        async with self._lock:
            await self._start()

    async def ask(self, command: Command) -> Any:
        """Have a command done.

        Raises:
            MiaError: it could not be, or the process died over it; it is started again for the next one.
        """
        async with self._lock:
            await self._start()
            assert self._pipe is not None
            self.state = "training"
            try:
                self._pipe.send(command)
            except OSError as error:
                raise self._died() from error
            result = await self._receive()
            self.state = "idle"
            return result

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        return self._process.pid if self._process is not None else None

    async def aclose(self) -> None:
        """End it; what it is computing is lost."""
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.join)
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None
        self.state = "off"

    async def _start(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        await self.aclose()
        self.state = "starting"
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=main, args=(theirs, *self._given), name="mia-trainer", daemon=True)
        await asyncio.to_thread(self._process.start)
        theirs.close()
        await self._receive()
        self.state = "idle"

    async def _receive(self) -> Any:
        assert self._pipe is not None
        try:
            result = await asyncio.to_thread(self._pipe.recv)
        except (EOFError, OSError) as error:
            raise self._died() from error
        except asyncio.CancelledError:  # its result would be taken for that of the next command
            if self._process is not None:
                self._process.kill()
            raise
        if isinstance(result, Failure):
            self.state = "failed"
            raise as_error(result)
        return result

    def _died(self) -> ModelError:
        self.state = "failed"
        code = self._process.exitcode if self._process is not None else None
        return ModelError(
            f"the process that trains died (exit code {code})",
            remedy="see the log; if memory ran out, lower streaming.batch, streaming.n or rollout.limit",
            code="trainer_died", retryable=True,
        )  # fmt: skip
