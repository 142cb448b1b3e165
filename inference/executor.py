"""The Executor's episode: a ReAct loop that thinks, calls tools, reads results and answers.

It ends with an answer, or with one forced final answer when turns, calls, tokens, time or patience run out; what was
found stays in the conversation. A model's mistake (malformed call, unknown tool) is told to the model; a tool's failure
never is. Token counts come from the endpoint; what it has not seen yet is estimated at three bytes a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference.config import AgentConfig
from inference.effects import Announce, CallTools, Episode
from inference.events import CallsMade, Noted, Observed
from inference.grammar import WANTED, Parsed, parse, split_thinking
from inference.tools import MAX_QUERY
from inference.transcript import Transcript
from mia.errors import as_error
from mia.prompts import Trusted, prompt
from mia.types import Message, Observation, Question, Reply, Step, StopReason, ToolCall, ToolSpec

BYTES_PER_TOKEN = 3
FORCE_TOKENS = 96
"""Tokens kept free for the message that asks for the final answer."""
PICTURE_TOKENS = 1024
"""What a picture is taken for until the endpoint has counted it; they differ from 300 to 3,000."""

REASONS: dict[StopReason, str] = {
    "forced_turns": "the limit of turns is reached",
    "forced_calls": "the limit of calls is reached",
    "forced_tokens": "the context is full",
    "forced_time": "the time is up",
    "forced_reminders": "no usable reply was given",
}


@dataclass(frozen=True, slots=True)
class Execution:
    """How an execution ended."""

    answer: str | None
    stop_reason: StopReason


@dataclass
class Budget:
    """What is left for one question: calls, time (by an injected clock, in seconds) and context (in tokens)."""

    calls: int
    deadline: float
    clock: Callable[[], float]
    context: int
    reply_tokens: int
    used_tokens: int = 0

    def account(self, reply: Reply, conversation: Sequence[Message]) -> None:
        """Take note of the size of the conversation, as the endpoint counted it, or estimated if it counts nothing."""
        counted = reply.usage.prompt_tokens + reply.usage.completion_tokens
        self.used_tokens = counted or size(conversation) // BYTES_PER_TOKEN

    def room(self, replies: int) -> int:
        """Bytes of new text that fit, if that many replies and a forced answer must still fit after it."""
        tokens = self.context - self.used_tokens - replies * self.reply_tokens - FORCE_TOKENS
        return max(0, tokens) * BYTES_PER_TOKEN

    def share(self, results: int, images: Sequence[str] = ()) -> int:
        """Bytes that each of several results may take beside images, so that a final answer can still be asked for."""
        room = self.room(replies=1) - len(images) * PICTURE_TOKENS * BYTES_PER_TOKEN
        return room // max(1, results) - 2 * FORCE_TOKENS

    def exhausted(self, told: tuple[Message, ...]) -> StopReason | None:
        """Why no further turn is possible after `told`, or None."""
        if self.calls <= 0:
            return "forced_calls"
        if self.clock() >= self.deadline:
            return "forced_time"
        if size(told) > self.room(replies=2):
            return "forced_tokens"
        return None


def size(messages: Sequence[Message]) -> int:
    """Bytes of the texts of messages, and for each picture the text that would cost as much."""
    texts = sum(len(message.text.encode()) for message in messages)
    return texts + sum(len(message.images) for message in messages) * PICTURE_TOKENS * BYTES_PER_TOKEN


def user(text: str) -> Message:
    """A user turn."""
    return Message(role="user", text=text)


def describe(tools: tuple[ToolSpec, ...]) -> Trusted:
    """The tools as a prompt names them, one line each."""
    lines = []
    for tool in tools:
        properties = tool.parameters.get("properties")
        names = ", ".join(properties) if isinstance(properties, dict) else ""
        lines.append(f"- {tool.name}({names}): {tool.description}")
    return Trusted("\n".join(lines))


def executor_episode(
    transcript: Transcript,
    question: Question,
    told: tuple[Message, ...],
    tools: tuple[ToolSpec, ...],
    agent: AgentConfig,
    budget: Budget,
) -> Episode[Execution]:
    """Work until there is an answer.

    Args:
        transcript: filled with every step.
        question: what is asked; repeated when the final answer is asked for.
        told: the messages that open (or, after a replan, reopen) the conversation.
        tools: the tools there are.
        agent: limits and sampling.
        budget: what is left for this question.

    Raises:
        MiaError: the model or all tools of a turn failed; the steps so far are in the transcript.
    """
    native = tools if agent.tool_format == "native" else ()
    reminders = 0
    reason: StopReason | None = budget.exhausted(told)
    for _ in range(agent.max_turns):
        if reason is not None:
            break
        reply = yield from transcript.turn("executor", "act", told, agent.executor, native)
        budget.account(reply, transcript.conversations["executor"])
        parsed = parse(reply, turn=len(transcript.steps), native=bool(native))
        if parsed.answer is not None:
            return Execution(parsed.answer, "answered")
        told = yield from _respond(transcript, question, parsed, tools, agent, budget)
        reminders = 0 if parsed.calls else reminders + 1
        reason = "forced_reminders" if reminders > agent.max_reminders else budget.exhausted(told)
    return (yield from _force(transcript, question, told, agent, reason or "forced_turns"))


def _respond(
    transcript: Transcript,
    question: Question,
    parsed: Parsed,
    tools: tuple[ToolSpec, ...],
    agent: AgentConfig,
    budget: Budget,
) -> Episode[tuple[Message, ...]]:
    """What the model is told after a reply without answer: results, or what was wrong with it."""
    if parsed.calls or parsed.malformed:
        return (yield from _act(transcript, question, parsed, tools, agent, budget))
    if parsed.cut:
        text = prompt("executor/cut").render(limit=str(agent.executor.max_tokens))
    elif not tools:
        text = prompt("executor/reminder_direct").render()
    elif agent.tool_format == "native":
        text = prompt("executor/reminder_native").render()
    else:
        text = prompt("executor/reminder").render(wanted=Trusted(WANTED))
    yield Announce(Noted(reason="reply cut off" if parsed.cut else "no call and no answer found"))
    return (user(text),)


def _act(
    transcript: Transcript,
    question: Question,
    parsed: Parsed,
    tools: tuple[ToolSpec, ...],
    agent: AgentConfig,
    budget: Budget,
) -> Episode[tuple[Message, ...]]:
    calls, refused = _admitted(transcript, parsed.calls, tools, min(agent.max_parallel, max(0, budget.calls)))
    transcript.amend(calls=calls, malformed=parsed.malformed)
    observations: tuple[Observation, ...] = ()
    if calls:
        observations = yield from run_calls(transcript, question, calls, budget)
    for bad in parsed.malformed:
        yield Announce(Noted(reason=f"malformed call: {bad.reason}"))
    wanted = "the tool's name and a JSON object of its arguments" if agent.tool_format == "native" else Trusted(WANTED)
    template = prompt("executor/malformed")
    notes = [(bad.id, template.render(reason=bad.reason, wanted=wanted)) for bad in parsed.malformed]
    notes += refused
    if agent.tool_format == "native":
        return native_results(observations, notes, budget)
    text = results_text(calls, observations, notes, budget)
    return (Message(role="user", text=text, images=pictures(observations, budget)),)


def _admitted(
    transcript: Transcript, calls: tuple[ToolCall, ...], tools: tuple[ToolSpec, ...], allowed: int
) -> tuple[tuple[ToolCall, ...], list[tuple[str, str]]]:
    """The calls that may be run, and for the ids of the others why not."""
    once = {tool.name for tool in tools if tool.once}
    used = {call.name for step in transcript.steps for call in step.calls}
    admitted: list[ToolCall] = []
    refused = []
    for call in calls:
        if call.name in once & used:
            refused.append((call.id, f"Not run: {call.name} can be used once for each question."))
        elif len(admitted) == allowed:
            refused.append((call.id, f"Not run: at most {allowed} calls are possible here."))
        else:
            admitted.append(call)
            used.add(call.name)
    return tuple(admitted), refused


def run_calls(
    transcript: Transcript, question: Question, calls: tuple[ToolCall, ...], budget: Budget, scripted: bool = False
) -> Episode[tuple[Observation, ...]]:
    """Run calls and record what came back in the last step.

    Raises:
        MiaError: every call failed; the error of the first. Single failures are noted as degraded.
    """
    yield Announce(CallsMade(calls=calls, scripted=scripted))
    observations: tuple[Observation, ...] = yield CallTools(calls, question)
    budget.calls -= len(calls)
    transcript.amend(observations=observations)
    yield Announce(Observed(calls=calls, observations=observations))
    failures = [obs.failure for obs in observations if obs.failure is not None]
    if failures and len(failures) == len(observations):
        raise as_error(failures[0])
    transcript.degraded.extend(failures)
    return observations


def results_text(
    calls: tuple[ToolCall, ...], observations: tuple[Observation, ...], notes: list[tuple[str, str]], budget: Budget
) -> str:
    """One tool response with all results, cut to what fits the context; failed calls are left out."""
    shown = [(call, obs) for call, obs in zip(calls, observations, strict=True) if obs.failure is None]
    share = budget.share(len(shown), pictures(observations, budget))
    parts = [prompt("executor/result").render(query=label(call), text=clip(obs.text, share)) for call, obs in shown]
    parts += [note for _, note in notes]
    return prompt("executor/observation").render(results=Trusted("\n\n".join(parts)))


def native_results(
    observations: tuple[Observation, ...], notes: list[tuple[str, str]], budget: Budget
) -> tuple[Message, ...]:
    """One tool message per call, as native tool calling wants it, cut like ours; that of a failed call is empty.

    Tool messages hold text alone at most endpoints, so pictures follow in a user message.
    """
    found = pictures(observations, budget)
    share = budget.share(len(observations), found)
    texts = [(obs.call_id, prompt("executor/bare").render(text=clip(obs.text, share))) for obs in observations]
    told = tuple(Message(role="tool", text=text, tool_call_id=call_id) for call_id, text in (*texts, *notes))
    shown = Message(role="user", text=prompt("executor/pictures").render(), images=found)
    return (*told, shown) if found else told


def pictures(observations: tuple[Observation, ...], budget: Budget) -> tuple[str, ...]:
    """The pictures of observations, in order, as many as fit the context."""
    found = tuple(image for obs in observations for image in obs.images)
    return found[: budget.room(replies=1) // (PICTURE_TOKENS * BYTES_PER_TOKEN)]


def unanswered(transcript: Transcript) -> tuple[Message, ...]:
    """Results for native calls that the last reply made although only an answer was asked for: each call needs one."""
    last = transcript.conversations["executor"][-1]
    note = "Not run: the final answer was asked for."
    return tuple(Message(role="tool", text=note, tool_call_id=call.id) for call in last.tool_calls)


def clip(text: str, limit: int) -> str:
    """The text cut to `limit` bytes at a white space, marked as cut."""
    data = text.encode()
    if len(data) <= limit:
        return text
    kept = data[: max(0, limit)].decode("utf-8", "ignore")
    return f"{kept[: kept.rfind(' ')] if ' ' in kept else kept} [cut]"


def label(call: ToolCall) -> str:
    """A call in a few words: its query or address, else its name and arguments."""
    words = call.arguments.get("query") or call.arguments.get("url")
    return f'"{words}"' if isinstance(words, str) else f"{call.name} {call.arguments}"


def _force(
    transcript: Transcript,
    question: Question,
    told: tuple[Message, ...],
    agent: AgentConfig,
    reason: StopReason,
) -> Episode[Execution]:
    """Ask for the final answer. Without tags, the whole reply after its thinking is the answer."""
    yield Announce(Noted(reason=f"final answer asked for: {REASONS[reason]}"))
    ask = user(prompt("executor/force").render(reason=REASONS[reason], question=question.text))
    reply = yield from transcript.turn("executor", "answer", (*told, ask), agent.answer)
    parsed = parse(reply, turn=len(transcript.steps), native=agent.tool_format == "native")
    if parsed.answer is not None:
        return Execution(parsed.answer, reason)
    if parsed.calls or parsed.malformed or parsed.rest.startswith("<answer>"):
        return Execution(None, "no_answer")
    _, prose = split_thinking(reply.text)
    return Execution(prose.strip() or None, reason if prose.strip() else "no_answer")


def seed_search(
    transcript: Transcript, question: Question, tools: tuple[ToolSpec, ...], budget: Budget
) -> Episode[str]:
    """One search made on the Executor's behalf; returns the tool response that opens its conversation."""
    calls = (ToolCall(id="seed", name=tools[0].name, arguments={"query": question.text[:MAX_QUERY]}),)
    transcript.steps.append(Step(role="executor", purpose="seed", calls=calls))
    observations = yield from run_calls(transcript, question, calls, budget, scripted=True)
    return results_text(calls, observations, [], budget)
