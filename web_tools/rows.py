"""Reads the replies of Serper, which may lack fields, hold nulls, or hold rows that are none.

A row counts if it has an http(s) link and a title that is not blank; other rows, and later rows with a link that an
earlier one has, are passed over. The rank is the row's own `position`, or its place in the list where it has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from mia.errors import ToolError
from web_tools.records import ImageHit, WebHit

Reply = dict[str, Any]


def parsed(body: bytes, name: str) -> Reply:
    """The JSON object of a body.

    Raises:
        ToolError: the body is empty, no JSON, or JSON of another shape (code `bad_answer`).
    """
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError) as error:
        shown = body[:80].decode("utf-8", "replace")
        raise _bad(name, f"{shown!r} is no JSON" if body.strip() else "the body is empty") from error
    if not isinstance(reply, dict):
        raise _bad(name, f"a JSON {type(reply).__name__} where an object should be")
    return reply


def server_words(reply: Reply) -> str:
    """What the server says of a fault in its reply; empty if nothing."""
    for name in ("message", "error"):
        words = reply.get(name)
        if isinstance(words, dict):
            words = words.get("message")
        if isinstance(words, str) and words.strip():
            return words.strip()[:300]
    return ""


def web_hits(reply: Reply, name: str) -> tuple[WebHit, ...]:
    """The results of a text search, sorted by rank.

    Raises:
        ToolError: `organic` is there but no list (code `bad_answer`).
    """
    hits = [WebHit(**_common(row, rank)) for rank, row in _rows(reply, "organic", name)]
    return tuple(sorted(hits, key=lambda hit: hit.rank))


def image_hits(reply: Reply, name: str) -> tuple[ImageHit, ...]:
    """The pictures of an image search (`images`) or a lens search (`organic`), sorted by rank.

    Raises:
        ToolError: the list is there but is none (code `bad_answer`).
    """
    hits = []
    for rank, row in _rows(reply, "images" if "images" in reply else "organic", name):
        hits.append(
            ImageHit(
                **_common(row, rank),
                image_url=_link(row.get("imageUrl")),
                thumbnail_url=_link(row.get("thumbnailUrl")),
                width=_number(row.get("imageWidth")),
                height=_number(row.get("imageHeight")),
            )
        )
    return tuple(sorted(hits, key=lambda hit: hit.rank))


def table(reply: Reply, name: str) -> dict[str, JsonValue] | None:
    """An object of the reply, e.g. the answer box; None if there is none."""
    value = reply.get(name)
    return value if isinstance(value, dict) and value else None


def _rows(reply: Reply, field: str, name: str) -> Iterator[tuple[int, Reply]]:
    rows = reply.get(field)
    if rows is None:
        return
    if not isinstance(rows, list):
        raise _bad(name, f"`{field}` is a {type(rows).__name__}, not a list")
    seen: set[str] = set()
    for place, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            continue
        link = _link(row.get("link"))
        if link and _text(row.get("title")) and link not in seen:
            seen.add(link)
            yield _number(row.get("position")) or place, row


def _common(row: Reply, rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "title": _text(row.get("title")),
        "url": _link(row.get("link")),
        "snippet": _text(row.get("snippet")),
        "date": _text(row.get("date")) or None,
        "source": _text(row.get("source")),
    }


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _link(value: Any) -> str:
    text = _text(value)
    return text if text.lower().startswith(("http://", "https://")) else ""


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _bad(name: str, what: str) -> ToolError:
    return ToolError(
        f"{name} answered with another shape: {what}",
        remedy="check web.base_url, and that no log-in page or proxy answers in its place",
        code="bad_answer",
    )
