"""Stub chat endpoints as strict as the real ones: what each OpenAI-compatible endpoint takes, refuses and wants.

The rules are those that their documentation and their users report; unknown fields are refused as they refuse them.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from web_tools.stub import Answer, Seen

Reply = str | dict[str, Any]
"""A text, or a whole message."""


@dataclass(frozen=True)
class Rules:
    """What an endpoint is strict about. `known`: fields that it takes; `refused`: those with few values, and these."""

    known: frozenset[str]
    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    key: str = ""
    picture_side: int = 8000
    picture_chars: int = 5 * 1024 * 1024
    media_types: tuple[str, ...] = ("image/jpeg", "image/png", "image/webp", "image/gif")


_COMMON = {"model", "messages", "temperature", "top_p", "stop", "tools", "max_tokens", "max_completion_tokens"}
_OPENAI = _COMMON | {"seed", "presence_penalty", "frequency_penalty", "n", "reasoning_effort", "tool_choice"}
VLLM = Rules(frozenset(_OPENAI | {"repetition_penalty", "top_k", "chat_template_kwargs", "mm_processor_kwargs"}))
OPENAI = Rules(
    frozenset(_OPENAI),
    {"max_tokens": (), "temperature": (1, 1.0), "top_p": (1, 1.0), "stop": (), "presence_penalty": (0,)},
    key="OPENAI_API_KEY",
)
GEMINI = Rules(
    frozenset(_COMMON | {"n", "reasoning_effort"}),
    key="GEMINI_API_KEY",
    media_types=("image/jpeg", "image/png", "image/webp"),
)
ANTHROPIC = Rules(frozenset(_OPENAI), {"temperature": (1, 1.0), "top_p": ()}, key="ANTHROPIC_API_KEY")


def strict(rules: Rules, answer: Callable[[dict[str, Any]], Reply]) -> Callable[[Seen], Answer]:
    """An endpoint for `web_tools.stub.serving` that answers requests which keep to the rules by a function."""

    def respond(request: Seen) -> Answer:
        if request.method == "GET":
            return Answer({"object": "list", "data": [{"id": "first", "object": "model"}]})
        fault = _fault(request, rules)
        if fault:
            return Answer({"error": {"message": fault, "type": "invalid_request_error"}}, status=400)
        said = answer(request.json)
        if isinstance(said, str):
            for stop in request.json.get("stop", ()):
                said = said.partition(stop)[0]
        message = {"role": "assistant", **({"content": said} if isinstance(said, str) else said)}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        return Answer({"id": "x", "object": "chat.completion", "model": request.json["model"], "choices": [choice]})

    return respond


def _fault(request: Seen, rules: Rules) -> str:
    """What is wrong with a request, or an empty text."""
    body = request.json
    if rules.key and request.headers.get("authorization") != f"Bearer key of {rules.key}":
        return "no valid key"
    for name, value in body.items():
        if name not in rules.known:
            return f"Unknown name {name!r}"
        if name in rules.refused and value not in rules.refused[name]:
            return f"Unsupported parameter: {name!r}"
    if not {"max_tokens", "max_completion_tokens"} & set(body):
        return "no limit"
    called: set[str] = set()
    for message in body["messages"]:
        fault = _message_fault(message, called, rules)
        if fault:
            return fault
    return f"no result for {called}" if called else ""


def _message_fault(message: dict[str, Any], called: set[str], rules: Rules) -> str:
    """What is wrong with a message; `called` are the calls that wait for their results."""
    role, content = message["role"], message.get("content")
    if role == "tool":
        if message["tool_call_id"] not in called or not isinstance(content, str):
            return "a tool message answers a call, with text"
        called.remove(message["tool_call_id"])
        return ""
    if called:
        return f"no result for {called}"
    called |= {made["id"] for made in message.get("tool_calls", ())}
    if content == "" or (content is None and not called):
        return f"an empty {role} message"
    if isinstance(content, list) and role != "user":
        return "pictures come from the user"
    return next(filter(None, (_picture_fault(url, rules) for url in pictures(message))), "")


def _picture_fault(url: str, rules: Rules) -> str:
    if url.startswith("https://"):
        return ""
    head, _, data = url.partition(",")
    if len(url) > rules.picture_chars:
        return "the picture is too large"
    picture = opened(url)
    kind = f"image/{(picture.format or '').lower()}"
    if head != f"data:{kind};base64" or kind not in rules.media_types:
        return f"{head} with {kind} is not taken"
    return "too many pixels" if max(picture.size) > rules.picture_side else "" if data else "no data"


def opened(url: str) -> Image.Image:
    """The picture of a data URL."""
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


def pictures(message: Mapping[str, Any]) -> list[str]:
    """The URLs of the pictures of a message, as sent."""
    content = message.get("content")
    return (
        [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
        if isinstance(content, list)
        else []
    )


def text(message: Mapping[str, Any]) -> str:
    """The text of a message, as sent."""
    content = message.get("content")
    return "".join(part.get("text", "") for part in content) if isinstance(content, list) else content or ""


def part(body: Mapping[str, Any]) -> str:
    """Which of the agent's turns a request asks for, told by the prompts."""
    last = text(body["messages"][-1])
    for name, words in {
        "caption": "Describe in one or two plain sentences",
        "plan": "\nPlan:",
        "reflect": "another round",
    }.items():
        if words in last:
            return name
    return "act"
