"""Local, web or both by one line of the config; visits; which backend each hit came from."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from inference.config import RunConfig
from inference.search import Search, open_tools
from inference.tools import ToolBox
from local_search.config import SearchConfig
from local_search.encoder import MiniLM
from mia.chat.scripted import ScriptedChat
from mia.cli import main
from mia.types import Observation, Question, ToolCall
from web_tools.config import CacheConfig, WebConfig
from web_tools.stub import Answer, Seen, Server, found, serving

PAGES = {
    "/page": Answer(
        "<html><head><title>Danube</title></head><body><article><p>"
        + "The Danube is a river that flows through Vienna. " * 10
        + "</p></article></body></html>",
        headers={"content-type": "text/html"},
    ),
    "/binary": Answer(b"\x00\x01", headers={"content-type": "application/octet-stream"}),
    "/gone": Answer("no", status=404),
}


def answer(request: Seen) -> Answer:
    page = PAGES.get(request.path.partition("?")[0])
    if page is not None:
        return page
    query = json.loads(request.body)["q"]
    return Answer({"message": "out of order"}, status=400) if query == "broken" else Answer(found(query, 2))


@pytest.fixture
def web() -> Iterator[Server]:
    with serving(answer) as server:
        yield server


@pytest.fixture
def index(tmp_path: Path) -> Path:
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"id": str(n), "contents": f'"Danube {n}"\nThe Danube, part {n}.'} for n in range(3)]
    corpus.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    assert main(["index", "build", str(corpus), "--out", str(tmp_path / "index"), "--engines", "bm25"]) == 0
    return tmp_path / "index"


@asynccontextmanager
async def opened(
    backend: str, web: Server, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Search]:
    monkeypatch.setenv("SERPER_API_KEY", "key")
    config = RunConfig(
        search=SearchConfig.model_validate({"backend": backend, "index": index, "mode": "bm25", "k": 3}),
        web=WebConfig(
            base_url=web.url, k=2, retries=0, allow_hosts=(web.host,), cache=CacheConfig(path=tmp_path / "cache")
        ),
    )
    search = open_tools(config, MiniLM(), ScriptedChat())
    try:
        yield search
    finally:
        await search.aclose()


async def run(search: Search, name: str, **arguments: str) -> Observation:
    (observation,) = await ToolBox(search.tools).run(
        [ToolCall(id="c", name=name, arguments=dict(arguments))], Question(id="q", text="?")
    )
    return observation


@pytest.mark.parametrize(
    ("backend", "tools", "titles"),
    [
        ("local", ["search"], ["Danube 0", "Danube 1", "Danube 2"]),
        ("web", ["search", "visit"], ["Danube, page 1", "Danube, page 2"]),
        (
            "both",
            ["search", "visit"],
            ["Danube 0", "Danube, page 1", "Danube 1", "Danube, page 2", "Danube 2"],
        ),
    ],
)
async def test_one_line_chooses(
    backend: str,
    tools: list[str],
    titles: list[str],
    web: Server,
    index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(backend, web, index, tmp_path, monkeypatch) as search:
        assert [tool.spec.name for tool in search.tools] == tools
        observation = await run(search, "search", query="Danube")
    assert [hit.passage.title for hit in observation.hits] == titles
    assert [hit.rank for hit in observation.hits] == list(range(1, len(titles) + 1))
    local = [hit.backend.startswith("local/") for hit in observation.hits]
    assert local == ["page" not in title for title in titles]


async def test_half_of_the_evidence_is_a_failure(
    web: Server, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened("both", web, index, tmp_path, monkeypatch) as search:
        observation = await run(search, "search", query="broken")
    assert observation.failure is not None
    assert observation.text == ""


async def test_visits(web: Server, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened("web", web, index, tmp_path, monkeypatch) as search:
        page = await run(search, "visit", url=f"{web.url}/page")
        assert "flows through Vienna" in page.text
        assert page.hits[0].passage.id == f"{web.url}/page"
        gone = await run(search, "visit", url=f"{web.url}/gone")
        assert gone.text == "The page cannot be read: the site refuses it."
        binary = await run(search, "visit", url=f"{web.url}/binary")
        assert "neither a web page nor a PDF" in binary.text
        inside = await run(search, "visit", url="http://169.254.169.254/latest/meta-data")
        assert "do not fit" in inside.text
        assert inside.failure is None
