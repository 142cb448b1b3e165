"""Opens the memory that the settings ask for: a service, a database, or a file in this process."""

from __future__ import annotations

from local_search.protocol import Encoder
from memory_serve.client import MemoryClient
from memory_serve.config import MemoryConfig
from memory_serve.protocol import MemoryStore
from memory_serve.store import SqliteMemory
from mia.chat import ChatModel
from mia.errors import ConfigError
from mia.extras import need

_DATABASES = ("postgresql://", "postgres://")


def open_memory(config: MemoryConfig, encoder: Encoder | None = None, manager: ChatModel | None = None) -> MemoryStore:
    """The store of a config, to be closed by the caller.

    Args:
        config: `url` decides between service, database and file.
        encoder: not for the service; None for all-MiniLM-L6-v2, which is loaded when something is first encoded.
        manager: not for the service; names the categories of questions if `classify` is "model".

    Raises:
        MemoryStoreError: the file or database cannot be used, or its vectors were made by another encoder.
        ConfigError: a database is named, and what reaches it is not installed.
    """
    if config.url and not config.url.startswith(_DATABASES):
        return MemoryClient(config.url, token_env=config.token_env).scoped(config.namespace)
    return open_served(config, encoder, manager)


def open_served(config: MemoryConfig, encoder: Encoder | None = None, manager: ChatModel | None = None) -> SqliteMemory:
    """The store that a service of this config puts behind HTTP: a database if `url` names one, else the file.

    Raises:
        MemoryStoreError: see `open_memory`.
        ConfigError: `url` names another service, or what reaches a database is not installed.
    """
    if not config.url:
        return open_file(config, encoder, manager)
    if not config.url.startswith(_DATABASES):
        raise ConfigError("memory.url names a service, which cannot be served", remedy="set memory.path instead of it")
    for module in ("psycopg", "psycopg_pool", "pgvector"):
        need(module, "postgres")
    from memory_serve.postgres import PostgresMemory

    return PostgresMemory(config, encoder or _encoder(), manager=manager)


def open_file(config: MemoryConfig, encoder: Encoder | None = None, manager: ChatModel | None = None) -> SqliteMemory:
    """The file of a config, whatever its `url`; see `open_memory`."""
    return SqliteMemory(config, encoder or _encoder(), manager=manager)


def _encoder() -> Encoder:
    from local_search.encoder import MiniLM

    return MiniLM()
