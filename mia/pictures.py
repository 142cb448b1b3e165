"""Pictures as bytes and as data URLs: read with bounds, seen as people see them, made to fit an endpoint's limits."""

from __future__ import annotations

import base64
import binascii
import io
import re
import struct
from typing import TYPE_CHECKING

from mia.errors import DataError
from mia.types import Question

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_BYTES = 32 * 1024 * 1024
MAX_PIXELS = 50_000_000
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_SENT = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}
"""Formats that every endpoint takes, and their media types."""
_FAULTS = (OSError, ValueError, SyntaxError, TypeError, IndexError, EOFError, struct.error)
"""What Pillow raises on broken files."""
_DATA_URL = re.compile(r"data:image/[a-z0-9.+\-]+;base64,", re.IGNORECASE)
_ORIENTATION = 0x0112


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
    if len(data) > MAX_BYTES:
        raise _bad(f"larger than {MAX_BYTES} bytes")
    return data


def to_data_url(data: bytes, media_type: str) -> str:
    """Bytes as a base64 data URL."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def decoded(data: bytes) -> Image:
    """An RGB picture: the first frame, turned as its EXIF data says, on white where it is transparent.

    Raises:
        DataError: the bytes are no picture of a common format, damaged, or of too many pixels (code `bad_picture`).
    """
    return _read(data)[0]


def fitted(url: str, side: int, size: int) -> str:
    """A picture as an endpoint takes it: JPEG, PNG or WebP within its limits, or an http(s) URL as it is.

    A picture that fits already keeps its bytes. Others are scaled down and encoded anew: without loss where the source
    was and the limits allow it, else as JPEG. Nothing of their metadata is kept.

    Args:
        url: data URL or http(s) URL.
        side: longest side, in pixels.
        size: length of the data URL, in characters (10,000 or more).

    Raises:
        DataError: the data URL holds no usable picture (code `bad_picture`).
    """
    if not is_data_url(url):
        return url
    data = from_data_url(url)
    picture, kind, plain = _read(data)
    media_type = _SENT.get(kind)
    if plain and media_type and max(picture.size) <= side:
        same = f"data:{media_type};base64,{url.partition(',')[2]}"
        if len(same) <= size:
            return same
    picture.thumbnail((side, side))
    encodings = [("JPEG", 90), ("JPEG", 70)]
    while True:
        for form, quality in encodings if kind == "JPEG" else [("PNG", 0), *encodings]:
            file = io.BytesIO()
            picture.save(file, form, **({"quality": quality} if quality else {}))
            made = to_data_url(file.getvalue(), _SENT[form])
            if len(made) <= size:
                return made
        picture = picture.resize((max(1, picture.width * 3 // 4), max(1, picture.height * 3 // 4)))


def check_pictures(question: Question) -> None:
    """Look whether the pictures of a question can be read; addresses are not visited.

    Raises:
        DataError: one cannot; the message names question and picture, counted from 1 (code `bad_picture`).
    """
    for number, url in enumerate(question.images, 1):
        try:
            if is_data_url(url):
                decoded(from_data_url(url))
            elif not url.startswith(("http://", "https://")):
                raise _bad("neither a data URL nor an http(s) address")
        except DataError as error:
            what = f"question {question.id!r}: picture {number}: {error.message}"
            raise DataError(what, remedy=error.remedy, code=error.code) from error


def _read(data: bytes) -> tuple[Image, str, bool]:
    """The picture as `decoded` gives it, its format, and whether a viewer would show just its first frame, unturned."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise _bad(f"more than {MAX_PIXELS} pixels")
            kind = picture.format or ""
            picture.load()
            turned = picture.getexif().get(_ORIENTATION, 1) != 1
            moving = getattr(picture, "n_frames", 1) > 1
            upright = ImageOps.exif_transpose(picture)
        if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
            layer = upright.convert("RGBA")
            white = Image.new("RGBA", layer.size, "white")
            return Image.alpha_composite(white, layer).convert("RGB"), kind, not (turned or moving)
        return upright.convert("RGB"), kind, not (turned or moving)
    except (*_FAULTS, Image.DecompressionBombError) as error:
        raise _bad(str(error) or type(error).__name__) from error


def _bad(what: str) -> DataError:
    return DataError(f"not a usable picture: {what}", remedy="give a JPEG, PNG, WebP, GIF or BMP", code="bad_picture")
