"""Does the shards of a build in processes of this machine; run as a module, it is such a process.

Unlike those of `multiprocessing` they do not import the caller's main module again, share no threads with it, and end
when it does, even if it was killed: their standard input is closed then.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from mia.errors import DataError, MiaError

T = TypeVar("T")
R = TypeVar("R")


class Here:
    """A `Mapper` that does one task after the other, in this process."""

    def __call__(self, tasks: Sequence[T], work: Callable[[T], R]) -> Iterator[R]:
        """See `Mapper`."""
        return map(work, tasks)


class Processes:
    """A `Mapper` over processes of this machine.

    Args:
        count: how many processes.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, tasks: Sequence[T], work: Callable[[T], R]) -> Iterator[R]:
        """See `Mapper`."""
        children = [_Child() for _ in range(min(self._count, len(tasks)))]
        idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        for child in children:
            idle.put(child)

        def run(task: T) -> R:
            child = idle.get()
            try:
                return cast(R, child.call(work, task))
            finally:
                idle.put(child)

        with ThreadPoolExecutor(max(len(children), 1)) as pool:
            futures = [pool.submit(run, task) for task in tasks]
            try:
                for future in futures:
                    yield future.result()
            finally:
                for future in futures:
                    future.cancel()
                for child in children:
                    child.end()


class _Child:
    """A process that is sent calls and sends back what they returned or raised."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )

    def call(self, work: Callable[[Any], Any], task: Any) -> Any:
        """`work(task)`, done there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump((work, task), self._process.stdin)
            self._process.stdin.flush()
            value, error = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as fault:
            raise DataError(
                f"a process of the build ended with code {self._process.wait()}",
                remedy="run the same command again, it continues; with less --workers if memory ran out",
                code="worker_died",
            ) from fault
        if error is not None:
            raise error
        return value

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue


def main() -> None:
    """Answer calls until the standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller is interrupted too, and ends this process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between
    while True:
        try:
            work, task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        value, error = None, None
        try:
            value = work(task)
        except (MiaError, OSError) as raised:
            error = raised
        pickle.dump((value, error), answers)
        answers.flush()


if __name__ == "__main__":
    main()
