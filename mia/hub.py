"""The Hugging Face hub: what a folder of a repository holds; every failure of the hub as an error that says what to do.

`HF_ENDPOINT` names another hub, `HF_TOKEN` who asks; both are read at each call. Left out: fetching what is there
(`mia.hub_files`), what the files mean (`mia.checkpoints`), and publishing (`executor_train.publish`).
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
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
        and not (parts[-1].startswith(".") and parts[-1].endswith((".part", ".lock")))
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
            remedy="repeat the command later: what was transferred is kept",
            code="hub_failed",
            retryable=status == 429 or status >= 500,
        )
    offline = isinstance(error, errors.OfflineModeIsEnabled)
    why = "HF_HUB_OFFLINE is set" if offline else str(error) or type(error).__name__
    if isinstance(error, httpx.TransportError | ConnectionError | errors.LocalEntryNotFoundError):
        return ModelError(
            f"{hub} cannot be reached: {why}",
            remedy="unset HF_HUB_OFFLINE"
            if offline
            else "connect, and repeat the command: what was transferred is kept",
            code="no_connection",
            retryable=True,
        )
    return ModelError(
        f"{hub} does not answer as it should for {source}: {why}",
        remedy="check HF_ENDPOINT and the proxy, then repeat the command: what was transferred is kept",
        code="hub_failed",
        retryable=True,
    )
