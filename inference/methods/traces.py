"""What a run did, turn by turn, as the methods that keep conversations store and show it.

Kept: the question, what the Executor said and called, what came back, its answers. Left out: prompts of ours, tool
descriptions, recalled notes, plans, thinking, reminders, and what a failed call said. The first turn of the Executor is
kept like every other (the original lost it, by cutting off the prompt twice).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Literal

from pydantic import JsonValue

from inference.executor import clip
from inference.grammar import split_thinking
from inference.runs import Run
from mia.types import Question, Step

RESULT_BYTES = 3000
"""Length of one tool result, at most: about the 512 words that the original keeps."""
_CALL = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)
_ANSWER = re.compile(r"<answer>\s*(.*?)\s*(?:</answer>|\Z)", re.DOTALL)
_MARK = len(" [cut]\n")
Turn = tuple[Literal["user", "assistant"], str]


def asked(question: Question) -> str:
    """What notes are found by: the question, and what its picture shows."""
    return "\n".join(part for part in (question.text, question.caption.strip()) if part)


def turns(run: Run) -> list[Turn]:
    """The conversation of a run: the question, then what the Executor said and what it was shown, in turn."""
    made: list[Turn] = [("user", asked(run.question))]
    for step in run.steps:
        if step.role == "executor":
            both: tuple[Turn, Turn] = (("assistant", _said(step)), ("user", _shown(step)))
            made += [turn for turn in both if turn[1]]
    if run.answer is not None and run.answer not in made[-1][1]:
        made.append(("assistant", f"Answer: {run.answer}"))
    return made


def stored(conversation: Sequence[Turn]) -> list[JsonValue]:
    """Turns as JSON."""
    return [[role, text] for role, text in conversation]


def loaded(value: JsonValue) -> list[Turn]:
    """Turns that were stored."""
    assert isinstance(value, list)
    return [(turn[0], turn[1]) for turn in value]  # type: ignore[index, misc]  # written by `stored`


def text(conversation: Sequence[Turn], room: int) -> str:
    """Turns after the question as one text of about `room` bytes at most; long results are cut first."""
    rest = conversation[1:]
    said = sum(len(part.encode()) for role, part in rest if role == "assistant") + _MARK * len(rest)
    results = sum(role == "user" for role, _ in rest)
    share = max(80, (room - said) // max(1, results))
    return clip("\n".join(part if role == "assistant" else clip(part, share) for role, part in rest), room)


def _said(step: Step) -> str:
    said = ""
    if step.reply is not None:
        _, visible = split_thinking(step.reply.text)
        said = _ANSWER.sub(r"Answer: \1", _CALL.sub("", visible)).strip()
    calls = [f"Call: {call.name} {json.dumps(call.arguments, ensure_ascii=False)}" for call in step.calls]
    return "\n".join(part for part in (said, *calls) if part)


def _shown(step: Step) -> str:
    found = [o.text if o.failure is None else "(the call failed)" for o in step.observations]
    return "\n".join(f"Result: {clip(text, RESULT_BYTES)}" for text in found)
