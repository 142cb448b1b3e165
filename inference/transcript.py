"""The record of a run while it goes on: steps in order, and the conversation each role's next turn is built on.

It outlives the episode that fills it, so an interrupted run keeps what was done.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from inference.effects import Effect, Generate
from mia.errors import MiaError
from mia.types import Failure, Message, Plan, Recalled, Reflection, Reply, Role, Sampling, Step, ToolSpec, as_message

Purpose = Any


@dataclass
class Transcript:
    """What has happened so far. `conversations` are kept in step with `steps`."""

    recalled: Recalled = field(default_factory=Recalled)
    recalled_again: Recalled = field(default_factory=Recalled)
    plans: list[Plan] = field(default_factory=list)
    reflections: list[Reflection] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    degraded: list[Failure] = field(default_factory=list)
    conversations: dict[Role, list[Message]] = field(default_factory=dict)

    def turn(
        self,
        role: Role,
        purpose: Purpose,
        told: tuple[Message, ...],
        sampling: Sampling,
        tools: tuple[ToolSpec, ...] = (),
    ) -> Generator[Effect, Any, Reply]:
        """One model turn: `told` is added to the role's conversation, the model answers, both are recorded.

        Raises:
            MiaError: the call failed; the step is recorded with its failure.
        """
        conversation = self.conversations.setdefault(role, [])
        conversation.extend(told)
        try:
            reply: Reply = yield Generate(role, tuple(conversation), sampling, tools)
        except MiaError as error:
            self.steps.append(Step(role=role, purpose=purpose, told=told, failure=error.failure()))
            raise
        conversation.append(as_message(reply))
        self.steps.append(Step(role=role, purpose=purpose, told=told, reply=reply))
        return reply

    def amend(self, **changes: Any) -> None:
        """Complete the last step with what became known of it (calls, observations)."""
        self.steps[-1] = self.steps[-1].model_copy(update=changes)
