"""Pictures: by words and by lens, from folders in the original's form, from an index of our own."""

from __future__ import annotations

import base64
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from mia.errors import ConfigError, DataError, ToolError
from web_tools.config import CacheConfig, ImagesConfig, VisitConfig, WebConfig
from web_tools.image_folder import ImageFolder
from web_tools.open import open_engine
from web_tools.picture_index import PictureIndex
from web_tools.pictures import small
from web_tools.records import ImageHit, ImageQuery
from web_tools.stub import Answer, Seen, Server, pictured, serving


def picture(seed: int, size: tuple[int, int] = (200, 150), kind: str = "PNG") -> bytes:
    """Smooth noise: as different from one seed to another as photographs are."""
    grid = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(grid).resize(size, Image.Resampling.BICUBIC).save(file, kind)
    return file.getvalue()


def data_url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def opened(url: str | None) -> Image.Image:
    assert url is not None
    head, _, body = url.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(body)))


def colour_distance(one: Image.Image, other: Image.Image) -> float:
    size = (32, 32)
    a, b = (np.asarray(i.convert("RGB").resize(size), dtype=float) for i in (one, other))
    return float(np.abs(a - b).mean())


# ---------------------------------------------------------------------------------------------- live


def serper(request: Seen) -> Answer:
    """Serper, and the host of the pictures: 1 is whole, 2 has a thumbnail only, 3 is gone, 4 is no picture."""
    host = f"http://{request.headers['host']}"
    if request.path == "/images":
        return Answer(pictured(request.json["q"], f"{host}/pictures", 4))
    if request.path == "/lens":
        return Answer(pictured("match", f"{host}/pictures", 2, lens=True))
    if request.path in ("/pictures/1.png", "/pictures/2-small.png"):
        return Answer(picture(int(request.path[10]), (1024, 256)), headers={"content-type": "image/png"})
    if request.path.startswith("/pictures/4"):
        return Answer("<html>no picture", headers={"content-type": "image/png"})
    return Answer("gone", 404)


def config(server: Server, folder: Path, **settings: Any) -> WebConfig:
    return WebConfig(
        base_url=server.url,
        rate=1000.0,
        retries=0,
        allow_hosts=(server.host,),
        cache=CacheConfig(path=folder),
        visit=VisitConfig(timeout_s=5.0),
        **settings,
    )


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "the-key")


async def test_pictures_by_words(tmp_path: Path) -> None:
    with serving(serper) as server:
        web = open_engine(config(server, tmp_path))
        [result] = await web.images([ImageQuery(query="Danube delta")], 2)
        stats = await web.stats()
        await web.aclose()
    [request] = server.seen
    assert request.json == {"q": "Danube delta", "num": 10, "gl": "us", "hl": "en"}
    assert result.hits[0] == ImageHit(
        rank=1,
        title="Danube delta in picture 1",
        url="https://example.org/gallery/1",
        source="Example Gallery",
        image_url=f"{server.url}/pictures/1.png",
        thumbnail_url=f"{server.url}/pictures/1-small.png",
        width=640,
        height=480,
    )
    assert [hit.rank for hit in result.hits] == [1, 2]
    assert (result.cached, stats.credits) == (False, 1)


async def test_lens_finds_by_url(tmp_path: Path) -> None:
    with serving(serper) as server:
        web = open_engine(config(server, tmp_path))
        query = ImageQuery(image="https://example.org/Wien.jpg#x")
        [first] = await web.images([query], 5)
        [second] = await web.images([query], 5)
        stats = await web.stats()
        await web.aclose()
    [request] = server.seen
    assert (request.path, request.json["url"]) == ("/lens", "https://example.org/Wien.jpg")
    assert [(hit.rank, hit.title) for hit in first.hits] == [(1, "match in picture 1"), (2, "match in picture 2")]
    assert (second.hits, second.cached) == (first.hits, True)
    assert (stats.credits, stats.cost_usd) == (3, 0.003)


