"""Asking a model for a verdict in a strict form: what cannot be read is asked for again, then it is no verdict.

Knows no questions, answers or references: judges and the panel bring their own prompt and their own reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from inference.grammar import split_thinking
from mia.chat import ChatModel
from mia.errors import JudgeError, ParseError
from mia.prompts import prompt
from mia.types import Message, Reply, Sampling

T = TypeVar("T")
F = TypeVar("F", bound="Form")
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n?\s*```", re.DOTALL)


class Form(BaseModel):
    """Base of the forms that a model fills in: JSON types as they are, no field more or less."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def visible(text: str) -> str:
    """What a reply says after its thinking.

    Raises:
        ParseError: there is nothing.
    """
    _, shown = split_thinking(text)
    if not shown.strip():
        raise ParseError("the reply is empty")
    return shown.strip()


def read_form(text: str, form: type[F]) -> F:
    """One JSON object of the form, alone in the reply or in one code fence.

    Raises:
        ParseError: anything else: text around it, a field missing, unknown or twice, a value of another type or range.
    """
    shown = visible(text)
    fenced = _FENCED.fullmatch(shown)
    try:
        value = json.loads(fenced.group(1) if fenced else shown, object_pairs_hook=_object, strict=False)
        return form.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the reply"
        raise ParseError(f"{where}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise ParseError(f"not one JSON object: {shown[:80]!r}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a field stands twice")
    return made


async def ask(
    model: ChatModel, text: str, read: Callable[[str], T], sampling: Sampling, tries: int, what: str
) -> tuple[T, Reply]:
    """Ask until the reply can be read.

    Args:
        model: who is asked.
        text: the rendered prompt; from the second try on, what was wrong with the last reply stands below it.
        read: reads a reply; raises `ParseError` if it cannot.
        sampling: how to sample.
        tries: how often to ask at most.
        what: what is asked for, for the error.

    Returns:
        What was read, and the reply it was read from.

    Raises:
        JudgeError: no reply could be read; there is no verdict.
        ModelError: the model did not answer.
    """
    fault = ""
    for _ in range(tries):
        again = f"\n\n{prompt('judge/again').render(fault=fault)}" if fault else ""
        reply = await model.generate((Message(role="user", text=text + again),), sampling)
        try:
            return read(reply.text), reply
        except ParseError as error:
            fault = error.message
    raise JudgeError(
        f"no readable {what} in {tries} tries ({fault})", remedy="use a stronger judge model; the answer stays unjudged"
    )
