"""The pictures of a dataset: from files in one folder, or held in the rows themselves. Every file read is hashed.

All pictures of a dataset are in memory as data URLs, a third larger than their files: count on 1.4 times the size of
the picture folder. A file that several questions show is held once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from inference.pictures import image_url, read_bytes
from mia.errors import DataError


class Images:
    """Reads pictures.

    Args:
        folder: where the files are; None: there are none.
        tried: where a folder was looked for, for the message when one is needed.
        base: what `digests` are relative to.
    """

    def __init__(self, folder: Path | None, tried: tuple[Path, ...] = (), base: Path | None = None) -> None:
        self._folder = folder
        self._tried = tried
        self._base = base
        self._urls: dict[Path, str] = {}
        self.digests: dict[str, str] = {}
        """SHA-256 of each file read, by its path."""

    def file(self, name: str, *others: str) -> str:
        """The picture of a file of the folder, or of the first of several names that is there.

        Raises:
            DataError: there is no such file, it lies outside the folder, or is no picture (`bad_picture`); there is
                no folder at all (`no_pictures`).
        """
        if self._folder is None:
            raise DataError(
                f"no folder of pictures; looked for {', '.join(map(str, self._tried)) or 'none'}",
                remedy="set images to the folder",
                code="no_pictures",
            )
        paths = [self._inside(each) for each in (name, *others)]
        path = next((path for path in paths if path.is_file()), paths[0])
        if path not in self._urls:
            data = read_bytes(path)
            self._urls[path] = image_url(data, str(path))
            self.digests[self._relative(path)] = hashlib.sha256(data).hexdigest()
        return self._urls[path]

    def inline(self, value: Any, name: str) -> str:
        """A picture that stands in a row: bytes, base64, data URL, address, or `{"bytes": …, "path": …}`.

        Raises:
            DataError: it is none (`bad_picture`).
        """
        if isinstance(value, Mapping):
            value = value.get("bytes") or value.get("url")
        if not isinstance(value, str | bytes):
            raise DataError(f"{name} is no picture", remedy="give its bytes, base64 or address", code="bad_picture")
        return image_url(value, name)

    def _inside(self, name: str) -> Path:
        """The path of a file by its name; a dataset must not be able to name any file of the machine."""
        assert self._folder is not None
        if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise DataError(f"{name} lies outside {self._folder}", remedy="mend the path", code="bad_picture")
        return self._folder / name

    def _relative(self, path: Path) -> str:
        if self._base is not None and path.is_relative_to(self._base):
            return path.relative_to(self._base).as_posix()
        assert self._folder is not None
        return f"images/{path.relative_to(self._folder).as_posix()}"