async def test_downloads_are_pictures_or_failures_and_replayed(tmp_path: Path) -> None:
    with serving(serper) as server:
        live = open_engine(config(server, tmp_path))
        [result] = await live.images([ImageQuery(query="delta")], 4, download=True)
        await live.aclose()
        seen = len(server.seen)
        replay = open_engine(config(server, tmp_path, mode="replay"))
        [again] = await replay.images([ImageQuery(query="delta")], 4, download=True)
        await replay.aclose()
    whole, thumbnail, gone, broken = result.hits
    assert opened(whole.image).size == opened(thumbnail.image).size == (512, 128)
    assert colour_distance(opened(whole.image), Image.open(io.BytesIO(picture(1, (1024, 256))))) < 6
    assert colour_distance(opened(thumbnail.image), Image.open(io.BytesIO(picture(2, (1024, 256))))) < 6
    assert (gone.image, broken.image) == (None, None)
    assert gone.failure is not None
    assert broken.failure is not None
    assert (gone.failure.code, broken.failure.code) == ("http_404", "bad_picture")
    assert [hit.image for hit in again.hits] == [hit.image for hit in result.hits]
    assert [hit.failure.code if hit.failure else None for hit in again.hits] == [None, None] + ["not_in_cache"] * 2
    assert len(server.seen) == seen


async def test_pictures_of_private_hosts_are_not_fetched(tmp_path: Path) -> None:
    with serving(lambda request: Answer(picture(1))) as trap:
        reply = Answer(pictured("x", trap.url, 1))
        with serving(lambda request: reply) as server:
            web = open_engine(config(server, tmp_path))
            [result] = await web.images([ImageQuery(query="x")], 1, download=True)
            await web.aclose()
        assert trap.connections == 0
    [hit] = result.hits
    assert hit.failure is not None
    assert (hit.image, hit.failure.code) == (None, "forbidden_url")


async def test_each_query_fails_alone(tmp_path: Path) -> None:
    queries = [
        ImageQuery(query="delta"),
        ImageQuery(image=data_url(picture(1))),
        ImageQuery(image="http://169.254.169.254/x.jpg"),
        ImageQuery(caption="no picture at all"),
    ]
    with serving(serper) as server:
        web = open_engine(config(server, tmp_path))
        results = await web.images(queries, 1)
        with pytest.raises(DataError):
            await web.images(queries, 0)
        await web.aclose()
    codes = [result.failure.code if result.failure else None for result in results]
    assert codes == [None, "needs_url", "forbidden_url", "needs_url"]
    assert len(server.seen) == 1


@pytest.mark.parametrize("body", [{"images": None}, {}, {"images": [None, {"title": "x"}]}, {"organic": None}])
async def test_no_pictures_found(body: Any, tmp_path: Path) -> None:
    with serving(lambda request: Answer(body)) as server:
        web = open_engine(config(server, tmp_path))
        [result] = await web.images([ImageQuery(query="x")], 3)
        await web.aclose()
    assert (result.hits, result.failure) == ((), None)


def test_queries_are_of_one_kind() -> None:
    for fields in (
        {},
        {"query": " "},
        {"query": "x", "image": "https://a.example/"},
        {"query": "x", "question_id": "q"},
    ):
        with pytest.raises(ValidationError):
            ImageQuery(**fields)


# ---------------------------------------------------------------------------------------------- folders


def keep(root: Path, question_id: str, meta: Any, **files: bytes) -> None:
    folder = root / question_id
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(meta if isinstance(meta, str) else json.dumps(meta), encoding="utf-8")
    for name, data in files.items():
        (folder / name.replace("__", ".")).write_bytes(data)


URLS = ["https://a.example/0.jpg", "https://a.example/1.png", "https://a.example/2.webp"]
TITLES = ["Old bridge", "Two towers", "Market square"]


