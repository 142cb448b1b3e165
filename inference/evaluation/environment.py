"""What a run was made with: versions, commit and processor. Left out are names of machines, users and folders."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import JsonValue

from mia import __version__
from mia.types import now

PACKAGES = (
    "numpy",
    "openai",
    "pydantic",
    "torch",
    "transformers",
    "sentence-transformers",
    "faiss-cpu",
    "bm25s",
    "ray",
)
"""Packages that numbers may depend on."""


def environment() -> dict[str, JsonValue]:
    """A record of this process."""
    return {
        "started": now().isoformat(timespec="seconds"),
        "mia": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """The commit of the source, with `+` if it was changed; empty where it is no git checkout."""
    git = ("git", "-C", str(Path(__file__).resolve().parents[2]))
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{head}+" if changed.strip() else head


def _cpu() -> str:
    """The processor's model, where the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "")
