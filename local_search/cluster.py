"""Does the shards of a build on a Ray cluster, by Ray Data: `mia index build --engine ray`.

Tasks name files, so the folder of the corpus and that of the index must be on a file system that all machines see under
the same path, and this package must be installed on each. The index has the same bytes as one built on a single
machine. Left out: serving by Ray; for that, replicas of the service share one read-only index.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from local_search.protocol import R, T
from mia.errors import ConfigError, DataError, MiaError
from mia.extras import need

_CONNECT_S = 10.0


class Ray:
    """A `Mapper` over the machines of a Ray cluster.

    Args:
        address: of the cluster's head (`ray start --head` prints it); empty: the variable RAY_ADDRESS, else a cluster
            that runs on this machine, else one that is started here for the time of the build.
        cpus: cores that a task takes, so how many of them a machine does at once.
    """

    def __init__(self, address: str = "", cpus: float = 1.0) -> None:
        self._address = address
        self._cpus = cpus

    def __call__(self, tasks: Sequence[T], work: Callable[[T], R]) -> Iterator[R]:
        """See `Mapper`.

        Raises:
            ConfigError: Ray is missing (code `missing_extra`), or the cluster cannot be reached (`no_cluster`).
            DataError: Ray lost a task for good (code `worker_died`).
        """
        if not tasks:
            return
        ray, data = need("ray", "cluster"), need("ray.data", "cluster")
        with connected(ray, self._address):
            logging.getLogger("ray.data").setLevel(logging.ERROR)  # builds have a progress bar of their own
            context = data.DataContext.get_current()
            context.execution_options.preserve_order = True
            context.enable_progress_bars = False
            calls = [{"call": pickle.dumps((work, task))} for task in tasks]
            rows = data.from_items(calls, override_num_blocks=len(calls))  # a block is what goes to a machine
            done = rows.map(_answer, num_cpus=self._cpus)
            try:
                for row in done.iter_batches(batch_size=1, batch_format="numpy", prefetch_batches=0):
                    value, error = pickle.loads(row["answer"][0])
                    if error is not None:
                        raise error
                    yield value
            except ray.exceptions.RayError as error:
                raise DataError(
                    f"Ray gave a task up: {str(error).strip().splitlines()[-1]}",
                    remedy="look at the machines' logs; run the same command again, it continues",
                    code="worker_died",
                ) from error


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    """Done on the machines: the result of a call, or the error to raise for it, which Ray would repeat and wrap."""
    work, task = pickle.loads(row["call"])
    value, error = None, None
    try:
        value = work(task)
    except (MiaError, OSError) as raised:
        raised.__cause__ = None
        error = raised
    return {"answer": pickle.dumps((value, error))}


@contextmanager
def connected(ray: Any, address: str) -> Iterator[None]:
    """Within the block, Ray is connected; a connection of the caller's own stays."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    where = address or os.environ.get("RAY_ADDRESS", "")
    try:
        host, colon, port = where.rpartition(":")
        if colon and port.isdecimal() and "/" not in where:  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
        ray.init(address=address or None, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"no Ray cluster at {where or 'this machine'}: {error}",
            remedy="start one by `ray start --head`, and give its address in RAY_ADDRESS",
            code="no_cluster",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
