"""Wire records of the search service: its own `/v1/search`, and `/retrieve`, the contract of Search-R1."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from local_search.bounds import MAX_K, MAX_QUERY_CHARS
from local_search.config import Mode
from mia.types import Hit, Record, Text

MAX_QUERIES = 1024
MAX_HITS = 65_536
"""Queries times k of one request, at most: more would hold the service up for all others while it is written out."""
"""Queries in one request."""

# Bounds are written down for clients here, and checked by `bounds`, whose errors say more than a schema's.
Query = Annotated[Text, Field(json_schema_extra={"pattern": r"\S", "maxLength": MAX_QUERY_CHARS})]
Queries = Annotated[list[Query], Field(json_schema_extra={"maxItems": MAX_QUERIES})]
Count = Annotated[int | None, Field(json_schema_extra={"minimum": 1, "maximum": MAX_K})]


class SearchRequest(Record):
    """Body of `POST /v1/search`. `k` and `mode`: the service's own if not given."""

    queries: Queries
    k: Count = None
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

    queries: Queries
    topk: Count = None
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
