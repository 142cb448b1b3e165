"""Image search results that were collected beforehand, in the original's folders: `<folder>/<question id>/`.

Such a folder holds `meta.json` and the pictures `img_000.jpg`, `img_001.png`, … `meta.json` has the titles either as
`search_results` (objects with `title`) or, older, as `title_list` (texts), and in both forms `image_urls`. Entry i of
each list and `img_i` belong together. A picture that is missing or damaged is reported as such, never replaced.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from mia.errors import DataError, ToolError
from mia.types import Failure
from web_tools.pictures import small
from web_tools.records import ImageHit, ImageQuery

_SUFFIXES = (".jpg", ".png", ".webp", ".jpeg")
_MAX_PICTURE_BYTES = 32 * 1024 * 1024
_MAX_META_BYTES = 4 * 1024 * 1024


class ImageFolder:
    """An `ImageFinder` over such folders. The picture of a query is not looked at, only its question's id.

    Args:
        folder: the one that holds a folder for each question.

    Raises:
        DataError: there is no such folder.
    """

    by_words = False

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(f"no image cache {folder}", remedy="correct web.images.path", code="no_image_cache")
        self._root = folder.resolve()

    async def find(self, query: ImageQuery, k: int) -> list[ImageHit]:
        """See `ImageFinder.find`. The rank is the place in the cache; each hit has a picture or a failure.

        Raises:
            DataError: the query has no question id (`no_question_id`), or one that is no plain name (`bad_id`).
            ToolError: nothing is kept for the id (`not_in_cache`), or its meta.json is damaged (`bad_cache`).
        """
        return await asyncio.to_thread(self._find, query.question_id, k)

    async def aclose(self) -> None:
        """Nothing to free."""

    def _find(self, question_id: str, k: int) -> list[ImageHit]:
        folder = self._folder(question_id)
        titles, urls = _read_meta(folder / "meta.json")
        hits = []
        for place in range(min(k, max(len(titles), len(urls)))):
            title = titles[place] if place < len(titles) else ""
            url = urls[place] if place < len(urls) else ""
            image, failure = self._picture(folder, place)
            hits.append(ImageHit(rank=place + 1, title=title, url=url, image_url=url, image=image, failure=failure))
        return hits

    def _folder(self, question_id: str) -> Path:
        if not question_id:
            raise DataError("an image cache is searched by question id", remedy="give one", code="no_question_id")
        if not question_id.isprintable() or question_id.startswith(".") or any(c in "/\\" for c in question_id):
            raise DataError(f"{question_id!r} is no question id", remedy="give a plain name", code="bad_id")
        folder = self._root / question_id
        try:
            inside = folder.resolve().parent == self._root
            known = inside and folder.is_dir()
        except OSError:  # a name longer than the file system takes
            known = False
        if not known:
            raise ToolError(
                f"no images are kept for question {question_id!r}",
                remedy="check the id and web.images.path",
                code="not_in_cache",
            )
        return folder

    def _picture(self, folder: Path, place: int) -> tuple[str | None, Failure | None]:
        """The picture of a place as a data URL, or why there is none."""
        for suffix in _SUFFIXES:
            file = folder / f"img_{place:03d}{suffix}"
            if not file.is_file():
                continue
            if file.resolve().parent != folder.resolve():
                return None, _failure("forbidden_file", f"{file.name} leads out of its folder")
            if file.stat().st_size > _MAX_PICTURE_BYTES:
                return None, _failure("too_large", f"{file.name} is larger than {_MAX_PICTURE_BYTES} bytes")
            try:
                return small(file.read_bytes()), None
            except (DataError, OSError) as error:
                return None, _failure("damaged", f"{file.name}: {error}")
        return None, _failure("missing", f"img_{place:03d} is not in the cache")


def _failure(code: str, message: str) -> Failure:
    return Failure(boundary="tool", code=code, message=message)


def _read_meta(file: Path) -> tuple[list[str], list[str]]:
    """Titles and picture URLs; what is no text counts as an empty one, so that places are kept."""
    try:
        if file.stat().st_size > _MAX_META_BYTES:
            raise _damaged(file, f"larger than {_MAX_META_BYTES} bytes")
        meta = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(file, str(error)) from error
    if not isinstance(meta, dict):
        raise _damaged(file, "no JSON object")
    if meta.get("search_results") is not None:
        rows = _list(file, meta, "search_results")
        titles = [row.get("title") if isinstance(row, dict) else row for row in rows]
    else:
        titles = _list(file, meta, "title_list")
    return [_text(title) for title in titles], [_text(url) for url in _list(file, meta, "image_urls")]


def _list(file: Path, meta: dict[str, Any], name: str) -> list[Any]:
    value = meta.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _damaged(file, f"`{name}` is no list")
    return value


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _damaged(file: Path, what: str) -> ToolError:
    return ToolError(
        f"{file.parent.name}/{file.name} is damaged: {what}",
        remedy="restore or delete the folder of this question",
        code="bad_cache",
    )
