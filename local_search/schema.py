"""Wire records of the search service: its own `/v1/search`, and `/retrieve`, the contract of Search-R1."""

from __future__ import annotations

from pydantic import BaseModel, Field

from local_search.bounds import MAX_K
from local_search.config import Mode
from mia.types import Hit, Record, Text

MAX_QUERIES = 1024
"""Queries in one request."""


class SearchRequest(Record):
    """Body of `POST /v1/search`. `k` and `mode`: the service's own if not given."""

    queries: list[Text] = Field(json_schema_extra={"maxItems": MAX_QUERIES})
    k: int | None = Field(None, json_schema_extra={"minimum": 1, "maximum": MAX_K})
    mode: Mode | None = None


class QueryResult(Record):
    """Hits of one query, best first."""

    hits: list[Hit]


class SearchResponse(Record):
    """Answer of `POST /v1/search`: one result per query, in their order. `backend` is what answered."""

    backend: str
    results: list[QueryResult]


class RetrieveRequest(BaseModel):
    """Body of `POST /retrieve`; as in Search-R1, other fields are let pass."""

    queries: list[Text]
    topk: int | None = None
    return_scores: bool = False


class Document(BaseModel):
    """A corpus row as it is."""

    id: str
    contents: str


class ScoredDocument(BaseModel):
    """A corpus row with its score."""

    document: Document
    score: float


class Documents(BaseModel):
    """Answer of `POST /retrieve` without scores."""

    result: list[list[Document]]


class ScoredDocuments(BaseModel):
    """Answer of `POST /retrieve` with scores."""

    result: list[list[ScoredDocument]]
