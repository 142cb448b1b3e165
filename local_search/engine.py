"""Searches an index in this process: BM25, dense, hybrid, Lucene. Knows no HTTP; `client` is its network twin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from local_search.bm25 import Bm25
from local_search.bounds import checked
from local_search.config import Mode
from local_search.corpus import Row
from local_search.dense import Dense
from local_search.encoder import encoder_of
from local_search.hybrid import Hybrid
from local_search.index import EngineName, Manifest, read_manifest
from local_search.lucene import Lucene
from local_search.passages import Passages, searched_text
from local_search.protocol import Encoder
from local_search.ranking import Ranker
from local_search.rerank import Reranked, Reranking
from mia.errors import DataError, ToolError
from mia.types import Hit

_NEEDS: dict[Mode, tuple[EngineName, ...]] = {
    "hybrid": ("bm25", "dense"),
    "bm25": ("bm25",),
    "dense": ("dense",),
    "lucene": ("lucene",),
}


class Found(NamedTuple):
    """A row that was found, as the corpus had it."""

    row: Row
    score: float


class SearchEngine:
    """A `SearchBackend` over an index folder. Make one with `open`."""

    def __init__(
        self, folder: Path, manifest: Manifest, mode: Mode, encoder: Encoder | None, reranking: Reranking | None
    ) -> None:
        self.manifest = manifest
        self._reranking = reranking
        self.mode = mode
        self.name = self.name_of(mode)
        self._folder = folder
        self._passages = Passages(folder)
        self._encoder = encoder
        self._rankers: dict[Mode, Ranker] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._warm = False

    @classmethod
    def open(
        cls,
        folder: Path,
        mode: Mode = "hybrid",
        encoder: Encoder | None = None,
        *,
        shared: Encoder | None = None,
        encoder_place: Path | None = None,
        reranking: Reranking | None = None,
    ) -> SearchEngine:
        """Open an index.

        Args:
            folder: the index, as `mia index build` wrote it.
            mode: how to rank unless a search says otherwise.
            encoder: the one that the index was built with; found by its name if not given.
            shared: one to take if it is the index's; it is no error if it is not.
            encoder_place: folder of the encoder's model, where that is not what its name says.
            reranking: ranks the best passages anew.

        Raises:
            DataError: the index is missing, damaged, of a newer format, of another encoder or lacks the mode's engine.
            ConfigError: a package of the extra `search` is missing.
        """
        manifest = read_manifest(folder)
        if encoder is not None and manifest.encoder not in ("", encoder.name):
            raise DataError(
                f"index {folder} was built with the encoder {manifest.encoder}, not {encoder.name}",
                remedy=f"rebuild it: `mia index build CORPUS --out {folder} --force`",
                code="other_encoder",
            )
        if encoder is None and shared is not None and shared.name == manifest.encoder:
            encoder = shared
        if encoder is None and encoder_place is not None and manifest.encoder:
            encoder = encoder_of(manifest.encoder, manifest.dim, encoder_place)
        engine = cls(folder, manifest, mode, encoder, reranking)
        engine._ranker(mode)
        return engine

    @property
    def ready(self) -> bool:
        """Whether a search would be answered without loading anything first."""
        return self._warm and not self._closed

    def name_of(self, mode: Mode | None) -> str:
        """What a search with this mode is answered by."""
        return f"local/{mode or self.mode}" + ("+rerank" if self._reranking else "")

    def warm(self) -> None:
        """Load what the first search would otherwise load: an encoder takes a second."""
        self._find(["warm"], 1, None)
        self._warm = True

    async def search(self, queries: Sequence[str], k: int, mode: Mode | None = None) -> list[list[Hit]]:
        """See `SearchBackend`; `mode` ranks otherwise than the engine was opened for.

        Result i is exactly what query i gets alone. Fewer than `k` hits come back when the corpus is smaller, or, with
        BM25, when fewer passages share a word with the query. Scores: BM25 weight, cosine, rank fusion
        sum, or what a cross-encoder says.
        """
        found = await self.find(queries, k, mode)
        backend = self.name_of(mode)
        return [
            [
                Hit(passage=row.passage(), score=score, rank=rank, backend=backend)
                for rank, (row, score) in enumerate(hits, 1)
            ]
            for hits in found
        ]

    async def find(self, queries: Sequence[str], k: int, mode: Mode | None = None) -> list[list[Found]]:
        """As `search`, with the corpus rows untouched."""
        return await asyncio.to_thread(self._find, checked(queries, k), k, mode)

    async def aclose(self) -> None:
        """Searches that come later fail with a ToolError; those under way are finished."""
        self._closed = True

    def _find(self, queries: Sequence[str], k: int, mode: Mode | None) -> list[list[Found]]:
        if self._closed:
            raise ToolError(f"the search over {self._folder} is closed", remedy="open the index anew", code="closed")
        k = min(k, len(self._passages))
        rankings = self._ranker(mode or self.mode).top(queries, k)
        return [[Found(self._passages.row(row), score) for row, score in ranking] for ranking in rankings]

    def _ranker(self, mode: Mode) -> Ranker:
        with self._lock:
            if mode not in self._rankers:
                self._rankers[mode] = self._opened(mode)
            return self._rankers[mode]

    def _opened(self, mode: Mode) -> Ranker:
        missing = [name for name in _NEEDS[mode] if name not in self.manifest.engines]
        if missing:
            raise DataError(
                f"index {self._folder} has no {' and no '.join(missing)} engine, which the mode {mode} needs",
                remedy=f"search with another mode (--search.mode {self.manifest.engines[0]}), or rebuild: "
                f"`mia index build CORPUS --out {self._folder} --engines {','.join(_NEEDS[mode])} --force`",
                code="no_engine",
            )
        rankers: list[Ranker] = []
        for name in _NEEDS[mode]:
            if name == "bm25":
                rankers.append(Bm25(self._folder / name))
            elif name == "lucene":
                rankers.append(Lucene(self._folder / name))
            else:
                self._encoder = self._encoder or encoder_of(self.manifest.encoder, self.manifest.dim)
                rankers.append(Dense(self._folder / name, self._encoder))
        ranker = rankers[0] if len(rankers) == 1 else Hybrid(rankers)
        return Reranked(ranker, self._reranking, self._text) if self._reranking else ranker

    def _text(self, row: int) -> str:
        return searched_text(self._passages.row(row).passage())
