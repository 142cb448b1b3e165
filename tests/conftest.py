"""Shared guards of the tests: clean environment, own home folder, no socket but loopback."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# How long an example takes says more about what else the machine is doing than about the code.
hypothesis.settings.register_profile(
    "mia", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("mia")

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `mia` does; torch reads it once
_KEPT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "MIA_CACHE",
    "OMP_WAIT_POLICY",
    "COVERAGE_PROCESS_START",
    "HOME",
    "OPENBLAS_CORETYPE",
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only a few variables pass through; MIA_HOME points into the test's own folder; hubs are off."""
    for name in list(os.environ):
        if name not in _KEPT and not name.startswith(("COV_", "PYTEST_", "OPENBLAS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MIA_HOME", str(tmp_path / "mia-home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connecting anywhere but to loopback fails the test."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test tried to connect to {address!r}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(scope="session")
def hotpotqa() -> Path:
    """Folder of the real HotpotQA sample; the test is skipped where it is absent."""
    folder = SHARED / "hotpotqa"
    if not folder.is_dir():
        pytest.skip(f"no HotpotQA sample at {folder}")
    return folder
