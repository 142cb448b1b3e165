"""The verbs `mia index build`, `mia index info` and `mia serve search`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import Field

from local_search.config import SearchConfig
from mia.cli import parse, parser
from mia.config import Config, load
from mia.errors import ConfigError
from mia.http import serve as serve_app

if TYPE_CHECKING:
    import argparse

    from fastapi import FastAPI

    from local_search.index import EngineName, Manifest


class ServiceConfig(Config):
    """Config of the search service."""

    search: SearchConfig = Field(default_factory=SearchConfig)


def build(argv: Sequence[str]) -> int:
    """`mia index build CORPUS --out DIR`."""
    given = _build_parser().parse_args(argv)
    engines = _engines(given.engines)

    from local_search.build import build_index
    from local_search.build_memory import parse_memory
    from local_search.cluster import Ray
    from local_search.progress import bar

    started = time.perf_counter()
    with bar() as step:
        manifest, built = build_index(
            given.corpus,
            given.out,
            engines,
            given.force,
            step=step,
            format=given.format,
            memory=parse_memory(given.memory),
            workers=given.workers,
            mapper=Ray() if given.engine == "ray" else None,
            kind=given.kind,
            tell=lambda message: print(message, file=sys.stderr),
        )
    if given.json:
        print(manifest.model_dump_json(indent=2))
    elif built:
        print(f"indexed {_summary(manifest)} into {given.out} in {time.perf_counter() - started:.1f} s")
    else:
        print(f"{given.out} is up to date: {_summary(manifest)}")
    return 0


def _build_parser() -> argparse.ArgumentParser:
    from local_search.corpus import FORMATS
    from local_search.dense_kinds import KINDS

    args = parser(
        "index build",
        "Index a corpus: JSONL (Search-R1), TSV (DPR), Parquet or a Wikipedia dump, as it is or as gz, zst or bz2.\n"
        "A build that was killed is continued by the same command.",
        [
            "mia index build corpus.jsonl --out my-index",
            "mia index build wiki.jsonl.gz --out wiki-index --engines bm25 --force",
            "mia index build enwiki-latest-pages-articles.xml.bz2 --out enwiki --engines bm25 --memory 8GB",
        ],
    )
    args.add_argument("corpus", type=Path, metavar="CORPUS", help="corpus file")
    args.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write the index to")
    args.add_argument("--engines", default="bm25,dense", help="engines to index for (default: bm25,dense)")
    args.add_argument("--format", choices=FORMATS, help="of the corpus (default: by the suffix, else jsonl)")
    args.add_argument("--memory", default="2GB", metavar="SIZE", help="what the build may use in all (default: 2GB)")
    cores = os.cpu_count() or 1
    args.add_argument(
        "--workers", type=int, default=cores, metavar="N", help=f"processes (default: {cores}, the cores)"
    )
    args.add_argument(
        "--engine",
        choices=("processes", "ray"),
        default="processes",
        help="where shards are made: processes of this machine, or a Ray cluster (default: processes)",
    )
    args.add_argument("--kind", choices=("auto", *KINDS), default="auto", help="of the dense index (default: auto)")
    args.add_argument("--force", action="store_true", help="replace another or a damaged index in DIR")
    args.add_argument("--json", action="store_true", help="print the manifest as JSON")
    return args


def info(argv: Sequence[str]) -> int:
    """`mia index info DIR`."""
    args = parser(
        "index info",
        "Describe an index, after checking the checksum of every file.",
        ["mia index info my-index", "mia index info my-index --json"],
    )
    args.add_argument("index", type=Path, metavar="DIR", help="index folder")
    args.add_argument("--json", action="store_true", help="print the manifest as JSON")
    given = args.parse_args(argv)

    from local_search.index import read_manifest

    manifest = read_manifest(given.index, full=True)
    print(manifest.model_dump_json(indent=2) if given.json else _details(given.index, manifest))
    return 0


def serve(argv: Sequence[str]) -> int:
    """`mia serve search --search.index DIR --port N`."""
    args = parser(
        "serve search",
        "Serve an index over HTTP: POST /v1/search, and POST /retrieve as Search-R1 has it.",
        [
            "mia serve search --search.index my-index --port 8001 --workers 4",
            "mia serve search --search.mode bm25 --search.k 5     (the bundled small corpus)",
        ],
    )
    args.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    args.add_argument("--port", type=int, default=8001, help="port to listen on; 0: any free one (default: 8001)")
    args.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes that share the port and the index (default: 1)"
    )
    args.add_argument("--config", type=Path, metavar="FILE", help="TOML file with a section [search]")
    given, flags = parse(args, argv)
    if not 0 <= given.port <= 65535:
        raise ConfigError(f"cannot listen on port {given.port}", remedy="give a --port from 0 to 65535")
    search = load(ServiceConfig, given.config, flags).search
    if search.url:
        raise ConfigError("search.url is set, but a service serves an index", remedy="set search.index instead of it")
    serve_app(given.host, given.port, partial(_open_app, search), given.workers)
    return 0


def _open_app(search: SearchConfig) -> tuple[FastAPI, str]:
    from local_search.app import create_app
    from local_search.open import open_engine
    from local_search.progress import bar

    with bar() as step:
        engine = open_engine(search, step)
    engine.warm()
    return create_app(engine, search.k), f"{_summary(engine.manifest)}, mode {engine.name.removeprefix('local/')},"


def _engines(text: str) -> list[EngineName]:
    from local_search.index import ENGINES

    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise ConfigError(f"--engines {text}: no engine {unknown[0]!r}", remedy=f"choose from {','.join(ENGINES)}")
    return cast("list[EngineName]", names)


def _summary(manifest: Manifest) -> str:
    return f"{manifest.passages} passages of {manifest.corpus} ({', '.join(manifest.engines)})"


def _details(folder: Path, manifest: Manifest) -> str:
    libraries = ", ".join(f"{name} {release}" for name, release in sorted(manifest.libraries.items()))
    skipped = f" ({_counts(manifest.skipped)} skipped)" if manifest.skipped else ""
    rows = {
        "index": str(folder),
        "corpus": f"{manifest.corpus} ({manifest.source or 'jsonl'}, sha256 {manifest.corpus_sha256})",
        "passages": f"{manifest.passages}{skipped}",
        "engines": ", ".join(manifest.engines),
        "counted": _counts(manifest.counts),
        "encoder": f"{manifest.encoder} ({manifest.dim} dimensions, {manifest.kind})" if manifest.encoder else "none",
        "size": f"{manifest.size / 1e6:.1f} MB in {len(manifest.files)} files, all checksums right",
        "built": f"{manifest.created:%Y-%m-%d %H:%M} UTC, format {manifest.format}, {libraries}",
    }
    return "\n".join(f"{name:9} {value}" for name, value in rows.items() if value)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
