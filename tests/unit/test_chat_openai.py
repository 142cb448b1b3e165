"""The chat client against a real HTTP server on loopback: what goes over the wire, and what comes of odd answers."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from PIL import Image

from mia.chat import open_chat
from mia.chat.openai import OpenAIChat
from mia.config import Endpoint
from mia.errors import ConfigError, DataError, ModelError
from mia.types import Message, Reply, Sampling, ToolCall, ToolSpec
from tests.doubles import picture


class Fake:
    """An endpoint that gives the queued answers in order and remembers what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[web.Response] = []
        self.delay = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.models = ["first-model", "second-model"]

    async def chat(self, request: web.Request) -> web.Response:
        self.times.append(time.perf_counter())
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        await asyncio.sleep(self.delay)
        return self.answers.pop(0)

    async def listing(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    def will(self, *answers: Any) -> None:
        """Queue answers; what is no response is the `message` of a single choice."""
        self.answers += [a if isinstance(a, web.Response) else completion(a) for a in answers]


def completion(message: Any, **fields: Any) -> web.Response:
    choice = {"index": 0, "message": message, "finish_reason": fields.pop("finish_reason", "stop")}
    usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "served", "choices": [choice]}
    return web.json_response({**body, "usage": usage, **fields})


def error(status: int, **headers: str) -> web.Response:
    return web.json_response({"error": {"message": f"trouble {status}"}}, status=status, headers=headers)


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    endpoint = Fake()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.chat)
    app.router.add_get("/v1/models", endpoint.listing)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield endpoint
    await runner.cleanup()


def user(text: str = "hello") -> list[Message]:
    return [Message(role="user", text=text)]


async def ask(
    fake: Fake, messages: list[Message] | None = None, *, tools: tuple[ToolSpec, ...] = (), **endpoint: Any
) -> Reply:
    sampling = endpoint.pop("sampling", Sampling())
    chat = open_chat(Endpoint(url=fake.url, **{"model": "m", "retries": 0, **endpoint}))
    assert isinstance(chat, OpenAIChat)
    try:
        return await chat.generate(messages or user(), sampling, tools)
    finally:
        await chat.aclose()


async def failing(fake: Fake, **endpoint: Any) -> ModelError:
    with pytest.raises(ModelError) as failed:
        await ask(fake, **endpoint)
    assert failed.value.remedy
    return failed.value


# ---------------------------------------------------------------------------------------------- what comes back


async def test_a_plain_answer(fake: Fake) -> None:
    fake.will({"role": "assistant", "content": "Hello."})
    reply = await ask(fake)
    assert (reply.text, reply.finish_reason, reply.model, reply.reasoning) == ("Hello.", "stop", "served", "")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.calls) == (11, 3, 1)
    assert reply.usage.seconds > 0
    assert reply.tokens is None


async def test_unknown_usage_counts_as_none(fake: Fake) -> None:
    nothing = {"prompt_tokens": None, "completion_tokens": None}
    fake.will(completion({"content": "a"}, usage=None), completion({"content": "a"}, usage=nothing))
    for _ in range(2):
        reply = await ask(fake)
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.calls) == (0, 0, 1)


@pytest.mark.parametrize(
    ("said", "kept"), [("length", "length"), ("tool_calls", "tool_calls"), ("content_filter", "stop"), (None, "stop")]
)
async def test_finish_reasons(fake: Fake, said: str | None, kept: str) -> None:
    fake.will(completion({"content": "a"}, finish_reason=said))
    assert (await ask(fake)).finish_reason == kept


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_is_kept_and_never_read_for_calls(fake: Fake, field: str) -> None:
    thought = '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'
    fake.will({"role": "assistant", "content": None, field: thought})
    reply = await ask(fake)
    assert (reply.text, reply.reasoning) == ("", thought)
    assert reply.tool_calls == ()
    assert reply.malformed == ()


async def test_lone_surrogates_in_an_answer_are_made_printable(fake: Fake) -> None:
    fake.will(completion({"content": "caf\ud83d"}))
    reply = await ask(fake)
    assert reply.text == "caf\ufffd"
    assert Reply.model_validate_json(reply.model_dump_json()) == reply


def called(arguments: Any, name: Any = "search") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"content": None, "tool_calls": [{"id": "call_7", "type": "function", "function": function}]}


