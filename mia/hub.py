"""The Hugging Face hub: what a repository holds, brought here whole and checked; every failure is an error of ours.

`look` lists a folder of a repository at one commit, `bring` fetches files of that listing (a broken fetch goes on
where it stopped) and compares each with the hub's checksum. `HF_ENDPOINT` names another hub, `HF_TOKEN` who asks; both
are read at each call. Left out: what the files mean (`mia.checkpoints`), and publishing (`executor_train.publish`).
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Literal

from mia.errors import ConfigError, DataError, ModelError
from mia.extras import need

if TYPE_CHECKING:
    from huggingface_hub import HfApi

ENDPOINT = "https://huggingface.co"
_NAMES = "write owner/name or owner/name/folder, for a dataset datasets/owner/name; see `mia model fetch --help`"
Kind = Literal["model", "dataset"]


@dataclass(frozen=True)
class Source:
    """A folder of a repository: `owner/name`, and the path in it (empty: all of it)."""

    repo: str
    kind: Kind = "model"
    folder: str = ""
    revision: str = "main"

    def __str__(self) -> str:
        prefix = "datasets/" if self.kind == "dataset" else ""
        return prefix + "/".join(filter(None, (self.repo, self.folder)))


@dataclass(frozen=True)
class File:
    """A file as the hub has it: size in bytes, and its SHA-256; of small ones git's SHA-1 only."""

    size: int
    sha256: str
    git_sha1: str


@dataclass(frozen=True)
class Listing:
    """The files of a source at one commit, by their paths in the repository."""

    source: Source
    commit: str
    files: dict[str, File]

    def matching(self, patterns: Sequence[str]) -> dict[str, File]:
        """The files that match one of the patterns (`fnmatch`), directly in the source's folder."""
        names = {path: self._within(path) for path in self.files}
        return {
            path: self.files[path]
            for path, name in names.items()
            if "/" not in name and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        }

    def folders(self) -> list[str]:
        """The folders right in the source's folder."""
        return sorted({self._within(path).split("/")[0] for path in self.files if "/" in self._within(path)})

    def _within(self, path: str) -> str:
        return path[len(self.source.folder) + 1 :] if self.source.folder else path


