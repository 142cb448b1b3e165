"""Records that every part of MIA passes around: frozen, unknown fields forbidden, exact JSON round trip.

What is left out on purpose: a `Question` has no gold answer, so an agent cannot leak what it does not have; a failure
is a `Failure`, never text; `None` (unknown) is never 0 or False (wrong). Texts are Unicode without lone surrogates.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator


def clean_text(value: Any) -> Any:
    """Join surrogate pairs and replace lone surrogates by U+FFFD, so that a text can be stored, sent and printed."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


Text = Annotated[str, BeforeValidator(clean_text)]
"""A string that is always valid Unicode (see `clean_text`)."""


class Record(BaseModel):
    """Base of all records: frozen, strict about unknown fields, JSON round trip is exact."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


def now() -> datetime:
    """The current time, in UTC."""
    return datetime.now(UTC)


# ---------------------------------------------------------------------------------------------- questions


class Question(Record):
    """What is asked. Images are data URLs or http(s) URLs; `caption` describes them in words."""

    id: Text
    text: Text
    images: tuple[str, ...] = ()
    caption: Text = ""

    @property
    def modality(self) -> Modality:
        """`text-image` when the question shows or describes a picture, else `text-only`."""
        return "text-image" if self.images or self.caption.strip() else "text-only"


Modality = Literal["text-only", "text-image"]

# ---------------------------------------------------------------------------------------------- talking to a model

Role = Literal["manager", "planner", "executor", "judge", "router"]
"""The part a model plays; the config maps each role to an endpoint."""


class ToolCall(Record):
    """A tool call that a model made, with its parsed arguments."""

    id: str
    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class MalformedCall(Record):
    """A call that could not be read: its raw text and the reason, told to the model in the next observation."""

    id: str
    raw: Text
    reason: Text
    name: Text = ""


class Message(Record):
    """One turn of a conversation. `tool_calls` is used with native tool calling only."""

    role: Literal["system", "user", "assistant", "tool"]
    text: Text
    images: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class ToolSpec(Record):
    """A tool as the model is told of it; `parameters` is a JSON schema of the arguments.

    `needs_picture`: offered only with questions that have one. `once`: one call for each question, at most.
    """

    name: str
    description: str
    parameters: dict[str, JsonValue]
    needs_picture: bool = False
    once: bool = False


class Sampling(Record):
    """How to sample. `max_tokens` bounds the reply; `stop` texts end it and are not part of it."""

    temperature: float = Field(0.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(1024, ge=1)
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    repetition_penalty: float | None = None
    seed: int | None = None


class Usage(Record):
    """Token counts of one or more model calls, as the endpoint reports them (0 when it reports none)."""

    prompt_tokens: int = Field(0, ge=0)
    completion_tokens: int = Field(0, ge=0)
    calls: int = Field(0, ge=0)
    seconds: float = Field(0.0, ge=0)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            calls=self.calls + other.calls,
            seconds=self.seconds + other.seconds,
        )


class TokenRecord(Record):
    """Tokens of one sampled reply: P prompt ids and C completion ids, with mask and log-probabilities of length C."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    sampled_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]

    @model_validator(mode="after")
    def _same_length(self) -> TokenRecord:
        if not len(self.completion_ids) == len(self.sampled_mask) == len(self.logprobs):
            raise ValueError("completion_ids, sampled_mask and logprobs must have one entry per completion token")
        return self


class Reply(Record):
    """What a model answered. `reasoning` is the text of a separate reasoning field; it is never parsed for calls."""

    text: Text
    finish_reason: Literal["stop", "length", "tool_calls"] = "stop"
    tool_calls: tuple[ToolCall, ...] = ()
    malformed: tuple[MalformedCall, ...] = ()
    reasoning: Text = ""
    usage: Usage = Usage()
    model: str = ""
    tokens: TokenRecord | None = None


# ---------------------------------------------------------------------------------------------- search and tools


class Passage(Record):
    """One unit of a corpus."""

    id: str
    title: Text
    text: Text


class Hit(Record):
    """A passage found by a search: rank counts from 1, scores of different engines are not comparable."""

    passage: Passage
    score: float
    rank: int = Field(ge=1)
    backend: str = ""


Boundary = Literal["config", "data", "model", "tool", "memory", "parse", "judge"]
"""Where an error happened; each has its class in `mia.errors`."""


class Failure(Record):
    """A call that failed at a boundary. Recorded and counted; never shown to a model, never trained on."""

    boundary: Boundary
    code: str
    message: Text
    remedy: Text = ""
    retryable: bool = False


class Observation(Record):
    """What came back for one tool call: text for the model and the hits behind it, or a failure (then no text).

    `refused` says that the call itself was wrong (no such tool, arguments that do not fit); the text tells why.
    """

    call_id: str
    text: Text = ""
    images: tuple[str, ...] = ()
    hits: tuple[Hit, ...] = ()
    refused: bool = False
    failure: Failure | None = None
    seconds: float = Field(0.0, ge=0)

    @model_validator(mode="after")
    def _failure_has_no_text(self) -> Observation:
        if self.failure is not None and (self.text or self.images):
            raise ValueError("a failed observation carries no text and no image")
        return self


# ---------------------------------------------------------------------------------------------- memory


