"""An index of pictures of your own: the same picture by perceptual hash, related ones by BM25 over their captions.

`<folder>/pictures.jsonl` has one object a line: `file` (path inside the folder), `title`, and if you like `caption`,
`url` (the page), `image_url`, `date`. Everything is held in memory: right for thousands of pictures, not for millions.
The hash is `imagehash.phash` (64 bits of a discrete cosine transform), which scaling and re-encoding hardly change; a
picture whose hash differs in at most 10 bits is taken for the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from mia.errors import DataError
from mia.extras import need
from mia.pictures import decoded, from_data_url, is_data_url
from mia.types import Failure, Record, Text
from web_tools.pictures import small
from web_tools.ranking import Bm25, Ranking, fuse
from web_tools.records import ImageHit, ImageQuery

SAME_BITS = 10
_ROWS = "pictures.jsonl"


class PictureRow(Record):
    """A line of `pictures.jsonl`."""

    file: str
    title: Text = Field(min_length=1)
    caption: Text = ""
    url: str = ""
    image_url: str = ""
    date: Text | None = None


class PictureIndex:
    """An `ImageFinder` over pictures of your own. Make one with `open`."""

    by_words = True

    def __init__(self, folder: Path, rows: Sequence[PictureRow], hashes: NDArray[np.bool_]) -> None:
        self._folder = folder
        self._rows = rows
        self._hashes = hashes
        self._captions = Bm25([f"{row.title}\n{row.caption}" for row in rows])

    @classmethod
    def open(cls, folder: Path) -> PictureIndex:
        """Read the rows and hash every picture (some 5 ms each).

        Raises:
            DataError: a file is missing, a row or a picture cannot be used; the message names it.
        """
        root = folder.resolve()
        rows = _read_rows(root / _ROWS)
        hashes = np.zeros((len(rows), 64), dtype=np.bool_)
        for number, row in enumerate(rows):
            file = (root / row.file).resolve()
            if not file.is_relative_to(root) or not file.is_file():
                raise DataError(f"{folder / _ROWS}: row {number + 1}: no picture {row.file!r} in the folder")
            try:
                hashes[number] = _hash(file.read_bytes())
            except DataError as error:
                raise DataError(f"{file}: {error.message}", remedy=error.remedy, code=error.code) from error
        return cls(root, rows, hashes)

    async def find(self, query: ImageQuery, k: int) -> list[ImageHit]:
        """See `ImageFinder.find`. By picture (a data URL), by words, or by picture and caption, with fused rankings.

        The score is 1 - bits that differ / 64 for pictures, the BM25 weight for words, the fusion sum for both.

        Raises:
            DataError: the query has neither a picture nor words (`no_picture`), or a picture that cannot be read.
        """
        return await asyncio.to_thread(self._find, query, k)

    async def aclose(self) -> None:
        """Nothing to free."""

    def _find(self, query: ImageQuery, k: int) -> list[ImageHit]:
        rankings: list[Ranking] = []
        if query.image:
            if not is_data_url(query.image):
                raise DataError("an index of pictures is searched by data URL", code="no_picture")
            rankings.append(self._alike(_hash(from_data_url(query.image))))
        words = query.query or query.caption
        if words.strip():
            rankings.append(self._captions.top(words, len(self._rows)))
        if not rankings:
            raise DataError("no picture to look for", remedy="give image, caption or both", code="no_picture")
        ranking = rankings[0] if len(rankings) == 1 else fuse(rankings)
        return [self._hit(rank, row, score) for rank, (row, score) in enumerate(ranking[:k], 1)]

    def _alike(self, wanted: NDArray[np.bool_]) -> Ranking:
        bits = np.count_nonzero(self._hashes != wanted, axis=1)
        order = np.argsort(bits, kind="stable")
        return [(int(row), 1.0 - int(bits[row]) / 64) for row in order if bits[row] <= SAME_BITS]

    def _hit(self, rank: int, number: int, score: float) -> ImageHit:
        row = self._rows[number]
        image, failure = None, None
        try:
            image = small((self._folder / row.file).read_bytes())
        except (DataError, OSError) as error:
            failure = Failure(boundary="tool", code="missing", message=f"{row.file}: {error}")
        return ImageHit(
            rank=rank,
            title=row.title,
            url=row.url,
            snippet=row.caption,
            date=row.date,
            image_url=row.image_url,
            score=score,
            image=image,
            failure=failure,
        )


def _hash(data: bytes) -> NDArray[np.bool_]:
    found: Any = need("imagehash", "web").phash(decoded(data))
    bits: NDArray[np.bool_] = found.hash.flatten()
    return bits


def _read_rows(file: Path) -> list[PictureRow]:
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(
            f"no picture index: {file}: {error.strerror}", remedy="correct web.images.path", code="no_picture_index"
        ) from error
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(PictureRow.model_validate(json.loads(line)))
            except (ValidationError, ValueError) as error:
                raise DataError(f"{file}: line {number}: {error}", remedy="mend the line") from error
    return rows