@pytest.mark.parametrize(
    "meta",
    [
        {"search_results": [{"title": title, "link": "x"} for title in TITLES], "image_urls": URLS},
        {"title_list": TITLES, "image_urls": URLS},
    ],
    ids=["search_results", "title_list"],
)
async def test_both_forms_of_folders(meta: Any, tmp_path: Path) -> None:
    pictures = {
        "img_000__jpg": picture(0, kind="JPEG"),
        "img_001__png": picture(1),
        "img_002__webp": picture(2, kind="WEBP"),
    }
    keep(tmp_path, "q-1", meta, **pictures)
    hits = await ImageFolder(tmp_path).find(ImageQuery(question_id="q-1"), 3)
    assert [(hit.rank, hit.title, hit.url, hit.failure) for hit in hits] == [
        (n + 1, TITLES[n], URLS[n], None) for n in range(3)
    ]
    for number, hit in enumerate(hits):
        assert colour_distance(opened(hit.image), Image.open(io.BytesIO(picture(number)))) < 6


async def test_missing_and_damaged_pictures_are_told_never_replaced(tmp_path: Path) -> None:
    meta = {
        "search_results": [{"title": "A"}, {"no": "title"}, None, "D", {"title": "E"}],
        "image_urls": [URLS[0], None],
    }
    keep(tmp_path, "q", meta, img_000__png=b"", img_001__jpg=picture(1)[:200], img_003__png=picture(3))
    os.symlink("/etc/hostname", tmp_path / "q" / "img_004.png")
    hits = await ImageFolder(tmp_path).find(ImageQuery(question_id="q"), 10)
    assert [(hit.title, hit.url) for hit in hits] == [("A", URLS[0]), ("", ""), ("", ""), ("D", ""), ("E", "")]
    codes = [hit.failure.code if hit.failure else None for hit in hits]
    assert codes == ["damaged", "damaged", "missing", None, "forbidden_file"]
    assert [hit.image is None for hit in hits] == [True, True, True, False, True]
    assert hits[2].failure is not None
    assert "img_002" in hits[2].failure.message


async def test_more_pictures_than_titles(tmp_path: Path) -> None:
    keep(tmp_path, "q", {"image_urls": URLS}, img_000__png=picture(0))
    hits = await ImageFolder(tmp_path).find(ImageQuery(question_id="q"), 2)
    assert [(hit.title, hit.url) for hit in hits] == [("", URLS[0]), ("", URLS[1])]


@pytest.mark.parametrize(
    "question_id",
    ["..", ".", "../secret", "/etc", "a/b", "a\\b", "..\\x", ".hidden", "q\x00", "q\n", "\u202eq", "\ud800"],
)
async def test_ids_that_are_paths_are_refused(question_id: str, tmp_path: Path) -> None:
    keep(tmp_path, "secret", {"title_list": ["inner"], "image_urls": []})
    keep(tmp_path / "root", "q", {"title_list": [], "image_urls": []})
    with pytest.raises(DataError) as caught:
        await ImageFolder(tmp_path / "root").find(ImageQuery.model_construct(question_id=question_id), 3)
    assert caught.value.code == "bad_id"


async def test_ids_that_lead_out_by_a_link_are_not_known(tmp_path: Path) -> None:
    keep(tmp_path, "secret", {"title_list": ["inner"], "image_urls": []})
    (tmp_path / "root").mkdir()
    os.symlink(tmp_path / "secret", tmp_path / "root" / "q")
    for question_id in ("q", "none", "x" * 5000):
        with pytest.raises(ToolError) as caught:
            await ImageFolder(tmp_path / "root").find(ImageQuery.model_construct(question_id=question_id), 3)
        assert caught.value.code == "not_in_cache"


@pytest.mark.parametrize("meta", ["", "{", "[]", '{"title_list": "x"}', '{"search_results": {}}', '{"image_urls": 5}'])
async def test_damaged_meta_is_a_failure(meta: str, tmp_path: Path) -> None:
    keep(tmp_path, "q", meta)
    with pytest.raises(ToolError, match=r"q/meta\.json is damaged") as caught:
        await ImageFolder(tmp_path).find(ImageQuery(question_id="q"), 3)
    assert caught.value.code == "bad_cache"


async def test_a_folder_through_the_engine(tmp_path: Path) -> None:
    keep(tmp_path / "kept", "ж-7", {"title_list": ["Old bridge"], "image_urls": URLS[:1]}, img_000__png=picture(0))
    images = ImagesConfig(kind="cache", path=tmp_path / "kept")
    with serving(serper) as server:
        web = open_engine(config(server, tmp_path / "cache", images=images))
        queries = [
            ImageQuery(question_id="ж-7"),
            ImageQuery(question_id="q"),
            ImageQuery(caption="x"),
            ImageQuery(query="x"),
        ]
        found, unknown, unnamed, words = await web.images(queries, 1)
        await web.aclose()
    assert [hit.title for hit in found.hits] == ["Old bridge"]
    assert unknown.failure is not None
    assert unnamed.failure is not None
    assert (unknown.failure.code, unnamed.failure.code) == ("not_in_cache", "no_question_id")
    assert words.hits[0].title == "x in picture 1"  # words still go to Serper
    assert [request.path for request in server.seen] == ["/images"]


# ---------------------------------------------------------------------------------------------- an index

ROWS: list[dict[str, Any]] = [
    {"file": "bridge.png", "title": "Old bridge", "caption": "A stone bridge over the river Neretva", "date": "2019"},
    {"file": "deep/tower.png", "title": "Tower", "caption": "A tower of iron in Paris", "url": "https://a.example/t"},
    {"file": "market.png", "title": "Market square", "caption": "Stalls between houses"},
]


def index(folder: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    (folder / "deep").mkdir(parents=True)
    for number, row in enumerate(ROWS):
        (folder / row["file"]).write_bytes(picture(number))
    lines = [json.dumps(row) for row in (ROWS if rows is None else rows)]
    (folder / "pictures.jsonl").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return folder


async def test_the_same_picture_is_found_in_another_size_and_format(tmp_path: Path) -> None:
    found = PictureIndex.open(index(tmp_path / "i"))
    for number, row in enumerate(ROWS):
        changed = data_url(picture(number, (90, 80), "JPEG"), "jpeg")
        [hit] = await found.find(ImageQuery(image=changed), 5)
        assert (hit.title, hit.rank, hit.snippet) == (row["title"], 1, row["caption"])
        assert hit.score is not None
        assert 1 - 10 / 64 <= hit.score <= 1.0
        assert colour_distance(opened(hit.image), Image.open(io.BytesIO(picture(number)))) < 6
    assert await found.find(ImageQuery(image=data_url(picture(99))), 5) == []
    await found.aclose()


async def test_related_pictures_are_found_by_caption(tmp_path: Path) -> None:
    found = PictureIndex.open(index(tmp_path / "i"))
    hits = await found.find(ImageQuery(caption="which towers stand in Paris"), 5)
    assert [(hit.title, hit.url) for hit in hits] == [("Tower", "https://a.example/t")]
    both = await found.find(ImageQuery(image=data_url(picture(0)), caption="tower"), 5)
    assert [hit.title for hit in both] == ["Old bridge", "Tower"]  # each first in one ranking: in the order of rows
    assert [hit.score for hit in both] == [pytest.approx(1 / 61)] * 2
    agreed = await found.find(ImageQuery(image=data_url(picture(2)), caption="market or bridge"), 5)
    assert agreed[0].title == "Market square"
    assert agreed[0].score is not None
    assert 1 / 61 + 1 / 62 <= agreed[0].score <= 2 / 61
    assert await found.find(ImageQuery(caption="zeppelin"), 5) == []


async def test_an_index_is_searched_by_words_without_a_key(tmp_path: Path) -> None:
    images = ImagesConfig(kind="index", path=index(tmp_path / "i"))
    web = open_engine(WebConfig(images=images, cache=CacheConfig(kind="off")))
    [words] = await web.images([ImageQuery(query="which towers stand in Paris")], 5, download=True)
    await web.aclose()
    assert [hit.title for hit in words.hits] == ["Tower"]
    assert words.hits[0].image is not None


async def test_what_an_index_cannot_look_for(tmp_path: Path) -> None:
    found = PictureIndex.open(index(tmp_path / "i"))
    for query, code in [
        (ImageQuery(question_id="q"), "no_picture"),
        (ImageQuery(image="https://a.example/x.jpg"), "no_picture"),
        (ImageQuery(image="data:text/plain,hello"), "bad_picture"),
        (ImageQuery(image="data:image/png;base64,@@@"), "bad_picture"),
        (ImageQuery(image=data_url(b"no picture")), "bad_picture"),
    ]:
        with pytest.raises(DataError) as caught:
            await found.find(query, 3)
        assert caught.value.code == code


async def test_a_picture_that_went_missing_is_told(tmp_path: Path) -> None:
    found = PictureIndex.open(index(tmp_path / "i"))
    (tmp_path / "i" / "bridge.png").unlink()
    [hit] = await found.find(ImageQuery(image=data_url(picture(0))), 3)
    assert hit.failure is not None
    assert (hit.image, hit.failure.code) == (None, "missing")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"file": "gone.png", "title": "x"}, "no picture 'gone.png'"),
        ({"file": "../outside.png", "title": "x"}, "no picture '../outside.png'"),
        ({"file": "/etc/hostname", "title": "x"}, "no picture '/etc/hostname'"),
        ({"file": "pictures.jsonl", "title": "x"}, "not a usable picture"),
        ({"file": "bridge.png", "title": ""}, "line 1"),
        ({"file": "bridge.png", "title": "x", "colour": "red"}, "line 1"),
        ({"title": "x"}, "line 1"),
    ],
)
def test_bad_rows_are_named(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "outside.png").write_bytes(picture(0))
    folder = index(tmp_path / "i", [row])
    with pytest.raises(DataError) as caught:
        PictureIndex.open(folder)
    assert words in caught.value.message
    assert "pictures.jsonl" in caught.value.message


async def test_opening_image_search(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no picture index"):
        PictureIndex.open(tmp_path)
    for kind in ("cache", "index"):
        with pytest.raises(ConfigError, match=r"needs a folder"):
            open_engine(WebConfig(images=ImagesConfig(kind=kind), cache=CacheConfig(kind="off")))
    with pytest.raises(DataError, match="no image cache"):
        open_engine(WebConfig(images=ImagesConfig(kind="cache", path=tmp_path / "x"), cache=CacheConfig(kind="off")))
    images = ImagesConfig(kind="index", path=index(tmp_path / "i"))
    web = open_engine(WebConfig(images=images, cache=CacheConfig(kind="off")))
    [result] = await web.images([ImageQuery(caption="Paris")], 1)
    assert [hit.title for hit in result.hits] == ["Tower"]
    await web.aclose()
    assert await PictureIndex.open(index(tmp_path / "empty", [])).find(ImageQuery(caption="Paris"), 1) == []


# ---------------------------------------------------------------------------------------------- pictures


def test_pictures_are_made_small_and_plain() -> None:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x010E] = "secret place"
    Image.new("RGBA", (2000, 1000), (255, 0, 0, 128)).save(file, "PNG", exif=exif)
    made = opened(small(file.getvalue()))
    assert (made.size, made.mode) == ((512, 256), "RGB")
    assert not made.getexif()
    assert opened(small(picture(1, (30, 20)))).size == (30, 20)
