"""What an episode may ask of the world. Episodes are generators that yield effects; a driver answers them.

    Generate   -> Reply                 a model's turn (ModelError is thrown in when the call failed)
    CallTools  -> tuple[Observation]    one per call, in order; a failed call is an observation with a failure
    Recall     -> Recalled              memories of a question (MemoryStoreError is thrown in)
    Announce   -> None                  something worth telling whoever watches

Episodes do no input or output themselves, so training, evaluation, serving and tests run the same code.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from inference.events import Event
from mia.types import Message, Question, Role, Sampling, ToolCall, ToolSpec


@dataclass(frozen=True, slots=True)
class Generate:
    """Let the model of a role answer a conversation. `tools` is set for native tool calling only."""

    role: Role
    messages: tuple[Message, ...]
    sampling: Sampling
    tools: tuple[ToolSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class CallTools:
    """Run tool calls made for a question, all at once."""

    calls: tuple[ToolCall, ...]
    question: Question


@dataclass(frozen=True, slots=True)
class Recall:
    """Look up memories of a question: the best ones (page 0), or the next best as many times further down."""

    question: Question
    page: int = 0


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell those who watch."""

    event: Event


Effect = Generate | CallTools | Recall | Announce
T = TypeVar("T")
Episode = Generator[Effect, Any, T]
"""A generator of effects that returns a T; each `yield` is answered as the module docstring says."""
