"""Settings of online search: lists in flags and environment, what is off by default, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from mia.config import load
from mia.errors import ConfigError
from web_tools.cli import ServiceConfig
from web_tools.config import WebConfig
from web_tools.open import open_web
from web_tools.pace import retry_after
from web_tools.records import ImageHit, ImageResult, SearchResult, WebHit


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MIA_CACHE", str(tmp_path))
    web = load(ServiceConfig).web
    assert (web.base_url, web.mode, web.k) == ("https://google.serper.dev", "live", 5)
    assert (web.allow_hosts, web.api_key_env) == ((), ("SERPER_API_KEY", "SERPER_KEY_ID"))
    assert (web.cache.kind, web.cache.path, web.cache.ttl_s) == ("disk", tmp_path / "web", None)


def test_lists_in_flags_environment_and_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[web]\nallow_hosts = ["Docs.Example:8000"]\napi_key_env = ["A", "B"]\n[agent]\nmax_turns = 3\n')
    assert load(ServiceConfig, file).web.allow_hosts == ("docs.example:8000",)
    monkeypatch.setenv("MIA__WEB__ALLOW_HOSTS", "127.0.0.1:80, b.example")
    web = load(ServiceConfig, file, {"web.api_key_env": "MINE"}).web
    assert (web.allow_hosts, web.api_key_env) == (("127.0.0.1:80", "b.example"), ("MINE",))
    flags = {"web.cache.ttl_s": "", "web.images.path": "", "web.visit.max_chars": "500"}
    web = load(ServiceConfig, None, flags).web
    assert (web.cache.ttl_s, web.images.path, web.visit.max_chars) == (None, None, 500)


@pytest.mark.parametrize(
    ("name", "value"),
    [("web.rate", "0"), ("web.k", "101"), ("web.mode", "fast"), ("web.cache.ttl_s", "-1"), ("web.visit.colour", "red")],
)
def test_what_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError):
        load(ServiceConfig, None, {name: value})


async def test_a_url_means_a_service() -> None:
    web = open_web(WebConfig(url="http://127.0.0.1:8002/"))
    assert web.name == "http://127.0.0.1:8002/"
    await web.aclose()


def test_a_failure_has_no_hits() -> None:
    failed = {"boundary": "tool", "code": "x", "message": "y"}
    with pytest.raises(ValidationError):
        SearchResult(hits=(WebHit(rank=1, title="t", url="u"),), failure=failed)
    with pytest.raises(ValidationError):
        ImageResult(hits=(ImageHit(rank=1, title="t", url="u"),), failure=failed)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": " 0 "}, 0.0),
        ({"Retry-After": "Sun, 06 Nov 1994 08:50:07 GMT", "Date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 30.0),
        ({"Retry-After": "Sun, 06 Nov 1994 08:49:00 GMT", "Date": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0.0),
        ({"Retry-After": "Sun, 06 Nov 1994 08:49:37 -0000"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "1.5"}, None),
        ({"Retry-After": "٣"}, None),
        ({"Retry-After": ""}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds
