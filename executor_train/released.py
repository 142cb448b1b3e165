"""What the original has released on the Hugging Face hub, and the profile that uses what was fetched of it.

Names: model cards and README of the original (Qiao et al. 2026, arXiv 2604.04503; ECNU-SII/MIA), MIT.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from executor_train.config import GrpoConfig
from inference.config import RunConfig
from mia.checkpoints import TINY, Checkpoint, Trained
from mia.config import load
from mia.errors import ConfigError
from mia.hub import Listing, Source, parse_source

_REPO = "LightningCreeper/MIA"


@dataclass(frozen=True)
class Released:
    """Something on the hub, and what it is for. `use`: the section of the profile that names it."""

    source: Source
    what: str
    role: Trained | None = None
    use: str = ""


RELEASED = {
    "mia-executor": Released(Source(_REPO, "model", "Trained-Executor"), "the trained Executor", "executor"),
    "mia-planner": Released(Source(_REPO, "model", "Trained-Planner"), "the trained Planner", "planner"),
    "mia-train": Released(Source(_REPO, "dataset", "Train"), "training rows", use="dataset"),
    "mia-test": Released(Source(_REPO, "dataset", "Test"), "test questions", use="dataset"),
    "mia-ttrl": Released(Source(_REPO, "dataset", "TTRL"), "rows of test-time learning", use="dataset"),
    "mia-images": Released(Source(_REPO, "dataset", "image_search_cache"), "image searches, kept", use="images"),
    "wiki25": Released(Source("XLDDD/wiki25", "dataset"), "Wikipedia of 2025, and its index"),
}
"""The original's releases by our names."""


@dataclass(frozen=True)
class Fetched:
    """Something that was fetched."""

    name: str
    released: Released
    listing: Listing
    folder: Path
    checkpoint: Checkpoint | None = None


def named(name: str, role: Trained | None, revision: str) -> Released:
    """One of the releases, or another folder on the hub.

    Raises:
        ConfigError: there is no such name, or its role is another one.
    """
    known = RELEASED.get(name)
    if known is None and "/" not in name:
        close = difflib.get_close_matches(name, RELEASED, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(RELEASED)}; or owner/name"
        raise ConfigError(f"no release {name!r}", remedy=hint)
    if known is None:
        return Released(parse_source(name, revision), name, role)
    if role not in (None, known.role):
        raise ConfigError(f"{name} is {known.what}", remedy=f"leave out --role {role}")
    source = known.source
    return Released(Source(source.repo, source.kind, source.folder, revision), known.what, known.role, known.use)


def write_profile(path: Path, fetched: Sequence[Fetched], *, force: bool) -> None:
    """Write the profile that uses what was fetched, and read it as `mia ask` and `mia train` do.

    Raises:
        ConfigError: another profile is there, or it cannot be written.
    """
    text = profile(path, fetched)
    part = path.with_name(f".{path.name}.part")
    try:
        if path.exists() and not force and path.read_text(encoding="utf-8") != text:
            raise ConfigError(
                f"{path} is there already, and another one; what was fetched is in {fetched[0].folder}",
                remedy="name another file by --profile, or give --force to replace it",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        for kind in (RunConfig, GrpoConfig):
            load(kind, part)
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", remedy="name another by --profile") from error
    finally:
        part.unlink(missing_ok=True)


def profile(path: Path, fetched: Sequence[Fetched]) -> str:
    """The text of a profile. Roles that nothing was fetched for stay as they are by default: embedded."""
    models = [item for item in fetched if item.checkpoint]
    lines = [f"# Fetched: {', '.join(f'{item.released.source} at {item.listing.commit[:12]}' for item in fetched)}."]
    lines.append(f'# mia ask --config {path} "Who wrote Ulysses?"')
    if models:
        lines.append("# The checkpoints run in this process; served by vLLM, give its address as url instead.")
        if not {item.released.role for item in models} >= {"executor", "planner"} and models[0].released.role:
            lines.append("# Roles that have no model here play by the embedded one.")
    for item in models:
        lines += _model(item)
    if any(item.released.role != "planner" and not _tiny(item) for item in models):
        lines += ["", "[agent.executor]", "max_tokens = 2048", 'stop = ["<tool_response>"]']
    for item in fetched:
        lines += _data(item)
    return "\n".join(lines) + "\n"


def _model(item: Fetched) -> Iterable[str]:
    found = item.checkpoint
    assert found is not None
    place = _text(item.folder)
    tiny = _tiny(item)
    yield from ("", f"[models.{item.released.role or 'default'}]")
    if found.adapter:
        base = "embedded:" if tiny else f"local:{found.base.hub if found.base else found.base_name}"
        yield from (f"url = {_text(base)}", f"context = {4096 if tiny else 32768}")
        yield f"extra_body = {{ adapter = {place} }}"
    else:
        yield from (f"url = {_text(f'local:{item.folder}')}", f"context = {4096 if tiny else 32768}")
    if item.released.role is None:
        return
    recipe = f"train/{item.released.role}{'_tiny' if tiny else ''}"
    start = f"--policy.adapter {item.folder}" if found.adapter else f"--policy.path {item.folder}"
    yield f"# To train it further: mia train {item.released.role} {recipe} {start}"


def _data(item: Fetched) -> Iterable[str]:
    if item.released.use == "images":
        yield from ("", "[web.images]", 'kind = "cache"', f"path = {_text(item.folder)}")
    elif item.released.use == "dataset":
        files = data_files(item.folder)
        yield from ("", "[dataset]", 'name = "original"')
        if len(files) != 1:
            yield "# One of these: take the mark away."
        yield from (f"{'' if len(files) == 1 else '# '}path = {_text(file)}" for file in files)


def data_files(folder: Path) -> list[Path]:
    """The files of rows in a folder."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".parquet", ".jsonl", ".json"))


def _tiny(item: Fetched) -> bool:
    return item.checkpoint is not None and item.checkpoint.base == TINY


def _text(value: object) -> str:
    """A TOML string; JSON's escapes are a part of TOML's."""
    return json.dumps(str(value), ensure_ascii=False)