@pytest.mark.parametrize(
    "arguments",
    [{"query": "sea"}, '{"query": "sea"}', json.dumps('{"query": "sea"}')],
    ids=["object", "text", "text of a text"],
)
async def test_native_calls(fake: Fake, arguments: Any) -> None:
    fake.will(completion(called(arguments), finish_reason="tool_calls"))
    reply = await ask(fake)
    assert reply.tool_calls == (ToolCall(id="call_7", name="search", arguments={"query": "sea"}),)
    assert reply.malformed == ()
    assert reply.text == ""


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (called(None), "null"),
        (called("{"), "not valid JSON"),
        (called('{"n": NaN}'), "NaN"),
        (called("[1]"), "not list"),
        (called("{}", name=None), "no name"),
        ({"content": "", "tool_calls": [{"id": "call_7", "type": "function", "function": None}]}, "no name"),
    ],
)
async def test_calls_that_cannot_be_read_are_told_and_not_made(fake: Fake, message: Any, reason: str) -> None:
    fake.will(completion(message))
    reply = await ask(fake)
    assert reply.tool_calls == ()
    (malformed,) = reply.malformed
    assert malformed.id == "call_7"
    assert reason in malformed.reason


async def test_good_and_bad_calls_side_by_side_keep_their_ids(fake: Fake) -> None:
    good, bad, nameless = called('{"query": "a"}'), called(None), called('{"query": "b"}')
    calls = [message["tool_calls"][0] for message in (good, bad, nameless)]
    calls[1] = {**calls[1], "id": "call_8"}
    calls[2] = {**calls[2], "id": None}
    fake.will({"content": "Both.", "tool_calls": calls})
    reply = await ask(fake)
    assert [call.id for call in reply.tool_calls] == ["call_7", "call_2"]
    assert [call.id for call in reply.malformed] == ["call_8"]
    assert reply.text == "Both."


@pytest.mark.parametrize(
    "body",
    [{"choices": []}, {"choices": None}, {}, {"choices": [{"index": 0, "finish_reason": "stop", "message": None}]}],
)
async def test_an_answer_without_choice_is_an_error(fake: Fake, body: dict[str, Any]) -> None:
    fake.will(web.json_response({"id": "x", "object": "chat.completion", "model": "m", **body}))
    failed = await failing(fake)
    assert failed.code == "no_choice"
    assert failed.retryable


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("<html>a proxy's page</html>", "text/html", "no_choice"),
        ("{half", "application/json", "bad_answer"),
        ("", "application/json", "bad_answer"),
        ("[]", "application/json", "no_choice"),
        ('{"choices": [{"message": "hello"}]}', "application/json", "no_choice"),
    ],
)
async def test_an_answer_of_another_shape_is_an_error(fake: Fake, text: str, kind: str, code: str) -> None:
    fake.will(web.Response(text=text, content_type=kind))
    assert (await failing(fake)).code == code


async def test_a_connection_that_breaks_off_is_an_error(fake: Fake) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(half, "127.0.0.1", 0)
    async with server:
        fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        failed = await failing(fake)
    assert failed.boundary == "model"


async def test_a_connection_that_is_closed_without_a_word_is_no_time_out(fake: Fake) -> None:
    async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(closed, "127.0.0.1", 0)
    async with server:
        fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        failed = await failing(fake)
    assert (failed.code, failed.retryable) == ("unreachable", True)


@pytest.mark.parametrize(("calls", "malformed"), [(None, 0), ([], 0), ({}, 0), (3, 1), ("search", 1), ([3, None], 2)])
async def test_what_is_no_list_of_calls_is_no_call(fake: Fake, calls: Any, malformed: int) -> None:
    fake.will({"content": "a", "tool_calls": calls})
    reply = await ask(fake)
    assert (reply.text, reply.tool_calls, len(reply.malformed)) == ("a", (), malformed)


# ---------------------------------------------------------------------------------------------- failures


async def test_a_busy_endpoint_is_asked_again_after_the_time_it_names(fake: Fake) -> None:
    fake.will(error(429, **{"Retry-After": "1"}), {"content": "now"})
    reply = await ask(fake, retries=1)
    assert reply.text == "now"
    assert reply.usage.calls == 1
    assert len(fake.times) == 2
    assert 0.9 < fake.times[1] - fake.times[0] < 3


