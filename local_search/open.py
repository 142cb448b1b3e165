"""Opens the search that the settings ask for: a service, an index folder, or the bundled small corpus."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from local_search.build import Step, build_index
from local_search.client import SearchClient
from local_search.config import SearchConfig
from local_search.engine import SearchEngine
from local_search.index import FORMAT, is_index
from local_search.protocol import SearchBackend
from mia.paths import home


def open_search(config: SearchConfig, step: Step = lambda stage, done, total: None) -> SearchBackend:
    """The backend of a config. The bundled corpus is indexed at its first use, which takes seconds.

    Raises:
        DataError: the index is missing or damaged.
        ConfigError: a package of the extra `search` is missing.
    """
    if config.url:
        return SearchClient(config.url, mode=config.mode if "mode" in config.model_fields_set else None)
    return SearchEngine.open(config.index or bundled_index(step), config.mode)


def bundled_index(step: Step = lambda stage, done, total: None) -> Path:
    """Folder of the index of the bundled corpus, in MIA's home; built there if it is missing."""
    from local_search.miniwiki import write

    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch))
        corpus = Path(scratch) / "corpus.jsonl"
        digest = hashlib.sha256(b"%d " % FORMAT + corpus.read_bytes()).hexdigest()
        folder = home() / "index" / f"miniwiki-{digest[:12]}"
        if not is_index(folder):
            build_index(corpus, folder, step=step)
    return folder
