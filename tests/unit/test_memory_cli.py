"""The memory verbs, through the `mia` command; `serve` as a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from memory_serve.client import MemoryClient
from memory_serve.config import MemoryConfig
from memory_serve.open import open_memory
from memory_serve.protocol import Added, Draft
from memory_serve.store import SqliteMemory
from mia.cli import main
from mia.errors import MemoryStoreError
from mia.paths import home


class Unloaded:
    """Stands for the encoder of the verbs in a file they only read: the same name and size, but no weights."""

    name, dim = "all-MiniLM-L6-v2", 384

    def encode(self, texts, kind="query"):  # type: ignore[no-untyped-def]  # noqa: ANN201
        from memory_serve.hashing import HashEncoder

        return HashEncoder(self.dim).encode(texts)


@pytest.fixture
def filled() -> list[Added]:
    """Three memories in the home folder."""

    async def run() -> list[Added]:
        store = SqliteMemory(MemoryConfig(), Unloaded())
        added = await store.add([
            Draft(question="Which [red]river[/red] flows through Vienna?", workflow="1. Search: Vienna",
                  outcome="correct", source_id="q1", trajectory_id="t1", provenance={"summary": "extractive"}),
            Draft(question="Who was born in Graz?" + " Say" * 30, workflow="1. Search: Graz", outcome="incorrect"),
            Draft(question="What is a fjord?", caption="a bay", workflow="1. Look", outcome="unjudged",
                  modality="text-image", plan="1. Go"),
        ])  # fmt: skip
        await store.credit([added[0].id], success=True)
        await store.aclose()
        return added

    return asyncio.run(run())


def test_list(filled: list[Added], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "list"]) == 0
    out = capsys.readouterr().out
    for added in filled:
        assert added.id in out
    assert "[red]river[/red]" in out
    assert "1/1" in out
    assert "text-image/definition" in out

    assert main(["memory", "list", "--json", "--limit", "2", "--offset", "1"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in rows] == [filled[1].id, filled[0].id]

    assert main(["memory", "list", "--offset", "3"]) == 0
    assert capsys.readouterr() == ("", "no more memories\n")
    assert main(["memory", "list", "--limit", "0"]) == 1
    assert "limit 0" in capsys.readouterr().err


def test_show(filled: list[Added], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "show", filled[0].id]) == 0
    out = capsys.readouterr().out
    for wanted in (filled[0].id, "1 times, 1 of them right", "question q1, run t1", "extractive", "1. Search: Vienna"):
        assert wanted in out
    assert "plan:" not in out
    assert main(["memory", "show", filled[2].id]) == 0
    assert capsys.readouterr().out.endswith("plan:\n1. Go\n")
    assert main(["memory", "show", filled[0].id, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["successes"] == 1
    assert main(["memory", "show", "16"]) == 1
    assert "no memory '16'" in capsys.readouterr().err


def test_stats(filled: list[Added], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "stats"]) == 0
    rows = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert rows == {
        "memories": "3", "correct": "1", "incorrect": "1", "unjudged": "1", "encoder": "all-MiniLM-L6-v2",
        "text-only/location": "1", "text-only/human": "1", "text-image/definition": "1",
    }  # fmt: skip
    assert main(["memory", "stats", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memories"] == 3


@pytest.mark.parametrize("verb", ["list", "stats"])
def test_without_a_memory_nothing_is_made(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", verb]) == 1
    assert "no memory at" in capsys.readouterr().err
    assert not home().exists()


@pytest.mark.parametrize("argv", [["memory", "list"], ["memory", "show"], ["memory", "stats"], ["serve", "memory"]])
def test_help_has_two_examples(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*argv, "--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.split("examples:")[1].count(f"mia {' '.join(argv)}") == 2


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["memory", "list", "--memory.pth", "x"], "did you mean 'path'"),
        (["memory", "list", "--memory.k"], "needs a value"),
        (["memory", "stats", "--memory.k", "0"], "memory.k"),
        (["serve", "memory", "--memory.url", "http://x"], "memory.path"),
        (["serve", "memory", "--port", "99999"], "is no port"),
    ],
)
def test_bad_usage(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert told in capsys.readouterr().err


def test_an_unknown_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["memory", "stats", "--jsn"])
    assert caught.value.code == 2
    assert "unrecognized arguments: --jsn" in capsys.readouterr().err


def test_an_occupied_port(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "memory", "--port", str(taken.getsockname()[1])]) == 2
    assert "give another --host or --port" in capsys.readouterr().err
    assert not home().exists()


def test_a_config_file(tmp_path: Path, filled: list[Added], capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[memory]\npath = "~/nowhere/m.db"\nweights = { similarity = 1.0 }\n')
    assert main(["memory", "stats", "--config", str(file)]) == 1
    assert f"no memory at {Path.home()}/nowhere/m.db" in capsys.readouterr().err


async def test_a_url_opens_a_client() -> None:
    store = open_memory(MemoryConfig(url="http://127.0.0.1:9"))
    assert isinstance(store, MemoryClient)
    await store.aclose()


async def test_a_path_opens_the_file(tmp_path: Path) -> None:
    store = open_memory(MemoryConfig(path=tmp_path / "m.db"))
    assert (await store.stats()).encoder == "all-MiniLM-L6-v2"
    await store.aclose()


def test_serve(filled: list[Added], capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "memory_serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        assert service.stderr is not None
        line = service.stderr.readline()
        url = line.split(" at ")[1].strip()
        assert line.startswith(f"serving {home() / 'memory.db'} at http://127.0.0.1:")
        try:
            # The verbs read from a service just as from a file.
            assert main(["memory", "list", "--json", "--memory.url", url]) == 0
            assert [row["id"] for row in json.loads(capsys.readouterr().out)] == [a.id for a in reversed(filled)]
            assert main(["memory", "show", filled[0].id, "--memory.url", url]) == 0
        finally:
            service.send_signal(signal.SIGINT)
    assert service.returncode == 0
    with pytest.raises(MemoryStoreError):
        asyncio.run(MemoryClient(url, retries=0).stats())


# ---------------------------------------------------------------------------------------------- looking after a memory


def run(*argv: str) -> int:
    return main(["memory", *argv])


def test_explain(filled: list[Added], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "Which [red]river[/red] flows through Vienna?") == 0
    out = capsys.readouterr().out
    # One memory alone: normalised similarity 0, one success in one use: 0.3 · 1/2 twice.
    assert out.startswith("worked 1   0.3000 = similarity 0.0000 + value 0.1500 + frequency 0.1500   (raw similarity ")
    assert filled[0].id in out
    assert run("explain", "Which river flows through Vienna?", "--json", "--memory.score", "released") == 0
    (scored,) = json.loads(capsys.readouterr().out)["successes"]
    assert scored["terms"] == {"similarity": 0.0, "win_rate": pytest.approx(0.3)}
    assert run("explain", "Why?") == 0
    assert capsys.readouterr().out == "nothing would be recalled\n"


def test_export_clear_import(filled: list[Added], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "memories.jsonl"
    assert run("export", "--out", str(file), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"memories": 3, "left_out": 0}
    exported = file.read_text()
    assert run("clear") == 2
    assert "--namespace NAME or --all" in capsys.readouterr().err
    assert run("clear", "--all", "--namespace", "default") == 2
    assert run("clear", "--namespace", "default' OR '1'='1") == 1
    assert run("clear", "--namespace", "other") == 0
    capsys.readouterr()
    assert run("clear", "--namespace", "default", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"cleared": 3}
    assert run("import", str(file)) == 0
    assert capsys.readouterr().out == "3 stored, 0 known, 0 kept as they are here\n"
    assert run("import", str(file), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"stored": 0, "known": 3, "kept": 0}
    assert run("export") == 0
    assert capsys.readouterr() == (exported, "3 memories\n")
    assert run("import", str(tmp_path / "none")) == 1
    file.write_text("{}\n{")
    assert run("import", str(file)) == 1
    assert "modality" in capsys.readouterr().err


def test_export_for_others(filled: list[Added], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("export", "--for", "original") == 0
    out, told = capsys.readouterr()
    assert sorted(json.loads(out)["text-only"]) == ["human", "location"]
    assert told == "3 memories, 1 unjudged ones left out\n"
    assert run("export", "--for", "planner") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["memory_ids"] for row in rows] == [[filled[0].id], [filled[1].id]]
    # The original's file is told apart by its content, and may found a new memory.
    file = tmp_path / "memory.json"
    file.write_text(out)
    assert run("import", str(file), "--memory.path", str(tmp_path / "new.db")) == 0
    assert capsys.readouterr().out.startswith("2 stored")


def test_compact_and_undo(filled: list[Added], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compact") == 0
    assert " ".join(capsys.readouterr().out.split()) == "before 3 absorbed 0 merged 0 evicted 0 after 3"
    assert run("clear", "--all") == 0
    assert run("undo", "--json") == 0
    undone = json.loads(capsys.readouterr().out.splitlines()[1])
    assert (undone["action"], len(undone["memories"]), undone["actor"]) == ("clear", 3, "command line")
    assert run("undo", "--list") == 0
    shown = capsys.readouterr().out
    assert [line.split()[2] for line in shown.splitlines()] == ["undo", "clear", "credit", "add"]
    assert f"3 memories, by command line, undone by {undone['undone']}" in shown
    assert run("undo", "999") == 1
    assert "no change 999" in capsys.readouterr().err
    assert run("stats", "--json") == 0
    assert json.loads(capsys.readouterr().out)["memories"] == 3


def test_backup(filled: list[Added], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert run("backup", str(copy)) == 0
    assert capsys.readouterr().out == f"{copy}: {copy.stat().st_size} bytes\n"
    assert [path.name for path in tmp_path.glob("copy*")] == ["copy.db"]
    assert run("stats", "--memory.path", str(copy), "--json") == 0
    assert json.loads(capsys.readouterr().out)["memories"] == 3
    assert run("backup", str(copy)) == 1
    assert run("backup", str(tmp_path / "b.db"), "--memory.url", "http://127.0.0.1:9") == 2
    assert run("backup", str(tmp_path / "b.db"), "--memory.path", str(tmp_path / "none.db")) == 1
    assert not (tmp_path / "none.db").exists()


def test_a_token_that_is_not_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "memory", "--memory.token_env", "NO_SUCH_TOKEN"]) == 2
    assert "NO_SUCH_TOKEN, which is not set" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["null", "5", "true", "[]", "[" * 100_000, '{"workflow": "1. x"}\n', '{"id": "a", "wor']
)
def test_what_is_no_file_of_memories_is_refused_with_a_remedy(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "odd"
    file.write_text(text, encoding="utf-8")
    assert run("import", str(file)) == 1
    told = capsys.readouterr().err
    assert "remedy" in told
    assert "Traceback" not in told
    assert "pydantic" not in told