async def test_failures_of_the_endpoint_are_reported_when_retries_are_used_up(fake: Fake) -> None:
    fake.will(*[error(500, **{"Retry-After-Ms": "10"}) for _ in range(5)])
    failed = await failing(fake, retries=2)
    assert (failed.code, failed.retryable) == ("http_500", True)
    assert "trouble 500" in failed.message
    assert fake.url in failed.message
    assert len(fake.times) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_refusals_are_not_repeated(fake: Fake, status: int) -> None:
    fake.will(*[error(status) for _ in range(3)])
    failed = await failing(fake, retries=2)
    assert (failed.code, failed.retryable) == (f"http_{status}", False)
    assert len(fake.times) == 1


async def test_a_slow_endpoint_times_out(fake: Fake) -> None:
    fake.delay = 0.6
    fake.will({"content": "late"})
    failed = await failing(fake, timeout_s=0.2)
    assert (failed.code, failed.retryable) == ("timeout", True)
    assert "0.2 s" in failed.message


async def test_an_absent_endpoint_is_unreachable(fake: Fake) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        fake.url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    failed = await failing(fake)
    assert (failed.code, failed.retryable) == ("unreachable", True)
    assert "mia doctor" in failed.remedy
    assert (await failing(fake, model="")).code == "unreachable"


def test_a_key_that_is_named_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="SOME_KEY"):
        OpenAIChat(Endpoint(url="http://127.0.0.1:1/v1", api_key_env="SOME_KEY"))
    monkeypatch.setenv("SOME_KEY", "")
    with pytest.raises(ConfigError, match="SOME_KEY"):
        OpenAIChat(Endpoint(url="http://127.0.0.1:1/v1", api_key_env="SOME_KEY"))


async def test_one_failure_among_many_calls_leaves_the_others_alone(fake: Fake) -> None:
    fake.will(*[error(400) if n == 3 else {"content": "ok"} for n in range(8)])
    chat = OpenAIChat(Endpoint(url=fake.url, model="m", retries=0))
    outcomes = await asyncio.gather(*[chat.generate(user(), Sampling()) for _ in range(8)], return_exceptions=True)
    await chat.aclose()
    assert sum(isinstance(outcome, ModelError) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Reply) for outcome in outcomes) == 7


# ---------------------------------------------------------------------------------------------- what is sent


async def test_the_key_and_the_model_are_sent(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cret")
    fake.will({"content": "a"})
    await ask(fake, api_key_env="SOME_KEY", model="mine")
    assert fake.headers[0]["Authorization"] == "Bearer s3cret"
    assert fake.bodies[0]["model"] == "mine"


async def test_the_first_listed_model_is_used_when_none_is_named(fake: Fake) -> None:
    fake.will({"content": "a"})
    await ask(fake, model="")
    assert fake.bodies[0]["model"] == "first-model"
    fake.models = []
    assert "lists no model" in (await failing(fake, model="")).message


async def test_plain_sampling_sends_no_more_than_it_must(fake: Fake) -> None:
    fake.will({"content": "a"})
    await ask(fake, sampling=Sampling(max_tokens=7))
    message = {"role": "user", "content": "hello"}
    assert fake.bodies == [{"model": "m", "messages": [message], "temperature": 0.0, "max_tokens": 7}]


async def test_all_of_sampling_and_the_extra_body_reach_the_wire(fake: Fake) -> None:
    fake.will({"content": "a"})
    sampling = Sampling(
        temperature=0.7,
        top_p=0.9,
        max_tokens=5,
        stop=("</answer>", "X"),
        presence_penalty=1.1,
        repetition_penalty=1.2,
        seed=4,
    )
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 20}
    await ask(fake, sampling=sampling, extra_body=extra)
    sent = fake.bodies[0]
    wanted = {
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 5,
        "stop": ["</answer>", "X"],
        "presence_penalty": 1.1,
        "repetition_penalty": 1.2,
        "seed": 4,
        **extra,
    }
    assert {name: sent[name] for name in wanted} == wanted


