"""The verbs of search, through the `mia` command's own entry point."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from local_search.config import SearchConfig
from local_search.index import Manifest
from mia.cli import main


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "a", "contents": "\\"Oak\\"\\nA tree."}\n{"id": "b", "contents": "\\"Fir\\"\\nA tree."}\n')
    return path


def _build(corpus: Path, *more: str) -> int:
    return main(["index", "build", str(corpus), "--out", str(corpus.parent / "index"), "--engines", "bm25", *more])


def test_build_then_info(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _build(corpus) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"indexed 2 passages of corpus.jsonl (bm25) into {corpus.parent / 'index'} in ")
    assert err == ""  # no progress bar where stderr is no terminal
    assert main(["index", "info", str(corpus.parent / "index")]) == 0
    out, _ = capsys.readouterr()
    assert "passages  2\n" in out
    assert "encoder   none\n" in out
    assert "all checksums right" in out


def test_build_takes_format_memory_and_workers_and_info_tells_what_came_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "passages.txt"
    corpus.write_text("id\ttext\ttitle\n1\tA tall tree.\tOak\n2\tA green tree.\tFir\n")
    assert _build(corpus, "--format", "tsv", "--memory", "1GB", "--workers", "2") == 0
    capsys.readouterr()
    assert main(["index", "info", str(tmp_path / "index")]) == 0
    out, _ = capsys.readouterr()
    assert "corpus    passages.txt (tsv, sha256 " in out
    # oak tall tree, fir green tree
    assert "counted   6 words, 5 vocabulary, 6 postings\n" in out
    assert "format 2, " in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--memory", "much"], "--memory much: not a size"),
        (["--memory", "10MB"], "does not fit into 10 MB"),
        (["--workers", "0"], "0 workers"),
    ],
)
def test_build_refuses_what_cannot_be(
    corpus: Path, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _build(corpus, *flags) == 2
    assert words in capsys.readouterr().err


def test_info_tells_what_was_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = "<page><title>{0}</title><ns>{1}</ns><id>{2}</id><revision><text>{0} text</text></revision></page>"
    corpus = tmp_path / "wiki.xml"
    corpus.write_text(f"<mediawiki>{page.format('Oak', 0, 1)}{page.format('Talk:Oak', 1, 2)}</mediawiki>")
    assert _build(corpus) == 0
    capsys.readouterr()
    assert main(["index", "info", str(tmp_path / "index")]) == 0
    assert "passages  1 (1 other namespace skipped)\n" in capsys.readouterr().out


def test_json_is_the_manifest(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _build(corpus, "--json") == 0
    built = Manifest.model_validate_json(capsys.readouterr().out)
    assert (built.passages, built.engines) == (2, ("bm25",))
    assert main(["index", "info", str(corpus.parent / "index"), "--json"]) == 0
    assert Manifest.model_validate_json(capsys.readouterr().out) == built
    assert _build(corpus, "--json") == 0  # up to date: the same manifest
    assert Manifest.model_validate_json(capsys.readouterr().out) == built


def test_building_again_says_up_to_date_and_another_corpus_needs_force(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _build(corpus) == _build(corpus) == 0
    assert "is up to date: 2 passages" in capsys.readouterr().out
    corpus.write_text('{"id": "a", "contents": "other"}\n')
    assert _build(corpus) == 1
    err = capsys.readouterr().err
    assert "error (data/index_exists)" in err
    assert "--force" in err
    assert _build(corpus, "--force") == 0


def test_broken_row_ends_with_1_and_names_the_place(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus.write_text('{"id": "a", "contents": "fine"}\n{"id": "b"}\n')
    assert _build(corpus) == 1
    assert f"{corpus}, line 2, field contents: missing" in capsys.readouterr().err
    assert not (corpus.parent / "index").exists()


def test_info_of_nothing_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "info", str(tmp_path)]) == 1
    assert "no finished index" in capsys.readouterr().err


def test_unknown_engine_is_bad_usage(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "build", str(corpus), "--out", "x", "--engines", "bm25,sphinx"]) == 2
    assert "no engine 'sphinx'" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["index build", "index info", "serve search"])
def test_help_shows_two_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*verb.split(), "--help"])
    assert ended.value.code == 0
    _, examples = capsys.readouterr().out.split("examples:\n")
    lines = examples.splitlines()
    assert len(lines) >= 2
    assert all(line.strip().startswith(f"mia {verb} ") for line in lines)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--search.mode", "magic"], "search.mode"),
        (["--search.nodes", "3"], "search.nodes"),
        (["--search.index"], "needs a value"),
        (["--search.url", "http://127.0.0.1:1"], "search.url is set"),
        (["--config", "none.toml"], "none.toml"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1:8001"),
        (["--port", "99999"], "cannot listen on port 99999"),
    ],
)
def test_serve_refuses_bad_settings(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "search", *flags]) == 2
    assert words in capsys.readouterr().err


def test_serve_refuses_unknown_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "search", "--prot", "1"])
    assert ended.value.code == 2
    assert "--prot" in capsys.readouterr().err


def test_serve_tells_that_its_port_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "search", "--port", str(port)]) == 2
    err = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1:{port}" in err
    assert "--port" in err


def test_serve_refuses_a_missing_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "service.toml"
    config.write_text(f"[search]\nindex = {json.dumps(str(tmp_path / 'none'))}\nmode = 'bm25'\n")
    assert main(["serve", "search", "--config", str(config), "--port", "0"]) == 1
    assert "error (data/no_index)" in capsys.readouterr().err


def test_index_of_an_empty_flag_or_variable_is_the_bundled_one() -> None:
    assert SearchConfig.model_validate({"index": ""}).index is None
    assert SearchConfig.model_validate({"index": "a/b"}).index == Path("a/b")
