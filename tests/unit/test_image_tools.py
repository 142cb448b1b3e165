"""Image search as the Executor's tool: what is asked, what comes back as text and as pixels, and how often."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inference.config import AgentConfig, RunConfig
from inference.driver import Driver
from inference.episode import mia_episode
from inference.executor import Execution
from inference.image_tools import ImageSearchTool
from inference.search import open_tools
from inference.tools import SearchTool, ToolBox
from inference.transcript import Transcript
from local_search.config import SearchConfig
from local_search.encoder import MiniLM
from mia.chat.scripted import ScriptedChat
from mia.cli import main
from mia.errors import ToolError
from mia.pictures import from_data_url, to_data_url
from mia.types import Question, Reply, ToolCall, Usage
from tests.doubles import FixedSearch, call, picture, scripted
from tests.endpoints import opened
from web_tools.config import CacheConfig, ImagesConfig, WebConfig
from web_tools.engine import WebEngine
from web_tools.open import open_engine
from web_tools.stub import Answer, Seen, Server, pictured, serving

QUESTION = Question(id="q1", text="Which tower is this?", images=(picture("red"), picture("blue")), caption="A tower.")
COLOURS = {"red": (254, 0, 0), "green": (0, 128, 1)}


def kept(root: Path, question_id: str = "q1") -> Path:
    """An image cache with two pictures and a title whose picture is missing."""
    folder = root / question_id
    folder.mkdir(parents=True)
    titles = [{"title": "Tower of Babel"}, {"title": "Gone"}, {"title": "Eiffel Tower"}]
    (folder / "meta.json").write_text(json.dumps({"search_results": titles, "image_urls": []}), encoding="utf-8")
    (folder / "img_000.png").write_bytes(from_data_url(picture("red")))
    (folder / "img_002.png").write_bytes(from_data_url(picture("green")))
    return root


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebEngine]:
    images = ImagesConfig(kind="cache", path=kept(tmp_path / "images"))
    engine = open_engine(WebConfig(images=images, cache=CacheConfig(kind="off")))
    yield engine
    await engine.aclose()


def box(web: WebEngine, k: int = 3) -> ToolBox:
    return ToolBox([SearchTool(FixedSearch(), 3), ImageSearchTool(web, k)])


def wants(**arguments: Any) -> ToolCall:
    return ToolCall(id="c", name="image_search", arguments=arguments)


def grammar(**arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': 'image_search', 'arguments': arguments})}</tool_call>"


def colour(url: str) -> Any:
    return opened(url).convert("RGB").getpixel((20, 20))


# ---------------------------------------------------------------------------------------------- one call


async def test_titles_are_text_and_pictures_are_pixels(web: WebEngine) -> None:
    (found,) = await box(web).run([wants()], QUESTION)
    assert found.text == "Picture 1: Tower of Babel.\nA picture not shown: Gone.\nPicture 2: Eiffel Tower."
    assert [colour(url) for url in found.images] == [COLOURS["red"], COLOURS["green"]]
    assert [hit.passage.title for hit in found.hits] == ["Tower of Babel", "Gone", "Eiffel Tower"]
    (first,) = await box(web, 1).run([wants(picture=2)], QUESTION)
    assert len(first.images) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"picture": 0}, "picture must be from 1 to 2"),
        ({"picture": 3}, "picture must be from 1 to 2"),
        ({"picture": "the tower"}, "picture: "),
        ({"url": "http://127.0.0.1/secret"}, "url: "),
        ({"query": "x" * 1001}, "query: "),
    ],
)
async def test_arguments_that_do_not_fit_are_told(web: WebEngine, arguments: dict[str, Any], told: str) -> None:
    (found,) = await box(web).run([wants(**arguments)], QUESTION)
    assert found.text.startswith(f"Arguments of image_search do not fit: {told}")
    assert found.failure is None


async def test_what_is_not_the_models_fault_is_a_failure(web: WebEngine) -> None:
    for changed, code in (({"id": "q2"}, "not_in_cache"), ({"id": "x" * 300}, "bad_id")):
        (found,) = await box(web).run([wants()], QUESTION.model_copy(update=changed))
        assert found.failure is not None
        assert (found.failure.code, found.text, found.images) == (code, "", ())


async def test_it_is_offered_with_pictures_only(web: WebEngine) -> None:
    tools = box(web)
    plain = QUESTION.model_copy(update={"images": ()})
    assert [spec.name for spec in tools.offered(QUESTION)] == ["search", "image_search"]
    assert [spec.name for spec in tools.offered(plain)] == ["search"]
    (found,) = await tools.run([wants()], plain)
    assert found.text == "There is no tool image_search. Tools: search."


# ---------------------------------------------------------------------------------------------- where it looks


def serper(request: Seen) -> Answer:
    host = f"http://{request.headers['host']}"
    if request.path in ("/images", "/lens"):
        return Answer(pictured(request.path, host, 1, lens=request.path == "/lens"))
    return Answer(from_data_url(picture("green")), headers={"content-type": "image/png"})


async def lens(server: Server, tmp_path: Path, call_: ToolCall, question: Question) -> Any:
    cache = CacheConfig(path=tmp_path / "cache")
    web = open_engine(WebConfig(base_url=server.url, retries=0, rate=1000, allow_hosts=(server.host,), cache=cache))
    (found,) = await box(web).run([call_], question)
    await web.aclose()
    return found


async def test_lens_searches_by_address_and_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "key")
    asked = QUESTION.model_copy(update={"images": ("https://example.org/tower.jpg",)})
    with serving(serper) as server:
        for call_, path, sent in (
            (wants(), "/lens", {"url": "https://example.org/tower.jpg"}),
            (wants(query=" iron tower "), "/images", {"q": "iron tower"}),
        ):
            found = await lens(server, tmp_path, call_, asked)
            request = next(seen for seen in reversed(server.seen) if seen.path == path)
            assert sent.items() <= request.json.items()
            assert [colour(url) for url in found.images] == [COLOURS["green"]]
        refused = await lens(server, tmp_path, wants(), QUESTION)
    assert refused.failure is not None
    assert (refused.failure.code, bool(refused.failure.remedy)) == ("needs_url", True)


async def test_an_index_is_searched_by_the_picture_that_is_named(tmp_path: Path) -> None:
    rows = []
    for number, name in enumerate(("Arch", "Bridge")):
        (tmp_path / f"{name}.png").write_bytes(from_data_url(shape(number)))
        rows.append({"file": f"{name}.png", "title": name})
    (tmp_path / "pictures.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    web = open_engine(WebConfig(images=ImagesConfig(kind="index", path=tmp_path), cache=CacheConfig(kind="off")))
    asked = QUESTION.model_copy(update={"images": (shape(0), shape(1)), "caption": ""})
    texts = [(await box(web, 1).run([wants(picture=number)], asked))[0].text for number in (1, 2)]
    await web.aclose()
    assert texts == ["Picture 1: Arch.", "Picture 1: Bridge."]


def shape(seed: int) -> str:
    """Smooth noise: a perceptual hash sees forms, not colours."""
    grid = np.random.default_rng(seed).integers(0, 256, (8, 8), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(grid).resize((64, 64)).save(file, "PNG")
    return to_data_url(file.getvalue(), "image/png")


@pytest.mark.parametrize(
    ("backend", "images", "names"),
    [
        ("local", 0, ["search"]),
        ("local", 3, ["search", "image_search"]),
        ("web", 3, ["search", "visit", "image_search"]),
        ("both", 3, ["search", "visit", "image_search"]),
        ("both", 0, ["search", "visit"]),
    ],
)
async def test_one_line_of_the_config_offers_it(backend: str, images: int, names: list[str], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "contents": "\\"Vienna\\"\\nOn the Danube."}\n', encoding="utf-8")
    assert main(["index", "build", str(corpus), "--out", str(tmp_path / "index"), "--engines", "bm25"]) == 0
    search = {"backend": backend, "images": images, "index": tmp_path / "index", "mode": "bm25"}
    web = WebConfig(cache=CacheConfig(path=tmp_path / "cache"))
    opened_ = open_tools(RunConfig(search=SearchConfig.model_validate(search), web=web), MiniLM(), ScriptedChat())
    assert [tool.spec.name for tool in opened_.tools] == names
    await opened_.aclose()
    if images:  # all of it is closed
        (closed,) = await ToolBox(opened_.tools).run([wants(query="tower")], QUESTION)
        assert closed.failure is not None
        assert closed.failure.code == "closed"


# ---------------------------------------------------------------------------------------------- in an episode


async def played(
    web: WebEngine, *answers: str | Reply, planner: tuple[str, ...] = (), context: int = 32768, **agent: Any
) -> tuple[Execution, ScriptedChat, Transcript]:
    executor = ScriptedChat(answers, context=context)
    models = scripted(ScriptedChat(planner), executor)
    settings = AgentConfig(**{"plan": False, "reflect": bool(planner), **agent})
    made, transcript = Driver(models, box(web)), Transcript()
    tools = made.toolbox.offered(QUESTION)
    episode = mia_episode(transcript, QUESTION, tools, settings, context, lambda: 0.0, recall=False)
    return await made.run(episode), executor, transcript


def ran(transcript: Transcript) -> list[str]:
    return [made.name for step in transcript.steps for made in step.calls]


async def test_its_pictures_reach_the_next_message(web: WebEngine) -> None:
    execution, executor, transcript = await played(web, grammar(), "<answer>Babel</answer>")
    assert execution == Execution("Babel", "answered")
    first, reply, told = executor.history[-1]
    assert (first.images, reply.images) == (QUESTION.images, ())
    assert "image_search(picture, query)" in first.text
    assert told.images == transcript.steps[0].observations[0].images
    assert [colour(url) for url in told.images] == [COLOURS["red"], COLOURS["green"]]
    assert "Picture 2: Eiffel Tower." in told.text


async def test_with_native_calls_a_user_message_brings_the_pictures(web: WebEngine) -> None:
    calls = (wants(), ToolCall(id="d", name="search", arguments={"query": "Vienna"}))
    first = Reply(text="", tool_calls=calls, finish_reason="tool_calls")
    _, executor, _ = await played(web, first, "<answer>Babel</answer>", tool_format="native")
    *_, images, search, shown = executor.history[-1]
    assert [(m.role, m.tool_call_id, len(m.images)) for m in (images, search, shown)] == [
        ("tool", "c", 0),
        ("tool", "d", 0),
        ("user", None, 2),
    ]
    assert "Tower of Babel" in images.text


@pytest.mark.parametrize("together", [True, False], ids=["in one turn", "in two turns"])
async def test_the_second_call_is_not_run_and_told_so(web: WebEngine, together: bool) -> None:
    calls = [grammar() + grammar(picture=2)] if together else [grammar(), grammar(picture=2)]
    _, executor, transcript = await played(web, *calls, call("Vienna"), "<answer>Babel</answer>")
    assert ran(transcript) == ["image_search", "search"]
    told = "\n".join(m.text for m in executor.history[-1] if m.role == "user")
    assert told.count("Not run: image_search can be used once for each question.") == 1
    assert told.count("Picture 1: Tower of Babel.") == 1
    assert sum(len(message.images) for message in executor.history[-1]) == 4  # two of the question, two found


async def test_a_second_plan_gives_no_second_use(web: WebEngine) -> None:
    _, executor, transcript = await played(
        web,
        *(grammar(), "<answer>Babel</answer>", grammar(query="tower"), "<answer>Eiffel</answer>"),
        planner=("yes, look again", "1. Search again."),
    )
    assert ran(transcript) == ["image_search"]
    assert "can be used once" in executor.history[-1][-1].text


async def test_only_as_many_pictures_are_shown_as_fit(web: WebEngine) -> None:
    """Two of the question, counted as 2,048 tokens, leave room for one."""
    counted = Reply(text=grammar(), usage=Usage(prompt_tokens=2100, completion_tokens=20, calls=1))
    _, executor, _ = await played(
        web, counted, "<answer>Babel</answer>", context=4096, executor={"max_tokens": 128}, answer={"max_tokens": 64}
    )
    told = executor.history[-1][2]
    assert len(told.images) == 1
    assert "Picture 1: Tower of Babel" in told.text


async def test_a_failed_search_ends_the_run_when_nothing_else_was_asked(web: WebEngine) -> None:
    await web.aclose()
    with pytest.raises(ToolError):
        await played(web, grammar(query="tower"), "<answer>Babel</answer>")
    _, executor, transcript = await played(web, grammar(query="tower") + call("Vienna"), "<answer>Vienna</answer>")
    assert [failure.code for failure in transcript.degraded] == ["closed"]
    assert all("closed" not in message.text for message in executor.history[-1])
