"""Opens the memory that the settings ask for: a service, or a file in this process."""

from __future__ import annotations

from local_search.protocol import Encoder
from memory_serve.client import MemoryClient
from memory_serve.config import MemoryConfig
from memory_serve.protocol import MemoryStore
from memory_serve.store import SqliteMemory
from mia.chat import ChatModel


def open_memory(config: MemoryConfig, encoder: Encoder | None = None, manager: ChatModel | None = None) -> MemoryStore:
    """The store of a config, to be closed by the caller.

    Args:
        config: `url` decides between service and file.
        encoder: for the file; None for all-MiniLM-L6-v2, which is loaded when something is first encoded.
        manager: for the file; names the categories of questions if `classify` is "model".

    Raises:
        MemoryStoreError: the file cannot be used, or its vectors were made by another encoder.
    """
    if config.url:
        return MemoryClient(config.url, token_env=config.token_env).scoped(config.namespace)
    return open_file(config, encoder, manager)


def open_file(config: MemoryConfig, encoder: Encoder | None = None, manager: ChatModel | None = None) -> SqliteMemory:
    """The file of a config, whatever its `url`; see `open_memory`."""
    if encoder is None:
        from local_search.encoder import MiniLM

        encoder = MiniLM()
    return SqliteMemory(config, encoder, manager=manager)
