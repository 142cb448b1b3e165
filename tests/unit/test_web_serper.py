"""Serper's answers and faults, from a server of ours on loopback: told apart, never cached, never made text."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mia.errors import ConfigError, DataError, MiaError, ToolError
from mia.types import Hit, Passage
from web_tools.config import CacheConfig, WebConfig
from web_tools.engine import WebEngine
from web_tools.open import open_engine
from web_tools.records import SearchResult
from web_tools.stub import Answer, Seen, found, serving

Reply = Callable[[Seen], Answer]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "the-key")


def engine(url: str, folder: Path, **settings: Any) -> WebEngine:
    given = {"rate": 1000.0, "retries": 0, "timeout_s": 5.0, "cache": CacheConfig(path=folder), **settings}
    return open_engine(WebConfig(base_url=url, **given))


async def one(reply: Reply, folder: Path, **settings: Any) -> tuple[SearchResult, list[Seen]]:
    """The result of the query "danube", asked twice, so that a failure that was cached would show."""
    with serving(reply) as server:
        web = engine(server.url, folder, **settings)
        [result] = await web.results(["danube"], 5)
        [again] = await web.results(["danube"], 5)
        await web.aclose()
    assert (again.hits, again.failure) == (result.hits, result.failure)
    return result, server.seen


async def failure(reply: Reply, folder: Path, **settings: Any) -> tuple[str, str, str, int]:
    result, seen = await one(reply, folder, **settings)
    assert result.failure is not None
    assert result.failure.boundary == "tool"
    return result.failure.code, result.failure.message, result.failure.remedy, len(seen)


# ---------------------------------------------------------------------------------------------- what is asked


async def test_what_is_asked_and_what_comes_back(tmp_path: Path) -> None:
    with serving(lambda request: Answer(found(request.json["q"]))) as server:
        web = engine(server.url, tmp_path)
        [hits] = await web.search(["  Danube bridges "], 2)
        await web.aclose()
    [request] = server.seen
    assert (request.method, request.path, request.headers["x-api-key"]) == ("POST", "/search", "the-key")
    assert request.json == {"q": "Danube bridges", "num": 10, "gl": "us", "hl": "en"}
    first = Passage(
        id="https://example.org/1?q=Danube+bridges",
        title="Danube bridges, page 1",
        text="What page 1 says about Danube bridges. (1 days ago)",
    )
    assert hits[0] == Hit(passage=first, score=1.0, rank=1, backend="serper")
    assert [(hit.rank, hit.score) for hit in hits] == [(1, 1.0), (2, 0.5)]


@pytest.mark.parametrize(
    ("query", "country", "language"),
    [("多瑙河流经哪里", "cn", "zh-cn"), ("ドナウ川の長さ", "us", "en"), ("Donau Länge", "us", "en")],
)
async def test_chinese_is_searched_in_china(query: str, country: str, language: str, tmp_path: Path) -> None:
    _, seen = await one(lambda request: Answer(found("x")), tmp_path)
    with serving(lambda request: Answer(found("x"))) as server:
        web = engine(server.url, tmp_path)
        await web.results([query], 3)
        own = engine(server.url, tmp_path, country="at", language="de")
        await own.results([query], 3)
        await web.aclose()
        await own.aclose()
    assert [(r.json["gl"], r.json["hl"]) for r in server.seen] == [(country, language), ("at", "de")]
    assert seen[0].json["gl"] == "us"


async def test_k_that_costs_the_same_asks_the_same(tmp_path: Path) -> None:
    with serving(lambda request: Answer(found("x", request.json["num"]))) as server:
        web = engine(server.url, tmp_path)
        sizes = [len((await web.results(["x"], k))[0].hits) for k in (1, 10, 3, 11, 20, 100)]
        await web.aclose()
    assert sizes == [1, 10, 3, 11, 20, 100]
    assert [request.json["num"] for request in server.seen] == [10, 20, 100]


@pytest.mark.parametrize("name", ["SERPER_API_KEY", "SERPER_KEY_ID", "MY_KEY"])
async def test_the_key_may_have_either_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERPER_API_KEY")
    monkeypatch.setenv(name, "other-key")
    names = {"api_key_env": ("MY_KEY",)} if name == "MY_KEY" else {}
    _, seen = await one(lambda request: Answer(found("x")), tmp_path, **names)
    assert seen[0].headers["x-api-key"] == "other-key"


async def test_without_a_key_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERPER_API_KEY")
    with serving(lambda request: Answer(found("x"))) as server:
        web = engine(server.url, tmp_path)
        with pytest.raises(ConfigError, match="SERPER_API_KEY and SERPER_KEY_ID are not set") as caught:
            await web.search(["danube"], 3)
        await web.aclose()
    assert (caught.value.code, server.connections) == ("no_key", 0)
    assert "serper.dev" in caught.value.remedy


# ---------------------------------------------------------------------------------------------- odd answers


@pytest.mark.parametrize(
    "body",
    [
        {"searchParameters": {"q": "qwxz"}, "credits": 1},
        {"organic": None, "message": None},
        {"organic": []},
        {"organic": [], "message": "nothing matched"},
        {"organic": [None, 7, "row", [], {}]},
        {
            "organic": [
                {"title": "no link"},
                {"link": "https://a.example/"},
                {"title": " ", "link": "https://b.example/"},
            ]
        },
        {"organic": [{"title": "script", "link": "javascript:alert(1)"}, {"title": 5, "link": "https://c.example/"}]},
        {},
    ],
)
async def test_nothing_found_is_no_failure(body: Any, tmp_path: Path) -> None:
    result, seen = await one(lambda request: Answer(body), tmp_path)
    assert (result.hits, result.failure, len(seen)) == ((), None, 1)


async def test_rows_that_are_whole_are_kept_with_their_position(tmp_path: Path) -> None:
    organic = [
        {"title": "without link", "position": 1},
        {"title": None, "link": "https://a.example/", "position": 2},
        {"title": "Inn", "link": "https://b.example/", "position": 3},
        "text",
        {"title": "Isar", "link": "https://c.example/", "snippet": "Through Munich.", "date": "May 3, 2024"},
        {"title": "Inn again", "link": "https://b.example/", "position": 6},
        {"title": "Lech", "link": "https://d.example/", "snippet": None, "date": 7, "position": "8"},
        {"title": "Enns", "link": "https://e.example/", "position": -1},
        {"title": "Ybbs", "link": "https://f.example/", "position": True},
    ]
    body = {"organic": organic, "answerBox": {"answer": "2,850 km"}, "knowledgeGraph": {"title": "Danube"}}
    result, _ = await one(lambda request: Answer(body), tmp_path)
    rows = [(hit.rank, hit.title, hit.url, hit.snippet, hit.date) for hit in result.hits]
    assert rows == [
        (3, "Inn", "https://b.example/", "", None),
        (5, "Isar", "https://c.example/", "Through Munich.", "May 3, 2024"),
        (7, "Lech", "https://d.example/", "", None),
        (8, "Enns", "https://e.example/", "", None),
        (9, "Ybbs", "https://f.example/", "", None),
    ]
    assert (result.answer_box, result.knowledge_graph) == ({"answer": "2,850 km"}, {"title": "Danube"})


async def test_lone_surrogates_do_no_harm(tmp_path: Path) -> None:
    text = '{"organic": [{"title": "a\\ud800b", "link": "https://a.example/\\udfff", "snippet": "\\ud83d\\ude00"}]}'
    result, _ = await one(lambda request: Answer(text), tmp_path)
    assert [(hit.title, hit.url, hit.snippet) for hit in result.hits] == [
        ("a\ufffdb", "https://a.example/\ufffd", "😀")
    ]
    assert SearchResult.model_validate_json(result.model_dump_json()) == result


# ---------------------------------------------------------------------------------------------- faults

CREDITS = {"message": "Not enough credits", "statusCode": 400}


@pytest.mark.parametrize(
    ("answer", "code", "words", "remedy"),
    [
        (Answer(CREDITS), "no_credits", "Not enough credits", "buy credits"),
        (Answer(CREDITS, 400), "no_credits", "Not enough credits", "buy credits"),
        (Answer({"message": "Unauthorized."}, 403), "bad_key", "Unauthorized.", "SERPER_API_KEY or SERPER_KEY_ID"),
        (Answer({"error": {"message": "Who are you?"}}, 401), "bad_key", "Who are you?", "SERPER_API_KEY"),
        (Answer({"message": "Unauthorized.", "statusCode": 403}), "bad_key", "Unauthorized.", "SERPER_API_KEY"),
        (Answer({"message": "query too long"}), "rejected", "query too long", "change the query"),
        (Answer({"message": "query too long"}, 400), "rejected", "query too long", "change the query"),
        (Answer({"organic": "none"}), "bad_answer", "`organic` is a str", "web.base_url"),
        (Answer({"organic": {"0": {}}}), "bad_answer", "`organic` is a dict", "web.base_url"),
        (Answer(["rows"]), "bad_answer", "a JSON list", "web.base_url"),
        (Answer(""), "bad_answer", "the body is empty", "web.base_url"),
        (Answer('{"organic": [{"title"'), "bad_answer", "is no JSON", "web.base_url"),
        (Answer(b"\xff\xfe\x00"), "bad_answer", "is no JSON", "web.base_url"),
        (Answer("[" * 100_000), "bad_answer", "is no JSON", "web.base_url"),
        (Answer("<html>Log in to the hotel's network"), "bad_answer", "hotel's network", "log-in page"),
        (Answer("gone", 302, {"location": "http://127.0.0.1:9/"}), "bad_answer", "302", "redirects are not followed"),
        (Answer("<html>no such route", 404), "rejected", "no such route", "change the query"),
    ],
)
async def test_lasting_faults(answer: Answer, code: str, words: str, remedy: str, tmp_path: Path) -> None:
    got, message, remedied, asked = await failure(lambda request: answer, tmp_path, retries=3)
    assert got == code
    assert words in message
    assert remedy in remedied
    assert asked == 2  # once for each of two calls: not repeated, not cached


async def test_passing_faults_are_repeated_so_often(tmp_path: Path) -> None:
    code, message, _, asked = await failure(lambda request: Answer("oh no", 503), tmp_path, retries=1)
    assert (code, asked) == ("http_503", 4)
    assert "oh no" in message


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 429])
async def test_a_fault_that_passes_is_not_seen(status: int, tmp_path: Path) -> None:
    answers = [Answer({"message": "later"}, status, {"retry-after": "0"}), Answer(found("x", 2))]
    result, seen = await one(lambda request: answers.pop(0), tmp_path, retries=1)
    assert (len(result.hits), result.failure, len(seen)) == (2, None, 2)


async def test_slow(tmp_path: Path) -> None:
    code, message, remedy, _ = await failure(lambda request: Answer(found("x"), delay_s=0.6), tmp_path, timeout_s=0.2)
    assert (code, message.endswith("did not answer within 0.2 s")) == ("timeout", True)
    assert "web.timeout_s" in remedy


async def test_nobody_there(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound, but not listening
        web = engine(f"http://127.0.0.1:{listener.getsockname()[1]}", tmp_path)
        [result] = await web.results(["danube"], 3)
        await web.aclose()
    assert result.failure is not None
    assert (result.failure.code, result.failure.retryable) == ("unreachable", True)


async def test_a_body_that_breaks_off(tmp_path: Path) -> None:
    broken = Answer('{"organic": []}', headers={"content-length": "500"})
    assert (await failure(lambda request: broken, tmp_path))[0] == "unreachable"


# ---------------------------------------------------------------------------------------------- many queries


async def test_one_query_fails_alone_and_order_is_kept(tmp_path: Path) -> None:
    def reply(request: Seen) -> Answer:
        query = request.json["q"]
        if query == "bad":
            return Answer({"message": "no such luck"}, 400)
        return Answer(found(query, 1), delay_s=0.3 if query == "slow" else 0.0)

    with serving(reply) as server:
        web = engine(server.url, tmp_path)
        started = time.monotonic()
        results = await web.results(["slow", "bad", "quick", "slow", "last"], 3)
        seconds = time.monotonic() - started
        with pytest.raises(ToolError, match="no such luck") as caught:
            await web.search(["quick", "bad"], 3)
        stats = await web.stats()
        await web.aclose()
    titles = [[hit.title for hit in result.hits] for result in results]
    assert titles == [["slow, page 1"], [], ["quick, page 1"], ["slow, page 1"], ["last, page 1"]]
    assert [result.failure.code if result.failure else None for result in results] == [
        None,
        "rejected",
        None,
        None,
        None,
    ]
    assert caught.value.code == "rejected"
    assert seconds < 2  # together, not 0.3 s each after the other and the bad one repeated
    assert sorted(request.json["q"] for request in server.seen) == ["bad", "bad", "last", "quick", "slow"]
    assert (stats.requests, stats.credits, stats.failures) == (5, 3, 2)
    assert stats.cost_usd == pytest.approx(0.003)


async def test_all_queries_of_a_large_batch_get_through_a_narrow_server(tmp_path: Path) -> None:
    """At most 10 requests in a second, else 429: all are answered, and nobody asks before the time is over."""
    served: list[float] = []
    quiet: list[tuple[float, float]] = []

    def reply(request: Seen) -> Answer:
        if sum(request.at - at < 1.0 for at in served) >= 10:
            quiet.append((request.at, request.at + 1.0))
            return Answer({"message": "Too many requests"}, 429, {"retry-after": "1"})
        served.append(request.at)
        return Answer(found(request.json["q"], 1))

    queries = [f"query {number}" for number in range(25)]
    with serving(reply) as server:
        web = engine(server.url, tmp_path, rate=50.0, concurrency=4)
        results = await web.results(queries, 1)
        await web.aclose()
    assert [result.hits[0].title for result in results] == [f"{query}, page 1" for query in queries]
    assert quiet
    under_way = 0.25  # sent before the first refusal was known
    early = [r.at for r in server.seen if any(begin + under_way < r.at < end - 0.01 for begin, end in quiet)]
    assert early == []


@pytest.mark.parametrize("form", ["seconds", "date", "date with another clock"])
async def test_retry_after_is_obeyed(form: str, tmp_path: Path) -> None:
    def refusal() -> Answer:
        clock = datetime.now(UTC) + timedelta(hours=3 if "another" in form else 0)
        until = clock.replace(microsecond=0) + timedelta(seconds=2)
        dates = {"retry-after": format_datetime(until, usegmt=True), "date": format_datetime(clock, usegmt=True)}
        return Answer("", 429, {"retry-after": "1"} if form == "seconds" else dates)

    with serving(lambda request: refusal() if len(server.seen) == 1 else Answer(found("x", 1))) as server:
        web = engine(server.url, tmp_path)
        [result] = await web.results(["x"], 1)
        await web.aclose()
    assert len(result.hits) == 1
    first, second = (request.at for request in server.seen)
    assert 0.99 <= second - first < 3.5


async def test_without_retry_after_it_backs_off(tmp_path: Path) -> None:
    with serving(lambda request: Answer("", 429) if len(server.seen) < 3 else Answer(found("x", 1))) as server:
        web = engine(server.url, tmp_path)
        [result] = await web.results(["x"], 1)
        await web.aclose()
    assert len(result.hits) == 1
    times = [request.at for request in server.seen]
    assert 0.37 <= times[1] - times[0] < 0.9
    assert 0.74 <= times[2] - times[1] < 1.6


async def test_too_long_a_wait_is_told_not_made(tmp_path: Path) -> None:
    reply = Answer({"message": "daily limit"}, 429, {"retry-after": "7200"})
    started = time.monotonic()
    code, message, remedy, asked = await failure(lambda request: reply, tmp_path)
    assert (code, asked) == ("rate_limited", 2)
    assert time.monotonic() - started < 3
    assert "daily limit (it asks to wait 7200 s)" in message
    assert "web.max_wait_s" in remedy


async def test_waits_are_bounded_by_their_sum(tmp_path: Path) -> None:
    refusal = Answer("", 429, {"retry-after": "1"})
    code, _, _, asked = await failure(lambda request: refusal, tmp_path, max_wait_s=1.5)
    assert (code, asked) == ("rate_limited", 4)  # each call: a try, one wait, a last try


async def test_the_rate_is_kept(tmp_path: Path) -> None:
    with serving(lambda request: Answer(found("x", 1))) as server:
        web = engine(server.url, tmp_path, rate=20.0)
        await web.results([f"q{number}" for number in range(8)], 1)
        await web.aclose()
    times = sorted(request.at for request in server.seen)
    assert times[-1] - times[0] >= 7 * 0.05 - 0.03


# ---------------------------------------------------------------------------------------------- cache and replay


async def test_a_second_run_in_replay_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = ["Danube", "Inn", "Danube", "多瑙河"]
    with serving(lambda request: Answer(found(request.json["q"]))) as server:
        live = engine(server.url, tmp_path)
        first = await live.search(queries, 3)
        await live.aclose()
        asked = len(server.seen)
        monkeypatch.delenv("SERPER_API_KEY")
        replay = engine(server.url, tmp_path, mode="replay")
        second = await replay.search(queries, 3)
        [missing] = await replay.results(["Enns"], 3)
        stats = await replay.stats()
        await replay.aclose()
        connections = server.connections
    assert (asked, len(server.seen), connections) == (3, 3, 3)
    assert second == first
    assert missing.failure is not None
    assert (missing.failure.code, missing.hits) == ("not_in_cache", ())
    assert "web.mode = live" in missing.failure.remedy
    assert (stats.requests, stats.cache_hits, stats.cache_misses, stats.cost_usd) == (0, 4, 1, 0.0)


async def test_equal_calls_at_once_are_made_once(tmp_path: Path) -> None:
    with serving(lambda request: Answer(found("x", 1), delay_s=0.1)) as server:
        web = engine(server.url, tmp_path, cache=CacheConfig(kind="off"))
        results = await web.results(["x"] * 20, 1)
        [later] = await web.results(["x"], 1)
        await web.aclose()
    assert [result.cached for result in results] == [False] + [True] * 19
    assert (later.cached, len(server.seen)) == (False, 2)


async def test_who_gives_up_does_not_take_the_answer_from_others(tmp_path: Path) -> None:
    with serving(lambda request: Answer(found("x", 1), delay_s=0.3)) as server:
        web = engine(server.url, tmp_path)
        first = asyncio.create_task(web.search(["x"], 1))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(web.search(["x"], 1))
        await asyncio.sleep(0.05)
        first.cancel()
        [[hit]] = await second
        await web.aclose()
    assert (hit.rank, len(server.seen)) == (1, 1)


async def test_closed(tmp_path: Path) -> None:
    web = engine("http://127.0.0.1:9", tmp_path)
    await web.aclose()
    await web.aclose()
    assert not web.ready
    with pytest.raises(ToolError) as caught:
        await web.search(["x"], 1)
    assert caught.value.code == "closed"
    with pytest.raises(MiaError):
        await web.visit("https://example.org/")


async def test_closing_gives_up_what_is_under_way(tmp_path: Path) -> None:
    with serving(lambda request: Answer(found("x", 1), delay_s=0.5)) as server:
        web = engine(server.url, tmp_path)
        search = asyncio.create_task(web.search(["x"], 1))
        await asyncio.sleep(0.2)
        assert len(server.seen) == 1
        await web.aclose()
        with pytest.raises(asyncio.CancelledError):
            await search


@pytest.mark.parametrize(
    ("queries", "k", "code"),
    [(["a", " "], 3, "blank_query"), (["a"], 0, "bad_k"), (["a"], 101, "bad_k"), (["a" * 2001], 3, "long_query")],
)
async def test_refused_before_anything_is_asked(queries: list[str], k: int, code: str, tmp_path: Path) -> None:
    web = engine("http://127.0.0.1:9", tmp_path)
    with pytest.raises(DataError) as caught:
        await web.results(queries, k)
    assert caught.value.code == code
    assert await web.results([], 3) == []
    await web.aclose()


def _always(answer: Answer, request: Seen) -> Answer:
    return answer


async def test_the_key_stays_out_of_messages(tmp_path: Path) -> None:
    for answer in (Answer("", 403), Answer("", 500), Answer("")):
        with serving(partial(_always, answer)) as server:
            web = engine(server.url, tmp_path)
            [result] = await web.results(["danube"], 5)
            await web.aclose()
        assert result.failure is not None
        assert "the-key" not in json.dumps(result.model_dump(mode="json"))
