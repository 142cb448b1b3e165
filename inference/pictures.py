"""Pictures that a user or a dataset gives, as data URLs. What they are is told by how their bytes begin, not by a name.

Left out: nothing is decoded or shrunk here; `mia.pictures.fitted` does that when a picture is sent.
"""

from __future__ import annotations

import re
from pathlib import Path

from mia.errors import DataError
from mia.pictures import MAX_BYTES, from_data_url, is_data_url, to_data_url

IMAGE_TYPES = {
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "image/gif": re.compile(rb"GIF8[79]a"),
}
"""Picture formats and how their files begin."""


def read_bytes(path: Path) -> bytes:
    """The bytes of a picture file.

    Raises:
        DataError: it cannot be read, or is larger than `mia.pictures.MAX_BYTES` (code `bad_picture`).
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", remedy="check the path", code="bad_picture") from error
    if len(data) > MAX_BYTES:
        raise DataError(f"{path} is larger than {MAX_BYTES} bytes", remedy="shrink the picture", code="bad_picture")
    return data


def read_image(path: Path) -> str:
    """A picture file as a data URL.

    Raises:
        DataError: as for `read_bytes`, or it is no JPEG, PNG, WebP or GIF (code `bad_picture`).
    """
    return image_url(read_bytes(path), str(path))


def image_url(value: bytes | str, name: str) -> str:
    """A picture in any of the forms that datasets hold, as a URL that a model can be sent.

    Args:
        value: the bytes of a picture file, their base64, a data URL, or an http(s) address (kept as it is).
        name: what to call it in an error.

    Raises:
        DataError: it is no JPEG, PNG, WebP or GIF, too large, or its base64 is broken (code `bad_picture`).
    """
    if isinstance(value, str):
        if value.startswith(("http://", "https://")):
            return value
        url = "".join(value.split())
        try:
            value = from_data_url(url if is_data_url(url) else f"data:image/any;base64,{url}")
        except DataError as error:
            raise DataError(f"{name}: {error.message}", remedy=error.remedy, code=error.code) from error
    kind = next((kind for kind, pattern in IMAGE_TYPES.items() if pattern.match(value)), None)
    if kind is None:
        raise DataError(f"{name} is not a JPEG, PNG, WebP or GIF", remedy="convert the picture", code="bad_picture")
    return to_data_url(value, kind)
