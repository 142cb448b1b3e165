"""Caches: on disk, in Redis (a double, and a real server where there is one), and none; keys; opening."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import fakeredis
import pytest
import pytest_asyncio

from mia.errors import ConfigError, DataError, ToolError
from web_tools.cache import Cache, DiskCache, NoCache, RedisCache, key_of, open_cache
from web_tools.config import CacheConfig, WebConfig
from web_tools.open import open_engine
from web_tools.stub import Answer, found, serving


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis server of our own."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on this machine (Debian: apt-get install redis-server)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
        server.terminate()


def _redis_double(ttl_s: float | None = None) -> RedisCache:
    return RedisCache(fakeredis.FakeAsyncRedis(decode_responses=True), "a double", ttl_s)


@pytest_asyncio.fixture(params=["disk", "redis double", "redis"])
async def cache(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cache]:
    made: Cache
    if request.param == "disk":
        made = DiskCache(tmp_path)
    elif request.param == "redis":
        made = RedisCache.open(request.getfixturevalue("redis_url"))
    else:
        made = _redis_double()
    yield made
    await made.aclose()


async def test_keeps_what_it_is_given(cache: Cache) -> None:
    key = key_of("search", query="x")
    assert await cache.get(key) is None
    for value in ("{}", '"Zoë\u2028 🦉 \x00"', "x" * 1_000_000):
        await cache.put(key, value)
        assert await cache.get(key) == value
    assert await cache.get(key_of("search", query="y")) is None


async def test_many_at_once(cache: Cache) -> None:
    await asyncio.gather(*(cache.put(key_of("many", number=n), str(n)) for n in range(100)))
    assert await asyncio.gather(*(cache.get(key_of("many", number=n)) for n in range(100))) == [
        str(n) for n in range(100)
    ]


def test_keys() -> None:
    assert key_of("a", x=1, y={"p": 1, "q": 2}) == key_of("a", y={"q": 2, "p": 1}, x=1)
    assert len({key_of("a", x=1), key_of("b", x=1), key_of("a", x="1"), key_of("a", y=1), key_of("a", x=None)}) == 5


async def test_no_cache_keeps_nothing() -> None:
    cache = NoCache()
    await cache.put("k", "v")
    assert await cache.get("k") is None
    await cache.aclose()


async def test_two_processes_worth_of_disk_caches_share_a_file(tmp_path: Path) -> None:
    one, two = DiskCache(tmp_path), DiskCache(tmp_path)
    await asyncio.gather(*(c.put(f"{name}{n}", name) for n in range(30) for name, c in (("one", one), ("two", two))))
    assert [await two.get(f"one{n}") for n in range(30)] == ["one"] * 30
    await one.aclose()
    await two.aclose()
    again = DiskCache(tmp_path)
    assert await again.get("two7") == "two"
    await again.aclose()


async def test_the_folder_is_private(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "deep" / "web")
    assert (tmp_path / "deep" / "web").stat().st_mode & 0o077 == 0
    await cache.aclose()


async def test_old_answers_on_disk_are_for_replay_alone(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, ttl_s=60)
    await cache.put("k", "old")
    base = sqlite3.connect(tmp_path / "answers.db")
    base.execute("UPDATE answers SET stored = stored - 61")
    base.commit()
    base.close()
    assert await cache.get("k") is None
    assert await cache.get("k", any_age=True) == "old"
    await cache.put("k", "new")
    assert await cache.get("k") == "new"
    await cache.aclose()


async def test_old_answers_leave_redis(redis_url: str) -> None:
    cache = RedisCache.open(redis_url, ttl_s=0.2)
    await cache.put("short", "v")
    assert await cache.get("short") == "v"
    await asyncio.sleep(0.3)
    assert await cache.get("short", any_age=True) is None
    await cache.aclose()


async def test_replicas_share_redis(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "k")
    with serving(lambda request: Answer(found(request.json["q"], 2))) as server:
        config = WebConfig(base_url=server.url, cache=CacheConfig(kind="redis", url=redis_url))
        one, two = open_engine(config), open_engine(config)
        [first] = await one.results(["danube"], 2)
        [second] = await two.results(["danube"], 2)
        await one.aclose()
        await two.aclose()
    assert (first.cached, second.cached, first.hits == second.hits, len(server.seen)) == (False, True, True, 1)


async def test_a_lost_redis_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "k")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound, but not listening
        cache = RedisCache.open(f"redis://user:hidden@127.0.0.1:{listener.getsockname()[1]}/0")
        for call in (cache.get("k"), cache.put("k", "v")):
            with pytest.raises(ToolError) as caught:
                await call
            assert caught.value.code == "cache_failed"
            assert "hidden" not in str(caught.value)
        await cache.aclose()


async def test_a_closed_disk_cache_is_a_failure(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    await cache.aclose()
    with pytest.raises(ToolError) as caught:
        await cache.get("k")
    assert caught.value.code == "cache_failed"
    assert "web.cache.kind = off" in caught.value.remedy


async def test_what_is_no_cache_is_told(tmp_path: Path) -> None:
    (tmp_path / "answers.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(DataError, match=r"answers\.db") as caught:
        DiskCache(tmp_path)
    assert caught.value.code == "bad_cache"
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError):
        DiskCache(tmp_path / "file" / "folder")


async def test_a_damaged_answer_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "k")
    with serving(lambda request: Answer(found("x", 2))) as server:
        config = WebConfig(base_url=server.url, cache=CacheConfig(path=tmp_path))
        web = open_engine(config)
        await web.results(["danube"], 2)
        base = sqlite3.connect(tmp_path / "answers.db")
        base.execute("UPDATE answers SET value = '{'")
        base.commit()
        base.close()
        [result] = await web.results(["danube"], 2)
        await web.aclose()
    assert result.failure is not None
    assert result.failure.code == "cache_failed"


async def test_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIA_CACHE", str(tmp_path))
    disk = open_cache(CacheConfig())
    assert isinstance(disk, DiskCache)
    assert (tmp_path / "web" / "answers.db").is_file()
    await disk.aclose()
    assert isinstance(open_cache(CacheConfig(kind="off")), NoCache)
    redis = open_cache(CacheConfig(kind="redis"))
    assert isinstance(redis, RedisCache)
    await redis.aclose()
    with pytest.raises(ConfigError, match=r"web\.cache\.url"):
        open_cache(CacheConfig(kind="redis", url="http://127.0.0.1"))
