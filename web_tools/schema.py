"""Wire records of the web service. Bounds that the engine checks itself are told in the schema, not checked here."""

from __future__ import annotations

from pydantic import Field

from mia.types import Record, Text
from web_tools.bounds import MAX_GOAL_CHARS, MAX_K, MAX_QUERIES, MAX_QUERY_CHARS, MAX_URL_CHARS
from web_tools.records import ImageQuery, ImageResult, SearchResult


class SearchRequest(Record):
    """Body of `POST /v1/search`. `k`: the service's own if not given."""

    queries: list[Text] = Field(max_length=MAX_QUERIES, description=f"none blank or over {MAX_QUERY_CHARS} characters")
    k: int | None = Field(None, ge=1, le=MAX_K)


class SearchResponse(Record):
    """Answer of `POST /v1/search`: one result per query, in their order."""

    backend: str
    results: list[SearchResult]


class ImageRequest(Record):
    """Body of `POST /v1/image_search`."""

    queries: list[ImageQuery] = Field(max_length=MAX_QUERIES)
    k: int | None = Field(None, ge=1, le=MAX_K)
    download: bool = False


class ImageResponse(Record):
    """Answer of `POST /v1/image_search`: one result per query, in their order."""

    results: list[ImageResult]


class VisitRequest(Record):
    """Body of `POST /v1/visit`."""

    url: Text = Field(json_schema_extra={"minLength": 1, "maxLength": MAX_URL_CHARS})
    goal: Text = Field("", json_schema_extra={"maxLength": MAX_GOAL_CHARS})
