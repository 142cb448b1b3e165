"""Settings of search: which index or service answers, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from local_search.bounds import MAX_K
from mia.config import Section

Mode = Literal["hybrid", "bm25", "dense", "lucene"]


class SearchConfig(Section):
    """The section `[search]`."""

    backend: Literal["local", "web", "both"] = Field(
        "local", description="what the agent searches: this section's index, the web (section [web]), or both"
    )
    images: int = Field(
        0,
        ge=0,
        le=20,
        description="pictures that `image_search` (section [web.images]) shows; paper: 3; 0: no such tool",
    )
    index: Path | None = Field(None, description="index folder (`mia index build`); empty: the bundled small corpus")
    mode: Mode = Field("hybrid", description="ranking: hybrid, bm25, dense or lucene; with a url, sent only if set")
    k: int = Field(3, ge=1, le=MAX_K, description="passages for each query")
    encoder_path: Path | None = Field(
        None, description="folder of the index's encoder, where it is not in the cache or on the Hugging Face hub"
    )
    rerank: str = Field(
        "", description="cross-encoder that ranks the best passages anew: hub name or folder; empty: none"
    )
    rerank_pool: int = Field(50, ge=1, le=MAX_K, description="passages that the cross-encoder reads for each query")
    url: str = Field("", description="base URL of a running search service; empty: search in this process")

    @field_validator("index", "encoder_path", mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        """Flags and environment variables can only say "not set" by an empty text."""
        return None if value == "" else value
