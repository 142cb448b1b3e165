"""Pictures of search results, made small and plain before they are passed on."""

from __future__ import annotations

import io

from mia.pictures import decoded, to_data_url

_SIDE = 512
"""Longest side of a picture that is passed on."""


def small(data: bytes) -> str:
    """A picture as a JPEG data URL whose longest side is at most 512 pixels. Nothing of the source file is kept.

    Raises:
        DataError: as `mia.pictures.decoded`.
    """
    picture = decoded(data)
    picture.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=90)
    return to_data_url(file.getvalue(), "image/jpeg")
