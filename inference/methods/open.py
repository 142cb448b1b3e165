"""Opens the memory of the method that a config names."""

from __future__ import annotations

from collections.abc import Mapping

from inference.config import RunConfig
from inference.methods.mia import MiaMethod
from inference.methods.protocol import Method
from local_search.protocol import Encoder
from memory_serve.open import open_memory
from mia.chat import ChatModel
from mia.errors import ConfigError, MemoryStoreError
from mia.types import Role


def open_method(config: RunConfig, encoder: Encoder, models: Mapping[Role, ChatModel]) -> Method | None:
    """The method's memory; None if it has none, or if `memory.enabled` is false.

    Args:
        config: the run's config.
        encoder: shared with the search.
        models: closed by their owner.

    Raises:
        MiaError: the memory cannot be used.
    """
    name = config.method.name
    if not config.method.traits.memory or not config.memory.enabled:
        return None
    if name in ("mia", "mia_unsupervised"):
        try:
            store = open_memory(config.memory, encoder, models["manager"]).scoped(actor="agent")
        except MemoryStoreError as error:
            error.remedy = f"{error.remedy}; or go on without memory: --memory.enabled false"
            raise
        return MiaMethod(store, config.memory.summary, models["manager"])
    raise ConfigError(f"method {name!r} is not there")
