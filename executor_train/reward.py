"""Rewards: the evaluation's verdicts, and what rules read from a run. Source: the original's training code.

    Executor  0.7 correct + 0.2 tool + 0.1 format
    Planner   0.7 final + 0.2 first + 0.05 decision + 0.05 format

Here are the parts, each from 0 to 1; their weights are set by the trainer's config. A run in which a call failed has no
reward at all: it leaves its group.
"""

from __future__ import annotations

from collections.abc import Sequence

from inference.grammar import parse
from inference.runs import Run
from mia.types import Judgement, Reply, Step, ToolSpec


def executor_scores(run: Run, judgement: Judgement, tools: Sequence[ToolSpec], bonus: float = 0.0) -> dict[str, float]:
    """The parts of the Executor's reward.

    Args:
        run: the run.
        judgement: of its answer; `correct` must be known.
        tools: the tools there were.
        bonus: added to `correct` where the answer is right without a replan (the original: 0.2).
    """
    first = all(plan.revision == 0 for plan in run.plans)
    correct = float(bool(judgement.correct))
    return {
        "correct": correct + (bonus if correct and first else 0.0),
        "tool": tool_score(run.steps),
        "format": format_score(run.steps, tools),
    }


def tool_score(steps: Sequence[Step]) -> float:
    """The share of rounds, before and after a replan, with a call that a tool accepted."""
    rounds: list[list[Step]] = [[]]
    for step in steps:
        if step.role == "executor":
            rounds[-1].append(step)
        elif step.purpose == "replan":
            rounds.append([])
    played = [each for each in rounds if any(step.reply is not None for step in each)]
    return sum(any(_accepted(step) for step in each) for each in played) / len(played) if played else 0.0


def _accepted(step: Step) -> bool:
    return any(not seen.refused and seen.failure is None for seen in step.observations)


def format_score(steps: Sequence[Step], tools: Sequence[ToolSpec]) -> float:
    """1 if every reply of the Executor keeps to the grammar and the last one answers, else 0.

    A reply keeps to it if its tags are paired and its calls can be read, name a tool, fit its arguments and use a tool
    that may be used once only once in the run.
    """
    played = [(step, step.reply) for step in steps if step.role == "executor" and step.reply is not None]
    once = {tool.name for tool in tools if tool.once}
    used: list[str] = []
    for step, reply in played:
        parsed = parse(reply)
        used += [call.name for call in parsed.calls if call.name in once]
        wrong = parsed.malformed or any(seen.refused for seen in step.observations)
        if wrong or not _paired(reply.text) or not (parsed.calls or parsed.answer is not None):
            return 0.0
    answered = bool(played) and parse(played[-1][1]).answer is not None
    return float(answered and len(used) == len(set(used)))


def planner_scores(run: Run, first: Judgement, final: Judgement) -> dict[str, float]:
    """The parts of the Planner's reward.

    Args:
        run: the run; one without a verdict that could be read has neither decided nor kept to the format, and one
            without a plan that could be read has not kept to the format.
        first, final: of the answers before and after the verdict; `correct` must be known.
    """
    verdict = run.reflections[-1] if run.reflections else None
    return {
        "final": float(bool(final.correct)),
        "first": float(bool(first.correct)),
        "decision": float(verdict is not None and verdict.replan != bool(first.correct)),
        "format": planner_format(run),
    }


def planner_format(run: Run) -> float:
    """1 if plans and verdict of a run could be read and their tags are paired, else 0."""
    replies = [step.reply for step in run.steps if step.role == "planner" and step.reply is not None]
    unread = any(failure.boundary == "parse" for failure in run.degraded)
    return float(bool(run.reflections) and not unread and all(_paired(reply.text) for reply in replies))


def _paired(text: str) -> bool:
    return all(text.count(f"<{tag}>") == text.count(f"</{tag}>") <= 1 for tag in ("think", "answer"))


def health(run: Run) -> dict[str, float]:
    """What shows a collapse before the score does; averaged over the runs of a step.

    `searches`: calls that ran. `malformed`: share of calls that could not be read or were refused. `forced`: whether
    the answer had to be asked for. `answer_words`: length of the answer. `replies`: turns of the Executor.
    `cut_replies`: share of them that the limit of tokens ended.
    """
    steps = [step for step in run.steps if step.role == "executor" and step.reply is not None]
    replies: list[Reply] = [step.reply for step in steps if step.reply is not None]
    seen = [observation for step in steps for observation in step.observations]
    bad = sum(len(step.malformed) for step in steps) + sum(observation.refused for observation in seen)
    tried = len(seen) + sum(len(step.malformed) for step in steps)
    return {
        "searches": float(len(seen)),
        "malformed": bad / tried if tried else 0.0,
        "forced": float(run.stop_reason.startswith("forced")),
        "no_answer": float(run.answer is None),
        "answer_words": float(len((run.answer or "").split())),
        "replies": float(len(replies)),
        "cut_replies": sum(reply.finish_reason == "length" for reply in replies) / len(replies) if replies else 0.0,
    }
