"""Bodies of the service that learns: what is asked and answered over HTTP; unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictFloat, StrictInt, StringConstraints, model_validator

from mia.errors import ErrorBody
from mia.examples import Reference
from mia.types import Failure, Record, Text

MAX_FEEDBACK = 10_000
"""Items of one request."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}$")]
"""A namespace, or an id that the client gives."""


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("this is blank")
    return text.strip()


Told = Annotated[Text, Field(max_length=20_000), AfterValidator(_filled)]
Short = Annotated[Text, Field(max_length=2_000), AfterValidator(_filled)]


def _data(url: str) -> str:
    if not url.startswith("data:image/"):
        raise ValueError("a picture is sent as a data URL")
    return url


class AskRequest(Record):
    """A question. `id` makes the request safe to repeat: it is answered once. `seed` fixes the sampling."""

    question: Told
    images: tuple[Annotated[str, AfterValidator(_data)], ...] = Field((), max_length=8)
    caption: Text = Field("", max_length=20_000)
    namespace: Name = "default"
    id: Name | None = None
    seed: StrictInt | None = Field(None, ge=0, lt=2**63)
    stream: StrictBool = False


class Answer(Record):
    """An answer. `version` counts the updates behind the weights that wrote every token of the plan."""

    id: str
    namespace: str
    answer: Text | None
    plan: Text
    version: int
    stop_reason: str
    recalled: tuple[str, ...] = ()
    degraded: tuple[Failure, ...] = ()
    seconds: float = 0.0


class FeedbackItem(Record):
    """What is said of an answer: exactly one of reward, label and correction.

    `reward` is a number from -1 to 1. `label` is `right` or `wrong`, or else the right answer; a list holds right
    answers only, so that one of them may be the word `right`. `correction` is what a person said in words.
    """

    id: Name
    reward: StrictFloat | None = Field(None, ge=-1, le=1, allow_inf_nan=False)
    label: Short | tuple[Short, ...] | None = None
    correction: Told | None = None

    @model_validator(mode="after")
    def _one(self) -> FeedbackItem:
        given = [name for name in ("reward", "label", "correction") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of reward, label and correction, not {' and '.join(given) or 'none'}")
        if isinstance(self.label, tuple) and not 1 <= len(self.label) <= 16:
            raise ValueError("a list of right answers holds 1 to 16")
        return self

    @property
    def verdict(self) -> bool | None:
        """What the label says of the answer itself; None where it is a reference, or there is none."""
        word = self.label.casefold() if isinstance(self.label, str) else ""
        return {"right": True, "wrong": False}.get(word)

    @property
    def reference(self) -> Reference | None:
        """The right answers, if the label gives them."""
        if self.label is None or self.verdict is not None:
            return None
        return Reference(answers=(self.label,) if isinstance(self.label, str) else self.label)


Outcome = Literal["queued", "known", "replaced", "remembered"]


class Taken(Record):
    """What became of an item. `queued`: it will be learned from. `known`: it was sent before. `replaced`: it takes the
    place of what was said before, which nothing was learned from yet. `remembered`: the weights have learned what was
    said before, so that only memory was changed. Or the error that refused it.
    """

    id: str
    outcome: Outcome | None = None
    reason: str = ""
    error: ErrorBody | None = None


class FeedbackAnswer(Record):
    """One result for each item, in order."""

    results: tuple[Taken, ...]


class EpisodeItem(Record):
    """A question that was answered elsewhere, the answer, and what the user said next; `id` makes it safe to repeat."""

    id: Name
    question: Told
    answer: Told
    said: Told


class EpisodesRequest(Record):
    """Episodes of conversations."""

    episodes: tuple[EpisodeItem, ...] = Field(min_length=1, max_length=1_000)
    namespace: Name = "default"


class Scoped(Record):
    """A body that says whose weights are meant."""

    namespace: Name = "default"


class FlushAnswer(Record):
    """What a flush did: feedback that left the queue, and the version after it."""

    settled: int
    queued: int
    version: int


class RollbackRequest(Scoped):
    """Which version to go back to; None: the one that the current weights were made from."""

    version: StrictInt | None = None


class VersionAnswer(Record):
    """The version that serves, and, of a checkpoint, the name of its folder in the folder of the run."""

    namespace: str
    version: int
    name: str = ""


class Alarm(Record):
    """Something that a person should look at."""

    kind: Literal["drift", "entropy", "malformed"]
    value: float
    bound: float


class Status(Record):
    """Counters of a namespace. `feedback` adds up: received is the sum of learned, remembered, refused, queued, known,
    replaced, contradicted, unknown and malformed; the last two are those of the whole service.
    """

    namespace: str
    version: int
    asked: int
    answered: int
    failed: int
    working: int
    feedback: dict[str, int]
    reasons: dict[str, int] = Field(description="why feedback was not learned from")
    held_back: int
    updates: int
    refused_updates: int
    trainer: Literal["off", "starting", "idle", "training", "failed"]
    last_gate: GateOutcome | None = None
    last_failure: Failure | None = None
    alarms: tuple[Alarm, ...] = ()


class GateOutcome(Record):
    """What the gate said: mean rewards of held-back questions before and after; `passed` with too few of them."""

    passed: bool
    questions: int
    before: float | None = None
    after: float | None = None


class Point(Record):
    """An update: `version` is the one it made, None if the gate refused it. `reward` is the mean of what was learned.

    `answered` is the mean reward of official answers that `parent`, the version before, gave.
    """

    number: int
    at: float
    parent: int
    version: int | None
    questions: int
    trained: int
    reward: float | None
    answered: float | None
    loss: float
    gradient: float
    entropy: float | None
    gate: GateOutcome


class Curve(Record):
    """The updates of a namespace, in order."""

    points: tuple[Point, ...]


Status.model_rebuild()
