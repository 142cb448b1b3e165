"""Optional packages, imported when first needed; a missing one is an error that says what to install."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from mia.errors import ConfigError


def need(
    module: str, extra: Literal["cluster", "embedded", "fp8", "lucene", "mem0", "postgres", "search", "serve", "web"]
) -> Any:
    """Import a package of an optional extra. Its type is open, because most of these packages ship no types.

    Raises:
        ConfigError: it is not installed (code `missing_extra`).
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"the package {(error.name or module).split('.')[0]} is not installed"
            if isinstance(error, ModuleNotFoundError)
            else f"the package {module} cannot be imported: {error}",
            remedy=f"pip install -e '.[{extra}]' -c constraints.txt",
            code="missing_extra",
        ) from error
