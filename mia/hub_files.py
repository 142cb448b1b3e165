"""Files of the Hugging Face hub, fetched so that a broken fetch goes on where it stopped, and compared by checksum.

The hub's own client begins a file anew after a break (huggingface_hub 1.33; see its pull request 4228), which is no way
to fetch an index of 60 GB; so files are read here, with ranges, several at once. What has come of a file lies beside it
as `.NAME.CHECKSUM.part`; a file has its own name only once its checksum is right.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from mia.errors import ModelError
from mia.hub import File, Listing, Source, endpoint, explained

if TYPE_CHECKING:
    import httpx
    from rich.progress import Progress, TaskID

CHUNK = 1 << 20
"""Bytes that are written at once; what came before lies on the disk when a fetch is killed."""
AT_ONCE = 8
"""Files that are fetched at the same time."""
TRIES = 5
"""Attempts at a file whose transfer breaks; each goes on where the last one stopped."""


def bring(listing: Listing, folder: Path, wanted: Mapping[str, File], *, force: bool = False) -> Path:
    """Fetch files of a listing. What is there already is only checked; what is damaged is fetched once more.

    Args:
        listing: from `mia.hub.look`.
        folder: where the repository's files are kept, under their own paths.
        wanted: the files, a part of the listing's.
        force: fetch what is there, too.

    Returns:
        The folder that stands for the source's.

    Raises:
        ModelError: see `mia.hub.look`; the disk is too small (`no_space`); the hub sends another file than it says,
            twice (`bad_checksum`); or another process fetches to the same folder (`busy`).
    """
    import httpx
    from huggingface_hub import get_token

    token = get_token()
    headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {token}"} if token else {})}
    _room(listing.source, folder, wanted)
    with (
        explained(listing.source),
        _alone(folder),
        _bar() as progress,
        httpx.Client(headers=headers, follow_redirects=True, timeout=30) as client,
    ):
        task = progress.add_task(str(listing.source), total=sum(file.size for file in wanted.values()))
        fetch = _Fetch(listing, folder, client, threading.Event(), progress, task)
        _all(fetch, wanted, force)
    return folder / listing.source.folder


@dataclass(frozen=True)
class _Fetch:
    """One fetch of many files; `stop` is set when one of them failed."""

    listing: Listing
    folder: Path
    client: httpx.Client
    stop: threading.Event
    progress: Progress
    task: TaskID

    def file(self, path: str, file: File, force: bool) -> None:
        """Bring one file, whatever of it is there."""
        target = self.folder / path
        part = target.with_name(f".{target.name}.{(file.sha256 or file.git_sha1)[:16]}.part")
        if target.is_file() and not force:
            if checksum(target, file) == (file.sha256 or file.git_sha1):
                self.progress.advance(self.task, file.size)
                return
            print(f"mia: {path} is damaged and fetched again", file=sys.stderr)
            target.unlink()
        target.parent.mkdir(parents=True, exist_ok=True)
        for last in (False, True):
            self._stream(path, part, file.size)
            if self.stop.is_set():
                return
            actual = checksum(part, file)
            if actual == (file.sha256 or file.git_sha1):
                part.replace(target)
                return
            part.unlink()
            if last:
                raise ModelError(
                    f"{self.listing.source}: {path} came with the checksum {actual}, twice; the hub says "
                    f"{file.sha256 or file.git_sha1}",
                    remedy="fetch later, or by another way (HF_ENDPOINT): what is sent is not what the hub has",
                    code="bad_checksum",
                    retryable=True,
                )
            print(f"mia: {path} came damaged and is fetched again", file=sys.stderr)
            self.progress.advance(self.task, -file.size)

    def _stream(self, path: str, part: Path, size: int) -> None:
        """Bring what is missing of a file; several attempts where the line breaks or the hub is busy."""
        import httpx
        from huggingface_hub.errors import HfHubHTTPError
        from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

        def passing(error: BaseException) -> bool:
            status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
            return not self.stop.is_set() and (
                isinstance(error, httpx.TransportError) or status == 429 or status >= 500
            )

        part.touch()
        self.progress.advance(self.task, part.stat().st_size)
        for attempt in Retrying(
            stop=stop_after_attempt(TRIES), wait=wait_exponential(0.5, max=20), retry=retry_if_exception(passing),
            sleep=self._pause, reraise=True,
        ):  # fmt: skip
            with attempt:
                self._rest(path, part, size)

    def _pause(self, seconds: float) -> None:
        self.stop.wait(seconds)

    def _rest(self, path: str, part: Path, size: int) -> None:
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]  # exported lazily

        have = part.stat().st_size
        if have >= size:
            return
        source = self.listing.source
        prefix = "datasets/" if source.kind == "dataset" else ""
        url = f"{endpoint()}/{prefix}{source.repo}/resolve/{self.listing.commit}/{quote(path)}"
        # A range even from the start: the hub refuses to send more than 50 GB unasked.
        with self.client.stream("GET", url, headers={"Range": f"bytes={have}-"}) as response:
            if response.is_error:
                response.read()
            hf_raise_for_status(response)
            if response.status_code != 206:  # all of it, from the start
                self.progress.advance(self.task, -have)
                have = 0
            with part.open("r+b", buffering=0) as out:
                out.seek(have)
                out.truncate()
                for chunk in response.iter_bytes(CHUNK):
                    if self.stop.is_set():
                        return
                    out.write(chunk)
                    self.progress.advance(self.task, len(chunk))


def _all(fetch: _Fetch, wanted: Mapping[str, File], force: bool) -> None:
    """All files, several at once; the first error ends the others where they are."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = [pool.submit(fetch.file, path, file, force) for path, file in wanted.items()]
        try:
            done, _ = wait(made, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        finally:
            fetch.stop.set()
            pool.shutdown(cancel_futures=True)


def checksum(path: Path, file: File) -> str:
    """The checksum of a file on the disk, of the kind that the hub has of it."""
    if not file.sha256:
        data = path.read_bytes()  # only small files have none
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _room(source: Source, folder: Path, wanted: Mapping[str, File]) -> None:
    """Refuse a fetch that the disk cannot hold, before it begins."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ModelError(
            f"{source} cannot be kept in {folder}: {error.strerror}",
            remedy="give a folder that can be written, by --out or MIA_CACHE",
            code="no_folder",
        ) from error
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    needed = sum(file.size for file in wanted.values()) - held
    if needed > free:
        raise ModelError(
            f"{source} needs {needed / 1e9:.1f} GB more, but {folder} has {free / 1e9:.1f} GB left",
            remedy="make room, or name a larger disk by --out or MIA_CACHE",
            code="no_space",
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from fetching to the folder.

    Raises:
        ModelError: one does.
    """
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ModelError(
                f"another process fetches to {folder}", remedy="wait for it, or give another --out", code="busy"
            ) from error
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _bar() -> Iterator[Progress]:
    """A bar in bytes on stderr; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        yield progress
