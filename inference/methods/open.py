"""Opens the memory of the method that a config names. The package of Mem0 is imported when it is the one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from inference.config import RunConfig
from inference.executor import BYTES_PER_TOKEN
from inference.methods.amem import AMemMethod
from inference.methods.expel import ExpelMethod
from inference.methods.mem0 import Mem0Method
from inference.methods.memento import MementoMethod
from inference.methods.mia import MiaMethod
from inference.methods.notebook import Notebook
from inference.methods.protocol import Method
from inference.methods.rag import SummaryMethod, TraceMethod
from inference.methods.reasoningbank import ReasoningBankMethod
from local_search.protocol import Encoder
from memory_serve.open import open_memory
from mia.chat import ChatModel
from mia.embedded import NAME as EMBEDDED
from mia.errors import ConfigError, MemoryStoreError, MiaError
from mia.paths import home
from mia.types import Role

_SHARE = 4
"""Notes may fill this part of what their reader can read (the original: 8,192 words of 32,768 tokens)."""
_ASK_THE_MANAGER = ("mem0", "amem", "expel", "reasoningbank")
"""Methods that cannot learn without a Manager that writes JSON."""


def open_method(config: RunConfig, encoder: Encoder, models: Mapping[Role, ChatModel]) -> Method | None:
    """The method's memory; None if it has none, or if `memory.enabled` is false.

    Args:
        config: the run's config.
        encoder: shared with the search.
        models: closed by their owner.

    Raises:
        MiaError: the memory cannot be used, or the Manager cannot do what the method asks of it.
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
    if name in _ASK_THE_MANAGER and models["manager"].name == EMBEDDED:
        raise ConfigError(
            f"method {name} needs a Manager that writes JSON, and the embedded model cannot",
            remedy="set [models.manager] to an endpoint, or choose rag_traces, rag_summaries, memento or mia",
            code="weak_manager",
        )
    return _noting(config, encoder, models)


def notes_path(config: RunConfig) -> Path:
    """The file of a method's notes: `method.path`, else one of its name in `$MIA_HOME/methods`."""
    return config.method.path or home() / "methods" / f"{config.method.name}.db"


def _noting(config: RunConfig, encoder: Encoder, models: Mapping[Role, ChatModel]) -> Method:
    """A method that keeps its notes in a notebook."""
    name, manager = config.method.name, models["manager"]
    room = models[config.method.traits.reader].context // _SHARE * BYTES_PER_TOKEN
    notebook = Notebook(notes_path(config), name, encoder)
    try:
        match name:
            case "rag_traces":
                return TraceMethod(notebook, room)
            case "rag_summaries":
                return SummaryMethod(notebook, room, config.memory.summary, manager)
            case "mem0":
                return Mem0Method(notebook, room, manager, encoder, config.memory.namespace)
            case "amem":
                return AMemMethod(notebook, room, manager)
            case "expel":
                return ExpelMethod(notebook, room, manager)
            case "reasoningbank":
                return ReasoningBankMethod(notebook, room, manager)
            case "memento":
                return MementoMethod(notebook, room)
        raise ConfigError(f"method {name} keeps no notes")
    except MiaError:
        notebook.close()
        raise
