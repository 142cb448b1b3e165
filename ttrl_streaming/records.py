"""What the store keeps, as records: a question asked, what was said of its answer, an update of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mia.types import Failure, Question, Record
from ttrl.learner import Update
from ttrl.records import Rolled
from ttrl_streaming.schema import FeedbackItem, GateOutcome

State = Literal["waiting", "scored", "learned", "remembered", "refused"]
"""Of feedback: not looked at yet; in the queue for an update; or settled, in one of three ways."""


class Ask(Record):
    """A question. `rolled` is its official rollout; None while it is worked on, and for questions answered elsewhere.

    `version` is that of the weights that answered, `elsewhere` the answer of another agent.
    """

    id: str
    namespace: str
    question: Question
    seed: int
    state: Literal["asked", "answered", "failed", "elsewhere"] = "asked"
    version: int = 0
    rolled: Rolled | None = None
    failure: Failure | None = None
    elsewhere: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Entry:
    """Feedback in the store, with the question it is about. `number` is its place in the order of arrival."""

    number: int
    ask: Ask
    item: FeedbackItem
    state: State
    reward: float | None
    reference: tuple[str, ...] | None
    memory: str


class Stepped(Record):
    """What is kept of an update: what it did, and what the gate said."""

    update: Update
    gate: GateOutcome
    questions: int
    answered: float | None


@dataclass(frozen=True, slots=True)
class Settling:
    """How feedback ends: by its number, its state, and why it was not learned from."""

    number: int
    state: State
    reason: str = ""