def endpoint() -> str:
    """Address of the hub."""
    return (os.environ.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")


def open_api() -> HfApi:
    """The hub's client.

    Raises:
        ConfigError: its package is not installed.
    """
    need("huggingface_hub", "embedded")
    from huggingface_hub import HfApi

    return HfApi(endpoint=endpoint())


def parse_source(name: str, revision: str = "main") -> Source:
    """`owner/name`, `owner/name/folder…`, each also after `datasets/`.

    Raises:
        ConfigError: it is none of these.
    """
    kind: Kind = "dataset" if name.startswith("datasets/") else "model"
    owner, _, rest = name.removeprefix("datasets/").partition("/")
    repo, _, folder = rest.partition("/")
    folder = folder.strip("/")
    if not owner or not repo or (folder and not _safe(folder)):
        raise ConfigError(f"{name!r} is no name on the Hugging Face hub", remedy=_NAMES)
    return Source(f"{owner}/{repo}", kind, folder, revision)


def look(source: Source) -> Listing:
    """What a source holds, at the commit that its revision names now.

    Raises:
        ModelError: there is no such repository, revision or folder, it may not be read, or the hub does not answer.
        DataError: a file's name would leave the folder it is fetched to (`unsafe_name`); nothing was fetched.
    """
    from huggingface_hub.hf_api import RepoFile

    api = open_api()
    with explained(source):
        info = api.repo_info(source.repo, repo_type=source.kind, revision=source.revision)
        commit = str(info.sha)
        tree = api.list_repo_tree(
            source.repo, source.folder or None, recursive=True, revision=commit, repo_type=source.kind
        )
        files = {
            entry.path: File(entry.size, entry.lfs.sha256 if entry.lfs else "", entry.blob_id)
            for entry in tree
            if isinstance(entry, RepoFile)
        }
    unsafe = [path for path in files if not _safe(path)]
    if unsafe:
        raise DataError(
            f"{source} has a file named {unsafe[0]!r}, which would be written outside of its folder",
            remedy="fetch nothing from that repository; tell its owner",
            code="unsafe_name",
        )
    return Listing(source, commit, files)


def bring(listing: Listing, folder: Path, wanted: Mapping[str, File], *, force: bool = False) -> Path:
    """Fetch files of a listing, and compare each with the hub's checksum.

    What is there already is not fetched again, what was broken off goes on; a file whose checksum is wrong is fetched
    once more.

    Args:
        listing: from `look`.
        folder: where the repository's files are kept, under their own paths.
        wanted: the files, a part of the listing's.
        force: fetch what is there, too.

    Returns:
        The folder that stands for the source's.

    Raises:
        ModelError: see `look`; the disk is too small (`no_space`); or the hub sends other files than it says
            (`bad_checksum`), which are removed.
    """
    _room(listing.source, folder, wanted)
    _download(listing, folder, wanted, force)
    wrong = _mismatches(folder, wanted)
    if wrong:
        print(f"mia: damaged, fetched again: {', '.join(sorted(wrong))}", file=sys.stderr)
        _remove(folder, wrong)
        _download(listing, folder, wanted, force=False)
        wrong = _mismatches(folder, wanted)
    if wrong:
        _remove(folder, wrong)
        name, why = min(wrong.items())
        raise ModelError(
            f"{listing.source}: {name} {why}, and so again when it was fetched once more",
            remedy="the hub (or a proxy on the way) sends another file: fetch later, or by another way (HF_ENDPOINT)",
            code="bad_checksum",
            retryable=True,
        )
    return folder / listing.source.folder


def _download(listing: Listing, folder: Path, wanted: Mapping[str, File], force: bool) -> None:
    from huggingface_hub import snapshot_download

    source = listing.source
    whole = len(wanted) == len(listing.files)
    patterns = [glob.escape(source.folder) + "/*"] if source.folder else None
    with explained(source):
        snapshot_download(
            source.repo,
            repo_type=source.kind,
            revision=listing.commit,
            local_dir=folder,
            allow_patterns=patterns if whole else [glob.escape(path) for path in wanted],
            endpoint=endpoint(),
            force_download=force,
        )


def _mismatches(folder: Path, wanted: Mapping[str, File]) -> dict[str, str]:
    """Files that are not as the hub has them, with what is wrong."""
    wrong = {}
    for path, file in wanted.items():
        expected, digest = (file.sha256, _sha256) if file.sha256 else (file.git_sha1, _git_sha1)
        actual = digest(folder / path)
        if actual != expected:
            wrong[path] = f"has the checksum {actual}, not {expected}"
    return wrong


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git_sha1(path: Path) -> str:
    """As git names the content of a file."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _remove(folder: Path, paths: Iterable[str]) -> None:
    for path in paths:
        (folder / path).unlink(missing_ok=True)


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
    needed = max(0, sum(file.size for file in wanted.values()) - held)
    if needed > free:
        raise ModelError(
            f"{source} needs {needed / 1e9:.1f} GB more, but {folder} has {free / 1e9:.1f} GB left",
            remedy="make room, or name a larger disk by --out or MIA_CACHE",
            code="no_space",
        )


def _safe(path: str) -> bool:
    """Whether a path of a repository stays in its folder on any system, and off the fetch's own records."""
    parts = path.split("/")
    windows = PureWindowsPath(path)
    return (
        not any(part in ("", ".", "..") for part in parts)
        and "\\" not in path
        and path.isprintable()
        and not windows.drive
        and not PurePosixPath(path).is_absolute()
        and parts[0] != ".cache"
    )


@contextmanager
def explained(source: Source) -> Iterator[None]:
    """Turn what the hub's client raises into errors that say what to do.

    Raises:
        ModelError: see above.
        ConfigError: the name of the repository cannot be one.
    """
    import httpx
    from huggingface_hub import errors

    hub = endpoint()
    try:
        yield
    except errors.HFValidationError as error:
        raise ConfigError(f"{source.repo!r} is no name on the Hugging Face hub: {error}", remedy=_NAMES) from error
    except errors.GatedRepoError as error:  # one kind of the next
        raise ModelError(
            f"{source} is gated: its owner must let you in",
            remedy=f"ask at {hub}/{source.repo}, then set HF_TOKEN to a token of yours",
            code="gated",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{hub} has no {source.kind} {source.repo}, or it is private",
            remedy="check the name; for a private one set HF_TOKEN to a token that may read it",
            code="no_repo",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(
            f"{source} has no revision {source.revision!r}",
            remedy="name a branch, tag or commit that it has",
            code="no_revision",
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise ModelError(
            f"{source.repo} has no {source.folder or 'such file'!r} at {source.revision!r}",
            remedy=f"see its folders at {hub}/{source.repo}",
            code="no_entry",
        ) from error
    except (
        httpx.TransportError, ConnectionError, errors.HfHubHTTPError, errors.LocalEntryNotFoundError,
        errors.FileMetadataError, RuntimeError, ValueError,
    ) as error:  # fmt: skip  # the last two: as its transfers of large files report what went wrong
        raise _failed(source, hub, error) from error
    except OSError as error:
        raise ModelError(
            f"{source} cannot be kept: {error}", remedy="make room, or a folder that can be written", code="no_folder"
        ) from error


def _failed(source: Source, hub: str, error: Exception) -> ModelError:
    """The error of a hub that refuses, fails, or cannot be reached."""
    import httpx
    from huggingface_hub import errors

    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403):
            return ModelError(
                f"{hub} refuses {source}: {error.server_message or f'status {status}'}",
                remedy="set HF_TOKEN to a token that may do this",
                code="no_permission",
            )
        return ModelError(
            f"{hub} failed for {source}: {error.server_message or error}",
            remedy="try again later: what was fetched is kept",
            code="hub_failed",
            retryable=status == 429 or status >= 500,
        )
    offline = isinstance(error, errors.OfflineModeIsEnabled)
    why = "HF_HUB_OFFLINE is set" if offline else str(error) or type(error).__name__
    if isinstance(error, httpx.TransportError | ConnectionError | errors.LocalEntryNotFoundError):
        return ModelError(
            f"{hub} cannot be reached: {why}",
            remedy="unset HF_HUB_OFFLINE" if offline else "connect and repeat the command; it goes on where it stopped",
            code="no_connection",
            retryable=True,
        )
    return ModelError(
        f"{hub} does not answer as it should for {source}: {why}",
        remedy="check HF_ENDPOINT and the proxy, then repeat the command; it goes on where it stopped",
        code="hub_failed",
        retryable=True,
    )