Outcome = Literal["correct", "incorrect", "unjudged"]


class Memory(Record):
    """A remembered workflow. `outcome` says how the run it comes from was judged; an unseen memory is 0/0.

    `uses` counts the times it was shown to the Planner and the run was judged; `successes` those that were right.
    `source_id` is the id of the question it comes from, `trajectory_id` that of the run.
    """

    id: str
    question: Text
    caption: Text = ""
    workflow: Text
    plan: Text = ""
    outcome: Outcome
    uses: int = Field(0, ge=0)
    successes: int = Field(0, ge=0)
    modality: Modality = "text-only"
    category: str = "others"
    created: datetime = Field(default_factory=now)
    source_id: Text = ""
    trajectory_id: Text = ""
    provenance: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _counters(self) -> Memory:
        if self.successes > self.uses:
            raise ValueError(f"successes ({self.successes}) cannot exceed uses ({self.uses})")
        return self


class ScoredMemory(Record):
    """A recalled memory with its score and the terms the score is made of."""

    memory: Memory
    score: float
    similarity: float
    terms: dict[str, float] = Field(default_factory=dict)


class Note(Record):
    """A text that a method other than MIA remembers: a trace, a fact, a rule, a lesson."""

    id: str
    text: Text
    similarity: float = 0.0


class Recalled(Record):
    """What memory has to say on a question; each list is sorted by score, best first."""

    successes: tuple[ScoredMemory, ...] = ()
    failures: tuple[ScoredMemory, ...] = ()
    unjudged: tuple[ScoredMemory, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of all recalled memories, to be given back as credit."""
        return tuple(s.memory.id for s in (*self.successes, *self.failures, *self.unjudged))


# ---------------------------------------------------------------------------------------------- what an agent did


class Plan(Record):
    """The Planner's plan (text after its thinking). Revision 0 is the first plan, 1 the replan."""

    text: Text
    memory_ids: tuple[str, ...] = ()
    revision: Literal[0, 1] = 0
    prompt_hash: str = ""


class Reflection(Record):
    """The Planner's verdict on an execution: plan again or not, and why."""

    replan: bool
    reason: Text = ""


class Step(Record):
    """One model turn. `told` are the messages added to that role's conversation before it; the reply follows them.

    Concatenating `told` and the reply over the steps of one role gives exactly what that role's model saw and wrote.
    A step without reply either failed (`failure`) or was scripted (calls made on the model's behalf, by config).
    """

    role: Role
    purpose: Literal["plan", "act", "answer", "reflect", "replan", "seed"]
    told: tuple[Message, ...] = ()
    reply: Reply | None = None
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[MalformedCall, ...] = ()
    observations: tuple[Observation, ...] = ()
    failure: Failure | None = None


StopReason = Literal[
    "answered",
    "forced_turns",
    "forced_calls",
    "forced_tokens",
    "forced_time",
    "forced_reminders",
    "no_answer",
    "failed",
]
"""Why an execution ended. `forced_*`: a limit was reached and one final answer was asked for (and given)."""


class Trajectory(Record):
    """All that happened for one question. Messages are derived from `steps` (see `conversation`)."""

    id: str
    question: Question
    recalled: Recalled = Recalled()
    recalled_again: Recalled = Recalled()  # the next best memories, for the replan
    plans: tuple[Plan, ...] = ()
    reflections: tuple[Reflection, ...] = ()
    steps: tuple[Step, ...] = ()
    answer: Text | None = None
    stop_reason: StopReason
    failure: Failure | None = None
    degraded: tuple[Failure, ...] = ()
    seconds: float = Field(0.0, ge=0)

    @property
    def usage(self) -> Usage:
        """Summed usage of all model calls."""
        return sum((s.reply.usage for s in self.steps if s.reply is not None), Usage())

    @property
    def hits(self) -> tuple[Hit, ...]:
        """All hits of all searches, in the order they came."""
        return tuple(hit for step in self.steps for obs in step.observations for hit in obs.hits)

    def conversation(self, role: Role) -> tuple[Message, ...]:
        """The messages of one role's conversation, replies included, as its model saw them."""
        messages: list[Message] = []
        for step in self.steps:
            if step.role == role:
                messages.extend(step.told)
                if step.reply is not None:
                    messages.append(as_message(step.reply))
        return tuple(messages)


def as_message(reply: Reply) -> Message:
    """The assistant turn that a reply adds to its conversation.

    A native call that could not be read stands there without arguments: every result needs the call it answers, and
    arguments that are no JSON are refused by some endpoints.
    """
    unread = tuple(ToolCall(id=bad.id, name=bad.name or "unknown") for bad in reply.malformed)
    return Message(role="assistant", text=reply.text, tool_calls=(*reply.tool_calls, *unread))


class Judgement(Record):
    """A verdict on an answer. `correct` is None when nothing judged it or the verdict could not be read."""

    correct: bool | None
    score: float | None = None
    method: Literal["em", "f1", "accepted", "choice", "gaia", "model", "browse", "panel", "none"]
    judge: str = ""
    prompt_hash: str = ""
    raw: Text = ""

    @property
    def outcome(self) -> Outcome:
        """The verdict as memory stores it."""
        return "unjudged" if self.correct is None else "correct" if self.correct else "incorrect"
