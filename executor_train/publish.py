"""Publishing on the Hugging Face hub: which files of a folder go there, and the one commit that takes them.

Left out: what the card says (`executor_train.card`). Pickles, optimizer states and hidden files stay here.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from mia import hub
from mia.checkpoints import ADAPTER, FILES, Checkpoint
from mia.errors import ConfigError, ModelError

CARD = "README.md"


@dataclass(frozen=True)
class Parcel:
    """What is published: names in the repository to files or contents; `left_out`: what lies there besides."""

    contents: Mapping[str, Path | bytes]
    left_out: tuple[str, ...]

    def size(self, name: str) -> int:
        """Bytes of one of the contents."""
        content = self.contents[name]
        return len(content) if isinstance(content, bytes) else content.stat().st_size


def pack(checkpoint: Checkpoint, base: str, card: str, dtype: str = "") -> Parcel:
    """What of a checkpoint's folder is published, with its card.

    An adapter names its base by its name on the hub: the folder where it was trained means nothing elsewhere.

    Args:
        checkpoint: the folder.
        base: name of its base model on the hub.
        card: text of the model card.
        dtype: torch's name of the type that weights are rounded to; empty: they stay as they are.
    """
    folder = checkpoint.folder
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    taken = [name for name in names if "/" not in name and any(fnmatchcase(name, pattern) for pattern in FILES)]
    contents: dict[str, Path | bytes] = {name: folder / name for name in taken if not name.startswith(".")}
    contents[CARD] = card.encode()
    if checkpoint.adapter:
        config = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))
        contents[ADAPTER] = json.dumps({**config, "base_model_name_or_path": base}, indent=2).encode()
    if dtype:
        weights = {name: each for name, each in contents.items() if name.endswith(".safetensors")}
        contents |= {name: _rounded(each, dtype) for name, each in weights.items() if isinstance(each, Path)}
    return Parcel(dict(sorted(contents.items())), tuple(name for name in names if name not in contents))


def _rounded(weights: Path, dtype: str) -> bytes:
    import torch
    from safetensors.torch import load_file, save

    rounded = {name: each.to(getattr(torch, dtype)) for name, each in load_file(weights).items()}
    return bytes(save(rounded, {"format": "pt"}))


def write(parcel: Parcel, folder: Path) -> None:
    """Write what would be published into a new folder: whole, or not at all.

    Raises:
        ConfigError: the folder is there already.
    """
    if folder.exists():
        raise ConfigError(f"{folder} is there already", remedy="name another folder, or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        for name, content in parcel.contents.items():
            (made / name).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
        made.rename(folder)


def push(repo: str, parcel: Parcel, *, private: bool, revision: str, message: str) -> str:
    """Publish in one commit; the repository and the branch are made if there are none.

    Args:
        repo: `owner/name`.
        parcel: from `pack`.
        private: make the repository private; one that is public already is refused.
        revision: branch.
        message: of the commit.

    Returns:
        The address of the commit.

    Raises:
        ConfigError: no token, or the repository is public and should be private.
        ModelError: the hub refuses, fails, or cannot be reached.
    """
    source = hub.parse_source(repo, revision)
    if source.folder or source.kind != "model":
        raise ConfigError(f"{repo!r} is no repository of a model", remedy="write owner/name")
    api = hub.open_api()
    from huggingface_hub import CommitOperationAdd, get_token

    if not get_token():
        raise ConfigError(
            "no token for the hub",
            remedy="set HF_TOKEN to a token that may write, or run `hf auth login`",
            code="no_token",
        )
    with hub.explained(source):
        api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.repo_info(repo).private:
            raise ConfigError(f"{repo} is public already", remedy="leave out --private, or make it private at the hub")
        if revision != "main":
            api.create_branch(repo, branch=revision, exist_ok=True)
        operations = [
            CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
            for name, content in parcel.contents.items()
        ]
        made = api.create_commit(repo, operations, commit_message=message, revision=revision)
    if not made.oid:
        raise ModelError(
            f"{hub.endpoint()} names no commit for {repo}", remedy="look at the repository", code="hub_failed"
        )
    return f"{hub.endpoint()}/{repo}/tree/{made.oid}"
