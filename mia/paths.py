"""Where MIA keeps its files: `home()` for what must not be lost, `cache()` for what can be fetched again."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """Memory, runs and indexes: `$MIA_HOME`, else `~/.mia`."""
    return Path(os.environ.get("MIA_HOME") or Path.home() / ".mia")


def cache() -> Path:
    """Fetched models: `$MIA_CACHE`, else `~/.cache/mia`."""
    return Path(os.environ.get("MIA_CACHE") or Path.home() / ".cache" / "mia")
