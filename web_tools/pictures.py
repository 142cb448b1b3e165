"""Pictures as bytes and as data URLs: read with bounds, made small and plain before they are passed on."""

from __future__ import annotations

import base64
import binascii
import io
import re
import struct
from typing import Any

from mia.errors import DataError
from mia.extras import need
from web_tools.bounds import MAX_PICTURE_BYTES

MAX_PIXELS = 50_000_000
_SIDE = 512
"""Longest side of a picture that is passed on."""
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_FAULTS = (OSError, ValueError, SyntaxError, TypeError, IndexError, EOFError, struct.error)
"""What Pillow raises on broken files."""
_DATA_URL = re.compile(r"data:image/[a-z0-9.+\-]+;base64,", re.IGNORECASE)


def is_data_url(text: str) -> bool:
    """Whether a text is a picture in itself, not a place to get one from."""
    return text[:5].lower() == "data:"


def from_data_url(text: str) -> bytes:
    """The bytes of a data URL.

    Raises:
        DataError: it is no base64 data URL of a picture, or too large (code `bad_picture`).
    """
    head = _DATA_URL.match(text)
    if head is None:
        raise _bad("no base64 data URL of a picture")
    try:
        data = base64.b64decode(text[head.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad(f"its base64 is broken: {error}") from error
    if len(data) > MAX_PICTURE_BYTES:
        raise _bad(f"larger than {MAX_PICTURE_BYTES} bytes")
    return data


def decoded(data: bytes) -> Any:
    """An RGB picture (`PIL.Image.Image`) of bytes.

    Raises:
        DataError: the bytes are no picture of a common format, damaged, or of too many pixels (code `bad_picture`).
    """
    image_of = need("PIL.Image", "web")
    try:
        picture = image_of.open(io.BytesIO(data), formats=_FORMATS)
        if picture.width * picture.height > MAX_PIXELS:
            raise _bad(f"more than {MAX_PIXELS} pixels")
        return picture.convert("RGB")
    except (*_FAULTS, image_of.DecompressionBombError) as error:
        raise _bad(str(error) or type(error).__name__) from error


def small(data: bytes) -> str:
    """A picture as a JPEG data URL whose longest side is at most 512 pixels. Nothing of the source file is kept.

    Raises:
        DataError: as `decoded`.
    """
    picture = decoded(data)
    picture.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def _bad(what: str) -> DataError:
    return DataError(f"not a usable picture: {what}", remedy="give a JPEG, PNG, WebP, GIF or BMP", code="bad_picture")
