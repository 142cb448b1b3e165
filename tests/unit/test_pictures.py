"""Pictures: what is read, what is refused, and how they are made to fit an endpoint."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from mia.errors import DataError
from mia.pictures import MAX_BYTES, decoded, fitted, from_data_url, to_data_url

RED, BLUE = (255, 0, 0), (0, 0, 255)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(width: int, height: int) -> Image.Image:
    """Hard to compress, so that sizes in bytes matter."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def opened(url: str) -> Image.Image:
    head, _, body = url.partition(",")
    image = Image.open(io.BytesIO(base64.b64decode(body)))
    assert head == f"data:image/{(image.format or '').lower()};base64"
    return image


def near(colour: object, wanted: tuple[int, int, int]) -> bool:
    assert isinstance(colour, tuple)
    return all(abs(one - other) < 12 for one, other in zip(colour, wanted, strict=True))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_what_fits_keeps_its_bytes(kind: str) -> None:
    data = encoded(noise(60, 40), kind)
    url = to_data_url(data, f"image/{kind.lower()}")
    assert fitted(url, 60, 100_000) == url
    assert opened(fitted(url, 59, 100_000)).size == (59, 39)


@pytest.mark.parametrize("head", ["image/jpg", "image/png", "image/x-anything"])
def test_the_media_type_is_that_of_the_bytes(head: str) -> None:
    data = encoded(noise(20, 20), "JPEG")
    assert fitted(to_data_url(data, head), 100, 100_000) == to_data_url(data, "image/jpeg")


def test_urls_pass() -> None:
    assert fitted("https://example.org/a.png", 10, 10_000) == "https://example.org/a.png"


@pytest.mark.parametrize(("kind", "becomes"), [("PNG", "PNG"), ("GIF", "PNG"), ("BMP", "PNG"), ("JPEG", "JPEG")])
def test_large_sides_are_scaled_down(kind: str, becomes: str) -> None:
    made = opened(fitted(to_data_url(encoded(Image.new("RGB", (400, 1000), RED), kind), "image/x"), 250, 100_000))
    assert (made.size, made.format) == ((100, 250), becomes)
    assert near(made.convert("RGB").getpixel((50, 100)), RED)


@pytest.mark.parametrize("limit", [300_000, 40_000, 10_000])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_many_bytes_are_cut_down(kind: str, limit: int) -> None:
    url = to_data_url(encoded(noise(500, 300), kind), "image/png")
    assert len(url) > 300_000 or kind == "JPEG"
    made = fitted(url, 500, limit)
    assert len(made) <= limit
    image = opened(made)
    assert image.width / image.height == pytest.approx(5 / 3, abs=0.05)


def test_pictures_are_sent_as_people_see_them() -> None:
    sideways = Image.new("RGB", (80, 40), RED)
    sideways.paste(BLUE, (0, 0, 20, 40))  # left
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to view
    exif[0x010E] = "secret place"
    turned = opened(fitted(to_data_url(encoded(sideways, "JPEG", exif=exif), "image/jpeg"), 100, 100_000))
    assert turned.size == (40, 80)
    assert near(turned.getpixel((20, 5)), BLUE)  # what was left is on top
    assert not turned.getexif()

    clear = Image.new("RGBA", (200, 10), (0, 0, 0, 0))
    assert near(
        opened(fitted(to_data_url(encoded(clear, "PNG"), "image/png"), 100, 100_000)).getpixel((5, 2)), (255,) * 3
    )

    moving = encoded(
        Image.new("RGB", (9, 9), RED), "WEBP", save_all=True, append_images=[Image.new("RGB", (9, 9), BLUE)]
    )
    first = opened(fitted(to_data_url(moving, "image/webp"), 100, 100_000))
    assert first.format == "PNG"
    assert near(first.getpixel((4, 4)), RED)


def test_pictures_that_are_refused() -> None:
    small = encoded(noise(60, 60), "PNG")
    many = encoded(Image.new("1", (8000, 7000)), "PNG")
    vast = encoded(Image.new("1", (20000, 20000)), "PNG")
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    jpeg = encoded(noise(60, 60), "JPEG")
    for data in (many, vast, svg, b"", small[:60], small[: len(small) // 2], jpeg[: len(jpeg) // 2], b"GIF89a"):
        for read in (
            lambda data=data: decoded(data),
            lambda data=data: fitted(to_data_url(data, "image/png"), 9, 10_000),
        ):
            with pytest.raises(DataError) as caught:
                read()
            assert caught.value.code == "bad_picture"
            assert caught.value.remedy


def test_data_urls_that_are_refused() -> None:
    for url in ("data:,", "data:text/html;base64,AAAA", "data:image/png,AAAA", "data:image/png;base64,A", "AAAA"):
        with pytest.raises(DataError) as caught:
            from_data_url(url)
        assert caught.value.code == "bad_picture"
    with pytest.raises(DataError, match="larger than"):
        from_data_url(to_data_url(b"x" * (MAX_BYTES + 1), "image/png"))
    assert from_data_url(to_data_url(b"abc", "image/png")) == b"abc"
