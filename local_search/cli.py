"""The verbs `mia index build`, `mia index adopt`, `mia index info` and `mia serve search`."""

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
    from local_search.protocol import Encoder


class ServiceConfig(Config):
    """Config of the search service."""

    search: SearchConfig = Field(default_factory=SearchConfig)


def build(argv: Sequence[str]) -> int:
    """`mia index build CORPUS --out DIR`."""
    given = _build_parser().parse_args(argv)
    if given.lucene:
        return _take_lucene(given)
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
            _encoder(given) if "dense" in engines else None,
            step,
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


def _take_lucene(given: argparse.Namespace) -> int:
    from local_search.adopt_lucene import adopt_lucene

    manifest, made = adopt_lucene(given.corpus, given.lucene, given.out, given.force, given.format)
    if given.json:
        print(manifest.model_dump_json(indent=2))
    else:
        print(f"{'took over' if made else given.out.as_posix() + ' is up to date:'} {_summary(manifest)}")
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
    _encoder_flags(args, "all-MiniLM-L6-v2")
    args.add_argument("--kind", choices=("auto", *KINDS), default="auto", help="of the dense index (default: auto)")
    args.add_argument(
        "--lucene", type=Path, metavar="DIR", help="take this ready index of pyserini's, made of CORPUS; makes no other"
    )
    args.add_argument("--force", action="store_true", help="replace another or a damaged index in DIR")
    args.add_argument("--json", action="store_true", help="print the manifest as JSON")
    return args


def _encoder_flags(args: argparse.ArgumentParser, default: str | None) -> None:
    args.add_argument(
        "--encoder",
        default=default,
        required=default is None,
        metavar="NAME",
        help="encoder of the vectors: all-MiniLM-L6-v2, a name on the Hugging Face hub such as intfloat/e5-base-v2, or "
        "a folder" + (f" (default: {default})" if default else ""),
    )
    for what in ("query", "passage"):
        args.add_argument(
            f"--{what}-prefix", metavar="TEXT", help=f"put before each {what} (default: as the encoder's family has it)"
        )
    args.add_argument(
        "--max-length", type=int, default=0, metavar="N", help="word pieces read of a text (default: the model's own)"
    )


def _encoder_name(given: argparse.Namespace) -> str:
    from local_search.encoder_names import full_name

    model = str(Path(given.encoder).resolve()) if Path(given.encoder).is_dir() else given.encoder
    return full_name(model, given.query_prefix, given.passage_prefix, given.max_length)


def _encoder(given: argparse.Namespace) -> Encoder:
    from local_search.encoder import encoder_of

    return encoder_of(_encoder_name(given))


def adopt(argv: Sequence[str]) -> int:
    """`mia index adopt --corpus FILE --faiss FILE --encoder NAME --out DIR`."""
    args = parser(
        "index adopt",
        "Use a ready-made corpus and FAISS index as they are, such as those of Search-R1. Nothing is copied.\n"
        "Join an index that comes in parts first: cat part_aa part_ab > e5_Flat.index",
        [
            "mia index adopt --corpus wiki-18.jsonl --faiss e5_Flat.index --encoder intfloat/e5-base-v2 --out wiki",
            "mia index adopt --corpus c.jsonl --faiss f.index --encoder /models/bge-base-en-v1.5 --out my-index --json",
        ],
    )
    args.add_argument("--corpus", type=Path, required=True, metavar="FILE", help="JSONL: id and contents, a row a line")
    args.add_argument("--faiss", type=Path, required=True, metavar="FILE", help="FAISS index; its row i is row i there")
    args.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write the index to")
    _encoder_flags(args, None)
    args.add_argument("--unpack", action="store_true", help="write a compressed corpus into DIR, unpacked")
    args.add_argument("--force", action="store_true", help="replace another index in DIR")
    args.add_argument("--json", action="store_true", help="print the manifest as JSON")
    given = args.parse_args(argv)

    from local_search.adopt import adopt as adopted
    from local_search.progress import bar

    with bar() as step:
        name = _encoder_name(given)
        manifest, made = adopted(
            given.corpus, given.faiss, name, given.out, given.force, given.unpack, lambda n: step("read", n, 0)
        )
    if given.json:
        print(manifest.model_dump_json(indent=2))
    else:
        print(f"{'adopted' if made else given.out.as_posix() + ' is up to date:'} {_summary(manifest)}")
        print(f"mia serve search --search.index {given.out} --search.mode dense", file=sys.stderr)
    return 0


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
            "mia serve search --search.mode bm25 --search.k 5     # the bundled small corpus",
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
        "vectors": _vectors(folder),
        "size": f"{manifest.size / 1e6:.1f} MB in {len(manifest.files)} files, all checksums right",
        "built": f"{manifest.created:%Y-%m-%d %H:%M} UTC, format {manifest.format}, {libraries}",
    }
    return "\n".join(f"{name:9} {value}" for name, value in rows.items() if value)


def _vectors(folder: Path) -> str:
    from local_search.dense_index import read_spec
    from local_search.dense_kinds import readable

    spec = read_spec(folder / "dense")
    if spec is None:
        return ""
    effort = {"cells": spec.cells, "probes": spec.probes, "looked at twice": spec.pool, "efSearch": spec.effort}
    told = [f"{number} {name}" for name, number in effort.items() if number]
    recall = "exact" if spec.recall is None else f"recall@10 {spec.recall:.3f} as measured when built"
    return ", ".join([f"{spec.kind}, {readable(spec.bytes)}", *told, recall])


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