async def test_images_become_parts_before_the_text(fake: Fake) -> None:
    fake.will({"content": "a"})
    url = picture()
    await ask(fake, [Message(role="user", text="What is it?", images=(url, "https://x/y.png"))])
    assert fake.bodies[0]["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                {"type": "text", "text": "What is it?"},
            ],
        }
    ]


async def test_pictures_are_made_to_fit_the_endpoint(fake: Fake) -> None:
    fake.will({"content": "a"}, {"content": "a"})
    large = [Message(role="user", text="?", images=(picture("red", (4000, 1000)),))]
    await ask(fake, large)
    await ask(fake, large, image_side=200, image_bytes=10_000)
    urls = [body["messages"][0]["content"][0]["image_url"]["url"] for body in fake.bodies]
    sizes = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).size for url in urls]
    assert sizes == [(1568, 392), (200, 50)]
    assert len(urls[1]) <= 10_000


async def test_a_picture_that_cannot_be_read_is_not_sent(fake: Fake) -> None:
    for url in ("data:image/png;base64,AAAA", "data:,", picture()[:-40]):
        with pytest.raises(DataError) as refused:
            await ask(fake, [Message(role="user", text="?", images=(url,))])
        assert refused.value.code == "bad_picture"
    assert fake.bodies == []


@pytest.mark.parametrize(
    ("omit", "left"),
    [
        ((), {"temperature", "top_p", "stop", "presence_penalty", "repetition_penalty", "seed", "max_tokens"}),
        (("temperature", "top_p"), {"stop", "presence_penalty", "repetition_penalty", "seed", "max_tokens"}),
        (("temperature", "top_p", "stop", "presence_penalty", "repetition_penalty", "seed"), {"max_tokens"}),
    ],
)
async def test_what_an_endpoint_refuses_is_left_out(fake: Fake, omit: tuple[str, ...], left: set[str]) -> None:
    fake.will({"content": "a"})
    sampling = Sampling(
        temperature=0.5, top_p=0.5, stop=("x",), presence_penalty=0.5, repetition_penalty=1.5, seed=5, max_tokens=5
    )
    await ask(fake, sampling=sampling, omit=omit)
    assert set(fake.bodies[0]) == {"model", "messages"} | left


async def test_the_limit_goes_by_the_endpoints_name_for_it(fake: Fake) -> None:
    fake.will({"content": "a"})
    await ask(fake, sampling=Sampling(max_tokens=7), max_tokens_field="max_completion_tokens")
    assert fake.bodies[0]["max_completion_tokens"] == 7
    assert "max_tokens" not in fake.bodies[0]


@pytest.mark.parametrize(
    ("omit", "text", "kept"),
    [
        (("stop",), "one <end> two", "one "),
        (("stop",), "one STOP two <end>", "one "),
        (("stop",), "one", "one"),
        ((), "one <end> two", "one <end> two"),  # the endpoint has seen to it
    ],
)
async def test_stop_texts_that_are_not_sent_are_kept_to_here(
    fake: Fake, omit: tuple[str, ...], text: str, kept: str
) -> None:
    fake.will(completion({"content": text}, finish_reason="length"))
    reply = await ask(fake, sampling=Sampling(stop=("<end>", "STOP")), omit=omit)
    assert (reply.text, reply.finish_reason) == (kept, "length" if kept == text else "stop")


async def test_native_tools_and_their_turns_are_sent(fake: Fake) -> None:
    fake.will({"content": "a"})
    schema: dict[str, Any] = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    turn = Message(role="assistant", text="", tool_calls=(ToolCall(id="c1", name="search", arguments={"query": "é"}),))
    result = Message(role="tool", text="found", tool_call_id="c1")
    tools = (ToolSpec(name="search", description="Search.", parameters=schema, once=True, needs_picture=True),)
    await ask(fake, [*user(), turn, result], tools=tools)
    function = {"name": "search", "description": "Search.", "parameters": schema}
    assert fake.bodies[0]["tools"] == [{"type": "function", "function": function}]
    sent_turn, sent_result = fake.bodies[0]["messages"][1:]
    assert json.loads(sent_turn["tool_calls"][0].pop("function")["arguments"]) == {"query": "é"}
    assert sent_turn["tool_calls"] == [{"id": "c1", "type": "function"}]
    assert sent_turn["content"] is None
    assert sent_result == {"role": "tool", "content": "found", "tool_call_id": "c1"}
