"""The whole of MIA for one question: recall, plan, execute, reflect, at most one replan, execute again.

A replan recalls the memories that come next in rank: the first ones were shown already.

What may fail without ending the run (memory, an unreadable plan or verdict, the reflection itself) is recorded as
degraded; a failure of the Planner's plan call, of the Executor or of all searches ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from inference.config import AgentConfig
from inference.effects import Announce, Episode, Recall
from inference.events import Answered, Degraded, PlanMade, RecallDone, Reflected
from inference.executor import Budget, Execution, describe, executor_episode, seed_search, unanswered, user
from inference.planner import memories_block, plan_turn, reflect_turn, replan_turn
from inference.transcript import Transcript
from mia.errors import MiaError, ParseError
from mia.prompts import Trusted, prompt
from mia.types import Message, Plan, Question, Recalled, ToolSpec


def mia_episode(
    transcript: Transcript,
    question: Question,
    tools: tuple[ToolSpec, ...],
    agent: AgentConfig,
    context: int,
    clock: Callable[[], float],
    recall: bool = True,
) -> Episode[Execution]:
    """Answer one question.

    Args:
        transcript: filled as the run goes on.
        question: what is asked; it holds no reference.
        tools: the Executor's tools; the first one is the search.
        agent: limits and sampling.
        context: the Executor's context window, in tokens.
        clock: seconds, rising.
        recall: whether memory is asked.

    Raises:
        MiaError: the run could not go on; the transcript holds what was done.
    """
    budget = Budget(agent.max_calls, clock() + agent.time_limit_s, clock, context, agent.executor.max_tokens)
    page: int | None = None
    if recall:
        page = 0
        found = yield from _recall(transcript, question, page, 0)
        if found is not None:
            transcript.recalled, page = found, 1
    if agent.plan:
        yield from _plan(transcript, question, tools, agent)
    opening = yield from _opening(transcript, question, tools, agent, budget)
    execution = yield from executor_episode(transcript, question, opening, tools, agent, budget)
    yield Announce(Answered(answer=execution.answer, stop_reason=execution.stop_reason))
    if agent.reflect:
        execution = yield from _reflect(transcript, question, execution, tools, agent, budget, page)
    return execution


def _recall(transcript: Transcript, question: Question, page: int, revision: Literal[0, 1]) -> Episode[Recalled | None]:
    """A page of what memory has to say, for the plan or the replan; None if memory failed."""
    try:
        recalled: Recalled = yield Recall(question, page)
    except MiaError as error:  # whatever is wrong with memory, the question can still be worked on
        yield from _degraded(transcript, error)
        return None
    yield Announce(RecallDone(recalled=recalled, revision=revision))
    return recalled


def _degraded(transcript: Transcript, error: MiaError) -> Episode[None]:
    transcript.degraded.append(error.failure())
    yield Announce(Degraded(failure=error.failure()))


def _plan(transcript: Transcript, question: Question, tools: tuple[ToolSpec, ...], agent: AgentConfig) -> Episode[None]:
    try:
        plan = yield from plan_turn(transcript, question, tools, agent)
    except ParseError as error:
        yield from _degraded(transcript, error)
    else:
        transcript.plans.append(plan)
        yield Announce(PlanMade(plan=plan))


def _opening(
    transcript: Transcript, question: Question, tools: tuple[ToolSpec, ...], agent: AgentConfig, budget: Budget
) -> Episode[tuple[Message, ...]]:
    memories = memories_block(transcript.recalled) if agent.reader == "executor" else Trusted("")
    text = task_text(question, transcript.plans[0] if transcript.plans else None, tools, agent, memories)
    messages = [Message(role="user", text=text, images=question.images)]
    if agent.seed_search and tools and budget.calls > 0:
        found = yield from seed_search(transcript, question, tools, budget)
        messages = [messages[0].model_copy(update={"text": f"{text}\n\n{found}"})]
    return tuple(messages)


def task_text(
    question: Question,
    plan: Plan | None,
    tools: tuple[ToolSpec, ...],
    agent: AgentConfig,
    memories: Trusted | None = None,
) -> str:
    """The Executor's first message: tools, grammar, plan (or what memory recalled) and question."""
    block = Trusted(f"\n{prompt('executor/plan').render(plan=plan.text)}\n" if plan else "")
    block = Trusted(f"{memories or ''}{block}")
    if not tools:
        return prompt("executor/task_direct").render(plan=block, question=question.text)
    if agent.tool_format == "native":
        return prompt("executor/task_native").render(plan=block, question=question.text)
    return prompt("executor/task").render(tools=describe(tools), plan=block, question=question.text)


def _reflect(
    transcript: Transcript,
    question: Question,
    execution: Execution,
    tools: tuple[ToolSpec, ...],
    agent: AgentConfig,
    budget: Budget,
    page: int | None,
) -> Episode[Execution]:
    """One verdict; on yes, one supplementary plan and a second execution. Failures here keep the first answer.

    The supplementary plan is made with the `page` of memories that comes next; None: memory is not asked.
    """
    try:
        reflection = yield from reflect_turn(transcript, execution.answer, agent)
        transcript.reflections.append(reflection)
        yield Announce(Reflected(reflection=reflection))
        if not reflection.replan or budget.exhausted(()) is not None:
            return execution
        if page is not None and agent.reader == "planner":
            transcript.recalled_again = (yield from _recall(transcript, question, page, 1)) or Recalled()
        plan = yield from replan_turn(transcript, agent)
        transcript.plans.append(plan)
        yield Announce(PlanMade(plan=plan))
        told = (*unanswered(transcript), user(prompt("executor/replan").render(plan=plan.text)))
        second = yield from executor_episode(transcript, question, told, tools, agent, budget)
    except MiaError as error:
        yield from _degraded(transcript, error)
        return execution
    yield Announce(Answered(answer=second.answer, stop_reason=second.stop_reason))
    return second if second.answer is not None else execution
