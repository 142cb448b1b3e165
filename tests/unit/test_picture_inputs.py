"""Pictures that users and datasets give become data URLs by what their bytes say."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from inference.pictures import image_url, read_image
from mia.errors import DataError
from mia.pictures import MAX_BYTES

PNG = b"\x89PNG\r\n\x1a\n"
PNG_URL = "data:image/png;base64,iVBORw0KGgo="


def test_files_become_data_urls(tmp_path: Path) -> None:
    picture = tmp_path / "dot.png"
    picture.write_bytes(PNG)
    assert read_image(picture) == PNG_URL
    picture.write_bytes(b"RIFF\n\x00\x00\x00WEBPVP8 ")
    assert read_image(picture).startswith("data:image/webp;")
    picture.write_text("a text with the name of a picture")
    with pytest.raises(DataError, match="is not a JPEG"):
        read_image(picture)
    with pytest.raises(DataError, match="cannot read"):
        read_image(tmp_path / "none.png")


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    picture = tmp_path / "large.png"
    with picture.open("wb") as file:
        file.write(PNG)
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(DataError, match=f"large.png is larger than {MAX_BYTES} bytes"):
        read_image(picture)


@pytest.mark.parametrize(
    "value",
    [
        PNG,
        "iVBORw0KGgo=",
        "iVBORw0K\nGgo=\n",
        PNG_URL,
        "data:image/jpeg;base64,iVBORw0KGgo=",  # a media type that is not true
    ],
)
def test_every_form_a_dataset_holds_becomes_the_same_url(value: bytes | str) -> None:
    assert image_url(value, "picture 1") == PNG_URL


def test_addresses_stay() -> None:
    assert image_url("https://example.org/a.png", "picture 1") == "https://example.org/a.png"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("iVBORw0KGgo", "picture 1: .*base64 is broken"),
        ("not base64!", "picture 1: .*base64 is broken"),
        ("data:image/png,raw", "picture 1: .*no base64 data URL"),
        ("", "picture 1 is not a JPEG"),
        (b"", "picture 1 is not a JPEG"),
        (base64.b64encode(b"%PDF-1.7").decode(), "picture 1 is not a JPEG"),
    ],
)
def test_what_is_no_picture_is_refused_by_name(value: bytes | str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        image_url(value, "picture 1")
