"""Reading what the Executor wrote: thinking, tool calls, answer. One parser for training, serving and display.

Grammar: `<think>…</think>`, then one or more `<tool_call>{"name": …, "arguments": {…}}</tool_call>` or
`<answer>…</answer>`. The rules, in order:

1. Nothing inside thinking counts. Thinking ends at its `</think>`; a reply that opens with thinking and never closes
   it holds neither call nor answer. A `</think>` without opening (templates that open it in the prompt) ends thinking.
2. Whichever comes first, `<tool_call>` or `<answer>`, decides the turn; after an answer, calls are ignored, and after
   a call, answers are (they were written before the result was known).
3. A call is one JSON object, or several, or an array of them; JSON decides where it ends, so a closing tag inside a
   string is text. Python literals and missing or surplus closing braces are accepted when that leaves one reading.
4. What cannot be read becomes a `MalformedCall` with the reason. An answer of white space is no answer.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

from mia.chat.arguments import DECODER, read_arguments
from mia.errors import ParseError
from mia.types import MalformedCall, Reply, ToolCall, clean_text

WANTED = '<tool_call>{"name": "search", "arguments": {"query": "…"}}</tool_call>'
"""The form of a call, as malformed calls are answered with it."""

_OPEN = re.compile(r"<(tool_call|answer)>")
_MAX_MISSING_BRACES = 2


@dataclass(frozen=True, slots=True)
class Parsed:
    """What one reply holds. `cut` is set when the token limit ended it before a call or an answer was whole."""

    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[MalformedCall, ...] = ()
    answer: str | None = None
    cut: bool = False
    rest: str = ""


def split_thinking(text: str) -> tuple[str, str]:
    """Thinking and what follows it (rule 1)."""
    head = text.lstrip()
    if head.startswith("<think>"):
        thinking, closed, rest = head.removeprefix("<think>").partition("</think>")
        return thinking.strip(), rest if closed else ""
    before, closed, rest = text.partition("</think>")
    if closed:
        return before.replace("<think>", "").strip(), rest
    visible, opened, thinking = text.partition("<think>")
    return (thinking.strip(), visible) if opened else ("", text)


def parse(reply: Reply, turn: int = 0, native: bool = False) -> Parsed:
    """Read a reply.

    Args:
        reply: what the model wrote; native tool calls, where there are any, take the place of the grammar.
        turn: number of the turn, part of the call ids.
        native: calls come by native tool calling alone; a `<tool_call>` in the text is text.
    """
    thinking, rest = split_thinking(reply.text)
    if reply.tool_calls or reply.malformed:
        return Parsed(thinking, reply.tool_calls, reply.malformed, rest=rest.strip())
    was_cut = reply.finish_reason == "length"
    first = re.search("<(answer)>", rest) if native else _OPEN.search(rest)
    if first is None:
        return Parsed(thinking, cut=was_cut, rest=rest.strip())
    if first.group(1) == "answer":
        body, closed, _ = rest[first.end() :].partition("</answer>")
        if was_cut and not closed:
            return Parsed(thinking, cut=True, rest=rest.strip())
        return Parsed(thinking, answer=body.strip() or None, rest=rest.strip())
    calls, malformed = _read_calls(rest, turn)
    if was_cut and malformed and not calls:
        return Parsed(thinking, cut=True, rest=rest.strip())
    return Parsed(thinking, tuple(calls), tuple(malformed), rest=rest.strip())


def _read_calls(text: str, turn: int) -> tuple[list[ToolCall], list[MalformedCall]]:
    calls: list[ToolCall] = []
    malformed: list[MalformedCall] = []
    position = text.find("<tool_call>")
    while position >= 0:
        start = position + len("<tool_call>")
        try:
            values, end = _read_body(text, start)
            read = [_as_call(value) for value in values]
        except ParseError as error:
            end = _body_end(text, start)
            malformed.append(
                MalformedCall(id=_call_id(turn, calls, malformed), raw=text[start:end], reason=error.message)
            )
        else:
            for name, arguments in read:
                calls.append(ToolCall(id=_call_id(turn, calls, malformed), name=name, arguments=arguments))
        position = text.find("<tool_call>", end)
    return calls, malformed


def _call_id(turn: int, calls: list[ToolCall], malformed: list[MalformedCall]) -> str:
    return f"t{turn}c{len(calls) + len(malformed)}"


def _body_end(text: str, start: int) -> int:
    """End of a body that JSON could not delimit: its closing tag, the next opening tag, or the end of the text."""
    ends = [text.find("</tool_call>", start), text.find("<tool_call>", start)]
    return min((end for end in ends if end >= 0), default=len(text))


def _read_body(text: str, start: int) -> tuple[list[Any], int]:
    """The JSON values of one body and where reading stopped (rule 3)."""
    position = _skip_space(text, start)
    if text[position : position + 1] not in ("{", "["):
        raise ParseError("a call is a JSON object with name and arguments")
    values: list[Any] = []
    while text[position : position + 1] in ("{", "["):
        value, position = _read_value(text, position)
        values.extend(value if isinstance(value, list) else [value])
        position = _skip_space(text, position, also=",")
    return values, position


def _skip_space(text: str, position: int, also: str = "") -> int:
    while position < len(text) and (text[position].isspace() or text[position] in also):
        position += 1
    return position


def _read_value(text: str, start: int) -> tuple[Any, int]:
    try:
        return DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise ParseError("the call is nested too deeply") from error
    except ValueError as error:
        end = _body_end(text, start)
        body = text[start:end].strip()
        for missing in range(1, _MAX_MISSING_BRACES + 1):
            try:
                return DECODER.decode(body + "}" * missing), end
            except (ValueError, RecursionError):
                continue
        try:
            value = ast.literal_eval(body)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            where = f" at character {error.pos - start}" if isinstance(error, json.JSONDecodeError) else ""
            raise ParseError(f"not valid JSON ({getattr(error, 'msg', 'a number is too long')}{where})") from error
        return value, end


def _as_call(value: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(value, dict):
        raise ParseError("a call is a JSON object with name and arguments")
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        raise ParseError("name must be the name of a tool")
    if "arguments" not in value:
        raise ParseError("arguments are missing")
    return clean_text(name.strip()), read_arguments(value["arguments"])
