"""Serves one app by several processes on one port: each opens it by itself, all accept from one listening socket.

What workers map from files (an index) is in memory once, in the system's page cache; all else each holds for itself.
`/metrics` adds up the workers, whichever answers. A worker that ends is replaced. Left out: Windows, reloading.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import TYPE_CHECKING, Any

from mia.errors import ConfigError, MiaError

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from fastapi import FastAPI

OpenApp = Callable[[], "tuple[FastAPI, str]"]
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Variable by which prometheus_client learns where processes share their counts; it reads it at its import."""

_GRACE_S = 10.0
_SPAWN = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of torch, FAISS and the JVM


class _Stopped(Exception):
    """A signal asked the service to end."""


class _Worker:
    """A process that serves, and the two pipes to it: news from it, and one whose end tells it to stop."""

    def __init__(self, listener: socket.socket, open_app: OpenApp, folder: str, threads: int) -> None:
        self.news, theirs = _SPAWN.Pipe(duplex=False)
        watched, self._life = _SPAWN.Pipe(duplex=False)
        args = (listener, open_app, folder, threads, theirs, watched)
        self.process: SpawnProcess = _SPAWN.Process(target=_work, args=args)
        self.process.start()
        theirs.close()
        watched.close()

    def opened(self) -> str:
        """Wait until the worker serves; returns what.

        Raises:
            MiaError: what kept it from opening.
        """
        try:
            told = self.news.recv()
        except EOFError:
            self.process.join()
            raise ConfigError(
                f"a worker ended with code {self.process.exitcode} before it served",
                remedy="start with --workers 1 to see why; too little memory for so many is a usual cause",
                code="worker_ended",
            ) from None
        if isinstance(told, MiaError):
            raise told
        return str(told)

    def stop(self) -> None:
        """Let requests under way end, then end it."""
        self._life.close()
        self.process.join(_GRACE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.news.close()


def serve_workers(listener: socket.socket, open_app: OpenApp, workers: int, ready: Callable[[str], None]) -> None:
    """Serve until interrupted or terminated.

    Args:
        listener: bound socket.
        open_app: makes the app in each worker; travels by pickle, so a function of a module or a `partial` of one.
        workers: how many processes.
        ready: told what is served, once all workers accept.

    Raises:
        MiaError: a worker could not open the app.
    """
    threads = max(1, (os.cpu_count() or 1) // workers)
    with tempfile.TemporaryDirectory(prefix="mia-metrics-") as folder, _stoppable():
        team: list[_Worker] = []
        try:
            team.extend(_Worker(listener, open_app, folder, threads) for _ in range(workers))
            what, *_ = [worker.opened() for worker in team]
            ready(what)
            while True:
                ended = wait([worker.process.sentinel for worker in team])
                for place, worker in enumerate(team):
                    if worker.process.sentinel in ended:
                        worker.stop()
                        print(f"a worker ended with code {worker.process.exitcode}; another starts", file=sys.stderr)
                        team[place] = _Worker(listener, open_app, folder, threads)
                        team[place].opened()
        except _Stopped:
            pass
        finally:
            for worker in team:
                worker.stop()


@contextmanager
def _stoppable() -> Iterator[None]:
    """Interrupt and termination end the block by `_Stopped`, once."""

    def stop(number: int, frame: FrameType | None) -> None:
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_IGN)
        raise _Stopped

    former = {name: signal.signal(name, stop) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for name, handler in former.items():
            signal.signal(name, handler)


def _work(
    listener: socket.socket, open_app: OpenApp, folder: str, threads: int, news: Connection, watched: Connection
) -> None:
    """The life of a worker: open, tell, serve until the parent closes its end of `watched` or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    os.environ[METRICS_FOLDER] = folder
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # workers share the cores
    servers: list[Any] = []

    def watch() -> None:
        with suppress(EOFError, OSError):
            watched.recv()
        if not servers:
            os._exit(0)  # still opening; nothing to end in order
        servers[0].should_exit = True

    threading.Thread(target=watch, daemon=True).start()
    try:
        app, what = open_app()
    except MiaError as error:
        error.__cause__ = None  # its class may not travel
        news.send(error)
        return
    import uvicorn

    servers.append(uvicorn.Server(uvicorn.Config(app, log_level="warning")))
    listener.listen()
    news.send(what)
    servers[0].run(sockets=[listener])
