"""Our Lucene engine against pyserini used directly, each in a process of its own, on the real HotpotQA corpus."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from local_search.build import build_index
from local_search.corpus import Row, read_rows
from local_search.engine import SearchEngine
from local_search.java import find_java
from local_search.lucene import Lucene, build, take_over
from mia.cli import main
from mia.errors import ConfigError, DataError

DIRECT = """
import json, sys
from pyserini.index.lucene import LuceneIndexer
from pyserini.search.lucene import LuceneSearcher
corpus, folder = sys.argv[1:]
indexer = LuceneIndexer(folder, threads=1)
for line in open(corpus, encoding="utf-8"):
    indexer.add_doc_dict(json.loads(line))
indexer.close()
searcher = LuceneSearcher(folder)
found = [[(hit.docid, hit.score) for hit in searcher.search(query, 10)] for query in json.load(sys.stdin)]
print(json.dumps(found))
"""
ODD = ["the of and", "🦉 owl", "naïve café", 'AND OR ( " [ * ~2 ^', "a\x00b"]


@pytest.fixture(autouse=True, scope="module")
def _lucene_is_there() -> None:
    if importlib.util.find_spec("pyserini") is None:
        pytest.skip("needs the extra lucene: pip install -e '.[lucene]' -c constraints.txt")
    try:
        find_java()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def corpus(hotpotqa: Path) -> list[Row]:
    return list(read_rows(hotpotqa / "corpus.jsonl"))


@pytest.fixture(scope="module")
def queries(hotpotqa: Path) -> list[str]:
    lines = (hotpotqa / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["question"] for line in lines] + ODD


@pytest.fixture(scope="module")
def direct(hotpotqa: Path, queries: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The folder that pyserini wrote, and for each query its first ten as (id, score)."""
    folder = tmp_path_factory.mktemp("pyserini") / "index"
    home = {"JAVA_HOME": str(find_java().home), "OPENAI_API_KEY": "none", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", DIRECT, str(hotpotqa / "corpus.jsonl"), str(folder)]
    ended = subprocess.run(command, input=json.dumps(queries), capture_output=True, text=True, env=home)
    assert ended.returncode == 0, ended.stderr
    return folder, json.loads(ended.stdout.splitlines()[-1])  # Anserini logs before it


@pytest.fixture(scope="module")
def ours(corpus: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours")
    build(corpus, folder, lambda done: None)
    return folder


@pytest.mark.parametrize("taken_over", [False, True])
def test_same_query_same_top_ten(
    taken_over: bool,
    ours: Path,
    direct: tuple[Path, list[Any]],
    corpus: list[Row],
    queries: list[str],
    tmp_path: Path,
) -> None:
    folder = ours
    if taken_over:
        folder = tmp_path
        take_over(direct[0], folder, (row.id for row in corpus))
    found = [
        [(corpus[row].id, pytest.approx(score)) for row, score in hits] for hits in Lucene(folder).top(queries, 10)
    ]
    assert found == [[tuple(hit) for hit in hits] for hits in direct[1]]
    assert sum(len(hits) == 10 for hits in found) >= 30  # most queries do find ten
    assert found[queries.index("the of and")] == []


def test_pyserini_reads_what_we_wrote(ours: Path) -> None:
    code = "import sys; from pyserini.search.lucene import LuceneSearcher as S; print(S(sys.argv[1]).num_docs)"
    home = {"JAVA_HOME": str(find_java().home), "OPENAI_API_KEY": "none", "PATH": os.environ["PATH"]}
    shown = subprocess.run(
        [sys.executable, "-c", code, str(ours / "segments")], capture_output=True, text=True, env=home, check=True
    )
    assert shown.stdout.split()[-1] == "2276"


def test_an_index_of_another_corpus_is_refused(direct: tuple[Path, list[Any]], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="2276 documents, which are not the 2 rows") as caught:
        take_over(direct[0], tmp_path, ["0", "x"])
    assert caught.value.code == "other_corpus"


def test_a_damaged_index_is_told(ours: Path, tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "segments_1").write_bytes(b"no index")
    (tmp_path / "rows.npy").write_bytes((ours / "rows.npy").read_bytes())
    with pytest.raises(DataError, match="Lucene cannot use") as caught:
        Lucene(tmp_path)
    assert caught.value.code == "damaged_index"
    with pytest.raises(DataError, match="no segments_N"):
        take_over(tmp_path / "nothing", tmp_path / "out", [])


def test_nothing_is_printed(corpus: list[Row], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build(corpus[:3], tmp_path, lambda done: None)
    assert [[row for row, _ in hits] for hits in Lucene(tmp_path).top(["hexanol"], 3)] == [[1]]
    assert capfd.readouterr() == ("", "")


def test_rows_beyond_16_bits_and_odd_ids(tmp_path: Path) -> None:
    rows = [
        Row("größe 🦉", "an owl \x00 named 🦉 Minerva"),
        Row('"', "a \u2028 crow"),
        Row("-x", "a heron"),
        Row("日本", "日本"),
    ]
    build(rows, tmp_path, lambda done: None)
    found = Lucene(tmp_path).top(["Minerva 🦉 minerva", "crow", "HERONS", "日本"], 3)
    assert [[row for row, _ in hits] for hits in found] == [[0], [1], [2], [3]]


def test_many_threads_at_once(ours: Path, queries: list[str]) -> None:
    lucene = Lucene(ours)
    alone = lucene.top(queries, 5)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: lucene.top(queries, 5), range(16)):
            assert found == alone


async def test_an_index_is_built_and_searched_by_lucene(
    hotpotqa: Path, direct: tuple[Path, list[Any]], queries: list[str], tmp_path: Path
) -> None:
    manifest, _ = build_index(hotpotqa / "corpus.jsonl", tmp_path / "index", ["lucene"])
    assert (manifest.engines, "pyserini" in manifest.libraries) == (("lucene",), True)
    engine = SearchEngine.open(tmp_path / "index", "lucene")
    hits = await engine.search(queries[:20], 10)
    assert [[hit.passage.id for hit in found] for found in hits] == [
        [name for name, _ in found] for found in direct[1][:20]
    ]
    assert {hit.backend for found in hits for hit in found} == {"local/lucene"}


def test_a_service_on_lucene_ends_by_an_interrupt(ours: Path, hotpotqa: Path, tmp_path: Path) -> None:
    """Java would take the signals for itself if it were let."""
    build_index(hotpotqa / "corpus.jsonl", tmp_path / "index", ["lucene"])
    command = [sys.executable, "-m", "local_search", "--search.index", str(tmp_path / "index"), "--search.mode=lucene"]
    with subprocess.Popen([*command, "--port=0", "--workers=2"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        try:
            assert said.startswith("serving 2276 passages"), said
            url = said.split(" at ")[1].strip()
            found = httpx.post(f"{url}/retrieve", json={"queries": ["hexanol"], "topk": 3}, timeout=20).json()
            assert [hit["id"] for hit in found["result"][0]] == ["1"]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


def test_a_ready_index_is_taken_over_by_the_command(
    hotpotqa: Path,
    direct: tuple[Path, list[Any]],
    queries: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["index", "build", str(hotpotqa / "corpus.jsonl"), "--lucene", str(direct[0]), "--out", str(tmp_path / "x")]
    assert main(words) == 0
    assert capsys.readouterr().out == "took over 2276 passages of corpus.jsonl (lucene)\n"
    assert main(words) == 0
    assert "is up to date" in capsys.readouterr().out
    engine = SearchEngine.open(tmp_path / "x", "lucene")
    [hits] = asyncio.run(engine.search(queries[:1], 10))
    assert [hit.passage.id for hit in hits] == [name for name, _ in direct[1][0]]
    other = [*words[:2], str(tmp_path / "other.jsonl"), *words[3:]]
    (tmp_path / "other.jsonl").write_text('{"id": "0", "contents": "a"}\n')
    assert main(other) == 1
    assert "holds something else" in capsys.readouterr().err
    assert main([*other, "--force"]) == 1
    assert "which are not the 1 rows of the corpus" in capsys.readouterr().err
    assert main(words) == 0  # what was there is there still
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir() and any(path.rglob("segments_*"))) == ["x"]
