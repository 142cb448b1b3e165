"""Opens the memory that the settings ask for: a service, or a file in this process."""

from __future__ import annotations

from local_search.protocol import Encoder
from memory_serve.client import MemoryClient
from memory_serve.config import MemoryConfig
from memory_serve.protocol import MemoryStore
from memory_serve.store import SqliteMemory


def open_memory(config: MemoryConfig, encoder: Encoder | None = None) -> MemoryStore:
    """The store of a config, to be closed by the caller.

    Args:
        config: `url` decides between service and file.
        encoder: for the file; None for all-MiniLM-L6-v2, which is loaded when something is first encoded.

    Raises:
        MemoryStoreError: the file cannot be used, or its vectors were made by another encoder.
    """
    return MemoryClient(config.url) if config.url else open_file(config, encoder)


def open_file(config: MemoryConfig, encoder: Encoder | None = None) -> SqliteMemory:
    """The file of a config, whatever its `url`; see `open_memory`."""
    if encoder is None:
        from local_search.encoder import MiniLM

        encoder = MiniLM()
    return SqliteMemory(config, encoder)
