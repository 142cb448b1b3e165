"""The shape of the repository: who may import whom, what stays light, what every shipped file must satisfy."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.config import RunConfig
from mia.cli import VERBS, main
from mia.config import load

ROOT = Path(__file__).resolve().parents[2]
MAY_IMPORT = {
    "mia": set(),
    "local_search": {"mia"},
    "web_tools": {"mia"},
    "memory_serve": {"mia", "local_search"},
    "inference": {"mia", "local_search", "web_tools", "memory_serve"},
    "serve": {"mia", "local_search", "web_tools", "memory_serve", "inference"},
    "executor_train": {"mia", "local_search", "web_tools", "memory_serve", "inference", "serve"},
    "planner_train": {"mia", "local_search", "memory_serve", "inference", "serve", "executor_train"},
    "ttrl": {"mia", "local_search", "memory_serve", "inference", "serve", "executor_train", "planner_train"},
    "ttrl_streaming": {
        "mia",
        "local_search",
        "memory_serve",
        "inference",
        "serve",
        "executor_train",
        "planner_train",
        "ttrl",
    },
}
PACKAGES = sorted(name for name in MAY_IMPORT if (ROOT / name).is_dir())


def imports(path: Path) -> Iterator[str]:
    """Top-level names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_arrows(package: str) -> None:
    forbidden = (set(MAY_IMPORT) | {"tests", "scripts"}) - MAY_IMPORT[package] - {package}
    found = {(str(path.relative_to(ROOT)), name) for path in (ROOT / package).rglob("*.py") for name in imports(path)}
    assert sorted((path, name) for path, name in found if name in forbidden) == []


def test_every_package_is_shipped() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")}
    assert {".".join(folder.relative_to(ROOT).parts) for folder in folders} | {"configs"} == listed


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)


@pytest.mark.parametrize("module", ["mia.types", "mia.errors", "mia.cli"])
def test_the_vocabulary_loads_nothing_heavy(module: str) -> None:
    heavy = ["torch", "transformers", "faiss", "fastapi", "numpy", "openai", "rich", "httpx", "pydantic_settings"]
    shown = python(f"import sys, {module}; print([m for m in {heavy!r} if m in sys.modules])").stdout
    assert shown.strip() == "[]"


def test_the_agent_loads_no_torch_before_it_is_needed() -> None:
    shown = python("import sys, inference.agent; print([m for m in ('torch', 'transformers') if m in sys.modules])")
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help_with_two_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*verb.split(), "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: mia {verb}")
    examples = [line for line in shown.partition("examples:")[2].splitlines() if line.strip().startswith("mia ")]
    assert len(examples) >= 2
    assert all(f"mia {verb}" in example for example in examples)


def test_mia_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown for verb in VERBS)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.toml")), ids=lambda path: path.name)
def test_every_config_says_what_it_is_and_loads(path: Path) -> None:
    first, second = path.read_text(encoding="utf-8").splitlines()[:2]
    assert first.startswith("# ")
    assert second.startswith("# mia ")
    assert any(second[2:].startswith(f"mia {verb} ") for verb in VERBS)
    load(RunConfig, path)


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_sound_and_have_help(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    if script.name in ("setup.sh", "bench.sh", "training.sh"):  # sourced by the others
        return
    shown = subprocess.run(["bash", str(script), "--help"], capture_output=True, text=True, check=True, cwd="/").stdout
    assert shown.count(f"bash scripts/{script.name}") >= 2


@pytest.mark.parametrize("script", sorted((ROOT / "scripts" / "bench").glob("*.py")), ids=lambda path: path.name)
def test_benchmarks_have_help(script: Path) -> None:
    if script.name == "stub_endpoint.py":  # started by the others
        return
    shown = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True, check=True).stdout
    assert shown.count(f"python scripts/bench/{script.name}") >= 2


def test_no_file_grows_beyond_the_soft_cap() -> None:
    long = [
        (path.name, lines)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    ]
    assert long == []
