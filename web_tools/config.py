"""Settings of online search: who answers, how fast it may be asked, what is kept, what a page visit may cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic_settings import NoDecode

from mia.config import Section
from mia.paths import cache
from web_tools.bounds import MAX_K


def _listed(value: Any) -> Any:
    """Flags and environment variables say a list as one text: names separated by commas."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)]
"""Several names; in a flag or an environment variable one text, separated by commas."""


class CacheConfig(Section):
    """What is kept of answers, so that no question is paid for twice and a run can be repeated exactly."""

    kind: Literal["disk", "redis", "off"] = Field(
        "disk", description="disk: one file; redis: shared by replicas; off: nothing is kept"
    )
    path: Path = Field(default_factory=lambda: cache() / "web", description="folder of the disk cache")
    url: str = Field("redis://127.0.0.1:6379/0", description="Redis server, for the kind redis")
    ttl_s: float | None = Field(
        None, gt=0, description="seconds after which an answer is asked for anew; empty: never. Replay ignores it"
    )

    @field_validator("ttl_s", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return None if value == "" else value


class VisitConfig(Section):
    """Bounds of a page visit."""

    timeout_s: float = Field(30.0, gt=0, description="seconds for a page, all redirects together")
    read_s: float = Field(30.0, gt=0, description="seconds to make text of a page")
    max_bytes: int = Field(8 * 1024 * 1024, ge=1, description="largest page or picture, unpacked")
    max_redirects: int = Field(5, ge=0, description="redirects that are followed")
    max_pages: int = Field(100, ge=1, description="pages of a PDF that are read")
    max_chars: int = Field(15_000, ge=200, description="characters of a page's text that are given back")
    extract: Literal["passages", "model"] = Field(
        "passages", description="what picks out of a page what serves a goal: BM25, or the Executor's model"
    )
    passages: int = Field(5, ge=1, description="passages given back for a goal, with BM25")
    extract_tokens: int = Field(1024, ge=16, description="longest extraction by a model, in tokens")
    concurrency: int = Field(8, ge=1, description="pages and pictures fetched at once")


class ImagesConfig(Section):
    """Where pictures that look like a given one are searched."""

    kind: Literal["lens", "cache", "index"] = Field(
        "lens",
        description="lens: Serper, live; cache: folders by question id; index: pictures of your own, by words too",
    )
    path: Path | None = Field(None, description="folder, for the kinds cache and index")

    @field_validator("path", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return None if value == "" else value


class WebConfig(Section):
    """The section `[web]`."""

    url: str = Field("", description="base URL of a running web service; empty: search in this process")
    base_url: str = Field("https://google.serper.dev", description="Serper, or a server that speaks as it does")
    api_key_env: Names = Field(
        ("SERPER_API_KEY", "SERPER_KEY_ID"), description="environment variables that may hold the key; the first set"
    )
    mode: Literal["live", "replay"] = Field("live", description="replay answers from the cache alone, or fails")
    k: int = Field(5, ge=1, le=MAX_K, description="results for each query")
    country: str = Field("", description="two letters; empty: cn for Chinese queries, else us")
    language: str = Field("", description="e.g. en; empty: zh-cn for Chinese queries, else en")
    rate: float = Field(10.0, gt=0, description="calls to Serper a second, at most")
    concurrency: int = Field(16, ge=1, description="calls to Serper at once, at most")
    timeout_s: float = Field(20.0, gt=0, description="seconds for one call to Serper")
    retries: int = Field(3, ge=0, description="repetitions of a call that failed for a passing reason")
    max_wait_s: float = Field(60.0, ge=0, description="seconds that one call waits, in sum, where a server asks to")
    cost_per_credit: float = Field(0.001, ge=0, description="price of one Serper credit, in US dollars")
    allow_hosts: Names = Field(
        (), description="hosts visited although not public: name, or name:port. For tests and your own network"
    )
    cache: CacheConfig = Field(default_factory=CacheConfig)
    visit: VisitConfig = Field(default_factory=VisitConfig)
    images: ImagesConfig = Field(default_factory=ImagesConfig)

    @field_validator("allow_hosts")
    @classmethod
    def _lower(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(host.lower() for host in value)
