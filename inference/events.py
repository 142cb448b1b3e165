"""What happens during a run, as it happens: small records for the terminal, the event stream and the page."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mia.types import Failure, Judgement, Observation, Plan, Recalled, Record, Reflection, StopReason, Text, ToolCall


class RecallDone(Record):
    """Memory was asked, for the plan (revision 0) or the replan (1)."""

    event: Literal["recall"] = "recall"
    recalled: Recalled
    revision: Literal[0, 1] = 0


class PlanMade(Record):
    """The Planner wrote a plan (revision 0) or a replan (1)."""

    event: Literal["plan"] = "plan"
    plan: Plan


class CallsMade(Record):
    """The Executor asked for tools. `scripted` marks calls made on its behalf, by config."""

    event: Literal["calls"] = "calls"
    calls: tuple[ToolCall, ...]
    scripted: bool = False


class Observed(Record):
    """The tools answered; one observation per call, in the order of the calls."""

    event: Literal["observed"] = "observed"
    calls: tuple[ToolCall, ...]
    observations: tuple[Observation, ...]


class Noted(Record):
    """The Executor was told that its reply could not be used, or that it must answer now."""

    event: Literal["note"] = "note"
    reason: Text


class Reflected(Record):
    """The Planner decided whether to plan again."""

    event: Literal["reflection"] = "reflection"
    reflection: Reflection


class Answered(Record):
    """The Executor gave an answer, or none."""

    event: Literal["answer"] = "answer"
    answer: Text | None
    stop_reason: StopReason


class Degraded(Record):
    """Something failed and the run went on without it."""

    event: Literal["degraded"] = "degraded"
    failure: Failure


class Judged(Record):
    """The answer was judged."""

    event: Literal["judged"] = "judged"
    judgement: Judgement


class Remembered(Record):
    """The run was stored in memory."""

    event: Literal["remembered"] = "remembered"
    memory_id: str
    action: str


Event = Annotated[
    RecallDone | PlanMade | CallsMade | Observed | Noted | Reflected | Answered | Degraded | Judged | Remembered,
    Field(discriminator="event"),
]
