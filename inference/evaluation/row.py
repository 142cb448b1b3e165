"""One row of a run: what became of one question, without the trajectory.

Three things are kept apart: a wrong answer (metrics are 0), a run that failed (`failure`; it has no metrics), and an
answer that could not be judged (`judgement` is None, `unjudged` says why; `no_feedback`: why the panel that memory
learns from has no opinion). `degraded` marks answers that came about with something missing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import Field

from inference.evaluation.config import EvalConfig, Price
from inference.evaluation.scores import score
from inference.runs import Run
from memory_serve.protocol import Added
from mia.examples import Example
from mia.types import Failure, Judgement, Record, StopReason, Text, Usage

Kind = Literal["plan", "memory", "search", "reflection", "model", "judge", "other"]
"""What was missing: the plan, what memory knows, what a search would have found, the reflection, an answer of a model
that the run could do without, a verdict."""
KINDS: tuple[Kind, ...] = get_args(Kind)
_BY_CODE: dict[str, Kind] = {"no_plan": "plan", "verdict": "reflection"}
_BY_BOUNDARY: dict[str, Kind] = {"memory": "memory", "tool": "search", "model": "model"}


@dataclass(frozen=True, slots=True)
class Item:
    """One question of the stream; `place` counts from 0 through all repeats."""

    example: Example
    repeat: int
    place: int
    run: str


class Row(Record):
    """See the module. `recalled` counts memories and notes that were shown; `cost` is that of the agent's own calls."""

    id: Text
    repeat: int = Field(ge=0)
    run: str
    place: int = Field(ge=0)
    answer: Text | None
    stop_reason: StopReason
    metrics: dict[str, float] = Field(default_factory=dict)
    judgement: Judgement | None = None
    feedback: Judgement | None = None
    unjudged: Failure | None = None
    no_feedback: Failure | None = None
    failure: Failure | None = None
    degraded: tuple[Kind, ...] = ()
    codes: tuple[str, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    tool_calls: dict[str, int] = Field(default_factory=dict)
    recalled: int = 0
    replanned: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model_calls: int = 0
    cost: float = 0.0
    seconds: float = 0.0

    @property
    def correct(self) -> bool | None:
        """The verdict; None if there is none."""
        return None if self.judgement is None else self.judgement.correct

    @property
    def judge_failed(self) -> bool:
        """Whether a judge, or the panel, did not answer. What answered but could not be read has said its last word."""
        return any(f is not None and f.boundary != "judge" for f in (self.unjudged, self.no_feedback))


class Learned(Record):
    """What memory made of a run: what it stored, if anything, or why it could not.

    `usage` is what it asked the Manager's model since the run before, for recalling too.
    """

    run: str
    added: Added | None = None
    failure: Failure | None = None
    usage: Usage = Usage()


def make_row(item: Item, run: Run, answered: Run, config: EvalConfig) -> Row:
    """The row of a run.

    Args:
        item: the question.
        run: the run, judged unless it failed.
        answered: the same before it was judged; what it lacks was added by the judges.
        config: metrics and price.
    """
    failed = run.failure is not None
    by_judges = run.degraded[len(answered.degraded) :]
    usage = run.usage
    tools = config.method.traits.tools  # a call for a tool where there is none was answered by words
    calls = Counter(call.name for step in run.steps for call in step.calls if tools)
    recalled = run.recalled
    return Row(
        id=run.question.id,
        repeat=item.repeat,
        run=run.id,
        place=item.place,
        answer=run.answer,
        stop_reason=run.stop_reason,
        metrics={} if failed else score(config.eval.metrics, run, item.example),
        judgement=run.judgement,
        feedback=run.feedback,
        unjudged=by_judges[0] if by_judges and run.judgement is None else None,
        no_feedback=by_judges[-1] if by_judges and _wants_feedback(config) and run.feedback is None else None,
        failure=run.failure,
        degraded=() if failed else _degraded(answered, bool(by_judges), config),
        codes=tuple(f"{failure.boundary}/{failure.code}" for failure in run.degraded),
        labels=_labels(item.example),
        tool_calls=dict(sorted(calls.items())),
        recalled=len(recalled.ids) + len(recalled.notes),
        replanned=any(plan.revision for plan in run.plans),
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        model_calls=usage.calls,
        cost=cost_of(config.eval.price, usage.prompt_tokens, usage.completion_tokens),
        seconds=run.seconds,
    )


def _wants_feedback(config: EvalConfig) -> bool:
    return config.learns and config.method.judged_by == "panel"


def cost_of(price: Price, prompt_tokens: int, completion_tokens: int) -> float:
    """The price of so many tokens."""
    return (prompt_tokens * price.input + completion_tokens * price.output) / 1_000_000


def _degraded(run: Run, unjudged: bool, config: EvalConfig) -> tuple[Kind, ...]:
    """The kinds of what was missing, each once, in the order of `Kind`."""
    kinds = {_BY_CODE.get(failure.code) or _BY_BOUNDARY.get(failure.boundary, "other") for failure in run.degraded}
    if config.agent.plan and config.method.traits.plan and not run.plans:
        kinds.add("plan")
    if unjudged:
        kinds.add("judge")
    return tuple(kind for kind in KINDS if kind in kinds)


def _labels(example: Example) -> dict[str, str]:
    """What rows are grouped by; labels that the dataset does not give are left out."""
    labels = {name: getattr(example, name) for name in ("source", "part", "type", "category", "level", "modality")}
    return {name: value for name, value in labels.items() if value}
