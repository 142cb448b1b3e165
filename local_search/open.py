"""Opens the search that the settings ask for: a service, an index folder, or the bundled small corpus."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from local_search.build import Step, build_index
from local_search.client import SearchClient
from local_search.config import SearchConfig
from local_search.engine import SearchEngine
from local_search.index import FORMAT, read_manifest
from local_search.protocol import Encoder, SearchBackend
from local_search.rerank import CrossEncoder, Reranking
from mia.errors import DataError
from mia.paths import home


def open_search(
    config: SearchConfig, step: Step = lambda stage, done, total: None, encoder: Encoder | None = None
) -> SearchBackend:
    """The backend of a config. The bundled corpus is indexed at its first use, which takes seconds.

    Args:
        config: `url` decides between a service and this process.
        step: told of the progress of a build.
        encoder: one to share with others in this process, used if the index is of this encoder.

    Raises:
        DataError: the index is missing or damaged.
        ConfigError: a package of the extra `search` is missing.
    """
    if config.url:
        return SearchClient(config.url, mode=config.mode if "mode" in config.model_fields_set else None)
    return open_engine(config, step, encoder)


def open_engine(
    config: SearchConfig, step: Step = lambda stage, done, total: None, encoder: Encoder | None = None
) -> SearchEngine:
    """As `open_search`, always in this process."""
    return SearchEngine.open(
        config.index or bundled_index(step, encoder),
        config.mode,
        shared=encoder,
        encoder_place=config.encoder_path,
        reranking=Reranking(CrossEncoder(config.rerank), config.rerank_pool) if config.rerank else None,
    )


def bundled_index(step: Step = lambda stage, done, total: None, encoder: Encoder | None = None) -> Path:
    """Folder of the index of the bundled corpus, in MIA's home; built there if it is missing or damaged."""
    folder = home() / "index" / f"miniwiki-{_bundle_digest()}"
    try:
        read_manifest(folder)
    except DataError:
        from local_search.miniwiki import write

        with tempfile.TemporaryDirectory() as scratch:
            write(Path(scratch))
            build_index(Path(scratch) / "corpus.jsonl", folder, force=True, encoder=encoder, step=step)
    return folder


def _bundle_digest() -> str:
    """Changes with the bundled tables, the code that makes passages of them, and the index format.

    Files are hashed, since making the passages to hash them would delay every start by most of a second.
    """
    bundle = Path(__file__).parent / "miniwiki"
    total = hashlib.sha256(str(FORMAT).encode())
    for file in sorted(bundle.rglob("*")):
        if file.suffix in (".py", ".csv"):
            total.update(file.relative_to(bundle).as_posix().encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:12]
