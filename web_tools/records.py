"""What online search gives back. All text in these records was written by others: it is evidence, never instruction."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, model_validator

from mia.types import Failure, Hit, Passage, Record, Text
from web_tools.bounds import MAX_PICTURE_CHARS, MAX_QUERY_CHARS


class WebHit(Record):
    """One result. `rank` is the server's own position, so ranks may have gaps; `date` is as the server wrote it."""

    rank: int = Field(ge=1)
    title: Text
    url: Text
    snippet: Text = ""
    date: Text | None = None
    source: Text = ""

    def as_hit(self, backend: str) -> Hit:
        """The result as a search hit: the URL is its id, the snippet with its date its text, 1 / rank its score."""
        text = f"{self.snippet} ({self.date})".strip() if self.date else self.snippet
        passage = Passage(id=self.url, title=self.title, text=text)
        return Hit(passage=passage, score=1.0 / self.rank, rank=self.rank, backend=backend)


class ImageHit(WebHit):
    """A picture that was found. `url` is the page it is on, `image` the picture itself as a data URL.

    `image` is None where the picture was not asked for, or, with a `failure`, where it could not be had.
    """

    image_url: Text = ""
    thumbnail_url: Text = ""
    width: int | None = None
    height: int | None = None
    score: float | None = None
    image: str | None = None
    failure: Failure | None = None


class SearchResult(Record):
    """What one query found, or its failure. No hits and no failure: nothing was found.

    `answer_box` and `knowledge_graph` are Serper's own, as they came; `search` leaves them out, since they have no
    rank and often no source. `cached`: nothing was asked of Serper.
    """

    hits: tuple[WebHit, ...] = ()
    answer_box: dict[str, JsonValue] | None = None
    knowledge_graph: dict[str, JsonValue] | None = None
    cached: bool = False
    failure: Failure | None = None

    @model_validator(mode="after")
    def _failure_has_no_hits(self) -> SearchResult:
        if self.failure is not None and self.hits:
            raise ValueError("a failed search has no hits")
        return self


class ImageQuery(Record):
    """Pictures to look for: by words, or by a picture (data URL or http(s) URL), its caption, its question's id."""

    query: Text = Field("", max_length=MAX_QUERY_CHARS)
    image: str = Field("", max_length=MAX_PICTURE_CHARS)
    caption: Text = Field("", max_length=MAX_QUERY_CHARS)
    question_id: str = Field("", max_length=200)

    @model_validator(mode="after")
    def _one_kind(self) -> ImageQuery:
        by_picture = bool(self.image or self.caption.strip() or self.question_id)
        if bool(self.query.strip()) == by_picture:
            raise ValueError("give either query, or some of image, caption and question_id")
        return self


class ImageResult(Record):
    """The pictures found for one `ImageQuery`, or its failure."""

    hits: tuple[ImageHit, ...] = ()
    cached: bool = False
    failure: Failure | None = None

    @model_validator(mode="after")
    def _failure_has_no_hits(self) -> ImageResult:
        if self.failure is not None and self.hits:
            raise ValueError("a failed search has no hits")
        return self


class Page(Record):
    """Text of a page: `url` is where the redirects led. `date` is YYYY-MM-DD where one was found."""

    url: Text
    title: Text = ""
    date: str | None = None
    content_type: str
    text: Text
    cut: bool = False
    """Whether the source had more than was read (a PDF beyond its page limit)."""


class Visit(Record):
    """What a visit gives back.

    `method` says what `text` is: the page's own text (`page`), its passages that match the goal best, in the page's
    order (`passages`), or what a model extracted (`model`). An empty text with a goal: the page says nothing on it.
    `truncated`: there was more than `text` shows.
    """

    url: Text
    title: Text
    date: str | None
    content_type: str
    text: Text
    method: Literal["page", "passages", "model"]
    truncated: bool
    cached: bool
    untrusted: Literal[True] = True
    model: str = ""
    prompt_hash: str = ""


class Stats(Record):
    """Counts since the start. `requests` counts what was sent to Serper, retries too; costs are estimates."""

    requests: int = 0
    visits: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    failures: int = 0
    credits: int = 0
    cost_usd: float = 0.0
