"""Chat with any OpenAI-compatible endpoint by the official async client on its aiohttp transport.

Time limits and retries live here and nowhere else: the client repeats what failed for a passing reason (connection,
429 with Retry-After, 5xx) `retries` times with growing pauses. Streaming of tokens is left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import aiohttp
import openai
from openai import AsyncOpenAI, DefaultAioHttpClient

from mia.chat.arguments import read_arguments
from mia.config import Endpoint
from mia.errors import ConfigError, ModelError, ParseError
from mia.pictures import fitted
from mia.types import MalformedCall, Message, Reply, Sampling, ToolCall, ToolSpec, Usage

PICTURES_KEPT = 32
"""Pictures that are remembered as they are sent."""


class OpenAIChat:
    """A model behind an OpenAI-compatible `/chat/completions`."""

    def __init__(self, endpoint: Endpoint) -> None:
        key = os.environ.get(endpoint.api_key_env, "") if endpoint.api_key_env else "none"
        if not key:
            raise ConfigError(
                f"environment variable {endpoint.api_key_env} is empty",
                remedy=f"export {endpoint.api_key_env}=…, or clear api_key_env for an endpoint without key",
            )
        self.name = endpoint.model
        self.context = endpoint.context
        self._endpoint = endpoint
        # A conversation sends its pictures anew with every turn.
        self._fit = lru_cache(PICTURES_KEPT)(partial(fitted, side=endpoint.image_side, size=endpoint.image_bytes))
        self._client = AsyncOpenAI(
            base_url=endpoint.url,
            api_key=key,
            max_retries=endpoint.retries,
            timeout=endpoint.timeout_s,
            http_client=DefaultAioHttpClient(timeout=endpoint.timeout_s),
        )

    async def generate(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec] = ()) -> Reply:
        """See `ChatModel.generate`."""
        if not self.name:
            self.name = await self._first_model()
        if any(message.images for message in messages):
            messages = await asyncio.to_thread(self._with_fitting_pictures, messages)
        body: dict[str, Any] = {
            "model": self.name,
            "messages": [to_wire(message) for message in messages],
            **self._sampling_fields(sampling),
            **self._endpoint.extra_body,
        }
        if tools:
            told = {"name", "description", "parameters"}
            body["tools"] = [{"type": "function", "function": tool.model_dump(include=told)} for tool in tools]
        started = time.perf_counter()
        try:
            # The typed `chat.completions.create` spends more time on checking types than on everything else together.
            completion = await self._client.post("/chat/completions", cast_to=object, body=body)
        except (openai.OpenAIError, ValueError) as error:  # ValueError: the body is no JSON
            raise self._model_error(error) from error
        reply = self._reply(completion, time.perf_counter() - started)
        return _cut(reply, sampling.stop) if "stop" in self._endpoint.omit else reply

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.close()

    def _with_fitting_pictures(self, messages: Sequence[Message]) -> list[Message]:
        return [m.model_copy(update={"images": tuple(self._fit(url) for url in m.images)}) for m in messages]

    def _sampling_fields(self, sampling: Sampling) -> dict[str, Any]:
        """What of a sampling is sent: the limit always, the temperature unless omitted, the rest where it says more."""
        fields: dict[str, Any] = {"temperature": sampling.temperature}
        if sampling.top_p != 1.0:
            fields["top_p"] = sampling.top_p
        if sampling.stop:
            fields["stop"] = list(sampling.stop)
        if sampling.presence_penalty:
            fields["presence_penalty"] = sampling.presence_penalty
        if sampling.repetition_penalty is not None:
            fields["repetition_penalty"] = sampling.repetition_penalty
        if sampling.seed is not None:
            fields["seed"] = sampling.seed
        kept = {name: value for name, value in fields.items() if name not in self._endpoint.omit}
        return {**kept, self._endpoint.max_tokens_field: sampling.max_tokens}

    async def _first_model(self) -> str:
        try:
            page = await self._client.get("/models", cast_to=object)
        except (openai.OpenAIError, ValueError) as error:
            raise self._model_error(error) from error
        name = _text(_field(_first(_field(page, "data")), "id"))
        if not name:
            raise ModelError(f"{self._endpoint.url} lists no model", remedy="set `model` of the endpoint")
        return name

    def _model_error(self, error: openai.OpenAIError | ValueError) -> ModelError:
        where = f"{self._endpoint.url} (model {self.name or 'unset'})"
        if _timed_out(error):
            return ModelError(
                f"{where} did not answer within {self._endpoint.timeout_s:g} s",
                remedy="raise timeout_s or look at the load of the endpoint",
                code="timeout",
                retryable=True,
            )
        if isinstance(error, openai.APIConnectionError):
            return ModelError(
                f"{where} cannot be reached: {error.__cause__ or error}",
                remedy="start the endpoint, or correct its url; `mia doctor` lists what answers",
                code="unreachable",
                retryable=True,
            )
        if isinstance(error, openai.APIStatusError):
            retryable = error.status_code in (408, 409, 429) or error.status_code >= 500
            remedy = "the message is the endpoint's own; check model name, key and context length"
            if error.status_code == 404:
                remedy = f"check the model name, and the url: most end in /v1, as {self._endpoint.url.rstrip('/')}/v1"
            return ModelError(
                f"{where} answered {error.status_code}: {error.message}",
                remedy=remedy,
                code=f"http_{error.status_code}",
                retryable=retryable,
            )
        remedy = "check that the endpoint speaks the OpenAI chat protocol"
        return ModelError(f"{where}: {error}", remedy=remedy, code="bad_answer")

    def _reply(self, completion: Any, seconds: float) -> Reply:
        choice = _first(_field(completion, "choices"))
        message = _field(choice, "message")
        if not isinstance(message, dict):
            raise ModelError(
                f"{self._endpoint.url} answered without any choice",
                remedy="try again; if it stays, look at the endpoint's log",
                code="no_choice",
                retryable=True,
            )
        calls, malformed = _native_calls(message.get("tool_calls"))
        reason = _field(choice, "finish_reason")
        return Reply(
            text=_text(message.get("content")),
            finish_reason=reason if reason in ("length", "tool_calls") else "stop",
            tool_calls=calls,
            malformed=malformed,
            reasoning=_text(message.get("reasoning_content")) or _text(message.get("reasoning")),
            usage=_usage(_field(completion, "usage"), seconds),
            model=_text(_field(completion, "model")) or self.name,
        )


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None


def _text(value: Any) -> str:
    """A text, or the joined text parts of a content list; anything else is empty."""
    if isinstance(value, list):
        return "".join(_text(_field(part, "text")) for part in value)
    return value if isinstance(value, str) else ""


def _usage(counts: Any, seconds: float) -> Usage:
    prompt, completion = (_count(_field(counts, name)) for name in ("prompt_tokens", "completion_tokens"))
    return Usage(prompt_tokens=prompt, completion_tokens=completion, calls=1, seconds=seconds)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _timed_out(error: BaseException) -> bool:
    """Whether time ran out. The aiohttp transport reports a connection refused or closed so, too; its cause tells."""
    cause: BaseException | None = error
    while cause is not None and isinstance(error, openai.APITimeoutError):
        if isinstance(cause, OSError | aiohttp.ServerDisconnectedError):
            return isinstance(cause, TimeoutError)
        cause = cause.__cause__
    return isinstance(error, openai.APITimeoutError)


def _cut(reply: Reply, stops: Sequence[str]) -> Reply:
    """The reply up to the first stop text, as an endpoint that knows them would have ended it."""
    ends = [reply.text.index(stop) for stop in stops if stop and stop in reply.text]
    return reply.model_copy(update={"text": reply.text[: min(ends)], "finish_reason": "stop"}) if ends else reply


def to_wire(message: Message) -> dict[str, Any]:
    """A message in the OpenAI chat format; images become `image_url` parts before the text."""
    content: str | list[dict[str, Any]] = message.text
    if message.images:
        pictures: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in message.images]
        content = [*pictures, {"type": "text", "text": message.text}]
    wire: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        wire["content"] = content or None  # some refuse an empty text
        wire["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.name, "arguments": json.dumps(c.arguments, ensure_ascii=False)},
            }
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    return wire


def _native_calls(raw: Any) -> tuple[tuple[ToolCall, ...], tuple[MalformedCall, ...]]:
    calls: list[ToolCall] = []
    malformed: list[MalformedCall] = []
    seen: set[str] = set()
    for index, item in enumerate(raw if isinstance(raw, list) else [raw] if raw else []):
        call_id = _text(_field(item, "id")) or f"call_{index}"
        call_id = f"{call_id}_{index}" if call_id in seen else call_id  # each result must name one call
        seen.add(call_id)
        function = _field(item, "function")
        name, arguments = _field(function, "name"), _field(function, "arguments")
        try:
            if not isinstance(name, str) or not name:
                raise ParseError("the call has no name")
            calls.append(ToolCall(id=call_id, name=name, arguments=read_arguments(arguments)))
        except ParseError as error:
            bad = MalformedCall(id=call_id, raw=str(arguments or ""), reason=error.message, name=_text(name))
            malformed.append(bad)
    return tuple(calls), tuple(malformed)
