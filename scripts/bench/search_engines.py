"""One step of `search.py`, in a process of its own, whose memory is its own: the corpus, a build, a search.

A passage is five real HotpotQA sentences on one subject, about 110 words: one, and four drawn from those most like it.
Its vector is the normalised mean of theirs. (Passages of sentences drawn from anywhere are about nothing; their vectors
have no neighbourhoods, which is what every approximate index lives on.)

    python scripts/bench/search_engines.py build bm25 /tmp/mia-bench-search --passages 20000
    python scripts/bench/search_engines.py search bm25 /tmp/mia-bench-search --passages 20000
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from local_search.corpus import Row, read_rows
from local_search.protocol import Encoder
from mia.cli import report
from mia.errors import MiaError
from mia.extras import need

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "hotpotqa"
SENTENCES, QUERIES, DEPTH, BATCH = 5, 256, 10, 64
SUBJECT = 64
"""Sentences that count as being on the subject of another: those with the nearest vectors."""
Ranked = list[tuple[int, float]]
Search = Callable[[Sequence[int]], list[Ranked]]
"""Numbers of queries to their first ten rows with scores."""


# ------------------------------------------------------------------------------------------ the corpus


class Work:
    """The folder of one corpus size: passages, their vectors, queries, and a folder for each engine."""

    def __init__(self, root: Path, passages: int, seed: int) -> None:
        self.root, self.passages, self.seed = root, passages, seed
        self.folder = root / f"{passages}-{seed}"
        self.corpus = self.folder / "corpus.jsonl"

    def vectors(self) -> NDArray[np.float32]:
        return np.asarray(np.load(self.folder / "vectors.npy", mmap_mode="r"))

    def queries(self) -> list[str]:
        texts: list[str] = json.loads((self.root / "queries.json").read_text())
        return texts

    def query_vectors(self) -> NDArray[np.float32]:
        return np.asarray(np.load(self.root / "queries.npy"))

    def rows(self) -> Iterator[Row]:
        return read_rows(self.corpus)

    def write(self) -> None:
        """Write corpus and vectors. Their first passages are the same whatever the size."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        sentences: list[list[str]] = json.loads((self.root / "sentences.json").read_text())
        base = np.load(self.root / "sentences.npy")
        alike = _alike(base)
        draw = np.random.default_rng(self.seed)
        file = self.folder / "vectors.part"
        with self.corpus.open("w", encoding="utf-8") as corpus:
            vectors = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(self.passages, base.shape[1]))
            for start in range(0, self.passages, 4096):
                first = draw.integers(0, len(sentences), (4096, 1))
                others = draw.integers(0, SUBJECT, (4096, SENTENCES - 1))
                picked = np.hstack([first, alike[first, others]])[: self.passages - start]
                mean = base[picked].mean(axis=1)
                vectors[start : start + len(picked)] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
                for row, choice in enumerate(picked.tolist(), start):
                    text = " ".join(sentences[number][1] for number in choice)
                    line = {"id": str(row), "contents": f'"{sentences[choice[0]][0]}"\n{text}'}
                    corpus.write(json.dumps(line, ensure_ascii=False) + "\n")
            vectors.flush()
        file.rename(self.folder / "vectors.npy")


def _alike(base: NDArray[np.float32]) -> NDArray[np.int64]:
    """Numbers of the SUBJECT sentences most like each of n, itself not among them: (n, SUBJECT)."""
    parts = []
    for start in range(0, len(base), 1024):
        scores = base[start : start + 1024] @ base.T
        scores[np.arange(len(scores)), np.arange(start, start + len(scores))] = -np.inf
        parts.append(np.argpartition(-scores, SUBJECT, axis=1)[:, :SUBJECT])
    return np.concatenate(parts)


def prepare(root: Path, data: Path, seed: int) -> dict[str, float]:
    """Sentences and queries with their vectors, once for all sizes; returns the rate of encoding."""
    done = root / "encoding.json"
    if not done.exists():
        from local_search.encoder import MiniLM

        root.mkdir(parents=True, exist_ok=True)
        passages = [row.passage() for row in read_rows(data / "corpus.jsonl")]
        sentences = [
            (passage.title, sentence)
            for passage in passages
            for sentence in re.split(r"(?<=[.!?])\s+", passage.text)
            if len(sentence.split()) >= 4
        ]
        draw = np.random.default_rng(seed + 1)
        queries = [json.loads(line)["question"] for line in (data / "questions.jsonl").read_text().splitlines()]
        while len(queries) < QUERIES:
            words = sentences[int(draw.integers(len(sentences)))][1].split()
            start, length = int(draw.integers(max(1, len(words) - 6))), int(draw.integers(3, 9))
            queries.append(" ".join(words[start : start + length]))
        encoder = MiniLM()
        encoder.warm()
        joined = [" ".join(text for _, text in sentences[n : n + SENTENCES]) for n in range(0, 128 * 5, 5)]
        started = time.perf_counter()
        encoder.encode(joined, "passage")
        rate = len(joined) / (time.perf_counter() - started)
        _encode([text for _, text in sentences], encoder, root / "sentences.npy")
        np.save(root / "queries.npy", encoder.encode(queries[:QUERIES], "query"))
        (root / "sentences.json").write_text(json.dumps(sentences))
        (root / "queries.json").write_text(json.dumps(queries[:QUERIES]))
        done.write_text(json.dumps({"passages_per_s": rate}))
    found: dict[str, float] = json.loads(done.read_text())
    return found


def _encode(texts: list[str], encoder: Encoder, file: Path) -> None:
    """Encode texts into `file`, from where an earlier run was stopped."""
    unfinished = file.with_suffix(".f32")
    with unfinished.open("ab") as vectors:
        done = vectors.tell() // (4 * encoder.dim)
        vectors.truncate(done * 4 * encoder.dim)
        for start in range(done, len(texts), 256):
            vectors.write(encoder.encode(texts[start : start + 256], "passage").tobytes())
            vectors.flush()
    np.save(file, np.fromfile(unfinished, dtype=np.float32).reshape(len(texts), encoder.dim))
    unfinished.unlink()


# ------------------------------------------------------------------------------------------ the engines


class Engine:
    """An engine in its folder. `build` and `open` are called in different processes."""

    needs = ""
    """Package without which it is left out."""
    vectors = False
    memory_mb = 0
    """What a build keeps to, whatever the corpus; 0: it keeps to nothing."""
    exact = ""
    """The engine whose first ten are what is to be found."""

    def __init__(self, work: Work, folder: Path) -> None:
        self.work, self.folder = work, folder
        self.cores = os.cpu_count() or 1

    def build(self) -> None:
        raise NotImplementedError

    def open(self) -> Search:
        raise NotImplementedError


class OurBm25(Engine):
    """Ours, with all that `mia index build` does."""

    exact, memory_mb = "bm25s", 2000
    name: Any = "bm25"

    def build(self) -> None:
        from local_search.build import build_index

        build_index(self.work.corpus, self.folder / "index", [self.name], workers=self.cores)

    def open(self) -> Search:
        from local_search.bm25 import Bm25
        from local_search.lucene import Lucene

        ranker = (Lucene if self.name == "lucene" else Bm25)(self.folder / "index" / self.name)
        queries = self.work.queries()
        return lambda numbers: ranker.top([queries[number] for number in numbers], DEPTH)


class OurLucene(OurBm25):
    """Ours, on Lucene."""

    needs, exact, name, memory_mb = "pyserini", "pyserini", "lucene", 4000  # Java's heap, and the builder's 2 GB


class OurDense(Engine):
    """Ours, of the kind that `auto` chooses, from ready vectors."""

    vectors, exact = True, "faiss-flat"

    def build(self) -> None:
        from local_search.dense import build_from

        build_from(self.work.vectors(), self.folder)

    def open(self) -> Search:
        from local_search.dense_index import VectorIndex

        index, vectors = VectorIndex(self.folder), self.work.query_vectors()
        return lambda numbers: index.top(vectors[list(numbers)], DEPTH)


class Bm25s(Engine):
    """bm25s alone, as its README shows it, with numba."""

    needs, exact = "numba", "bm25s"

    def build(self) -> None:
        texts = [row.contents for row in self.work.rows()]
        retriever = need("bm25s", "search").BM25(backend="numba")
        retriever.index(self._words(texts, True), show_progress=False)
        retriever.save(self.folder / "index", show_progress=False)

    def open(self) -> Search:
        retriever = need("bm25s", "search").BM25.load(self.folder / "index", mmap=True, show_progress=False)
        retriever.backend = "numba"
        retriever.activate_numba_scorer()
        queries = self.work.queries()

        def search(numbers: Sequence[int]) -> list[Ranked]:
            words = self._words([queries[number] for number in numbers], False)
            rows, scores = retriever.retrieve(words, k=DEPTH, show_progress=False)
            return [list(zip(r.tolist(), s.tolist(), strict=True)) for r, s in zip(rows, scores, strict=True)]

        return search

    def _words(self, texts: list[str], ids: bool) -> Any:
        stemmer = need("Stemmer", "search").Stemmer("english")
        return need("bm25s", "search").tokenize(texts, stemmer=stemmer, return_ids=ids, show_progress=False)


class FaissFlat(Engine):
    """FAISS alone: all vectors, exactly."""

    needs, vectors, exact = "faiss", True, "faiss-flat"

    def build(self) -> None:
        faiss, vectors = need("faiss", "search"), self.work.vectors()
        index = self._empty(faiss, vectors)
        for start in range(0, len(vectors), 65536):
            index.add(np.ascontiguousarray(vectors[start : start + 65536]))
        faiss.write_index(index, str(self.folder / "index.faiss"))

    def open(self) -> Search:
        faiss, vectors = need("faiss", "search"), self.work.query_vectors()
        index = faiss.read_index(str(self.folder / "index.faiss"), faiss.IO_FLAG_MMAP_IFC)
        if hasattr(index, "nprobe"):
            index.nprobe = 32

        def search(numbers: Sequence[int]) -> list[Ranked]:
            scores, rows = index.search(vectors[list(numbers)], DEPTH)
            return [list(zip(r.tolist(), s.tolist(), strict=True)) for r, s in zip(rows, scores, strict=True)]

        return search

    def _empty(self, faiss: Any, vectors: NDArray[np.float32]) -> Any:
        return faiss.IndexFlatIP(vectors.shape[1])


class FaissIvf(FaissFlat):
    """FAISS alone: inverted lists with 8 bits a number, 32 lists asked."""

    def _empty(self, faiss: Any, vectors: NDArray[np.float32]) -> Any:
        cells = 2 ** round(np.log2(4 * np.sqrt(len(vectors))))
        index = faiss.index_factory(vectors.shape[1], f"IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
        some = np.random.default_rng(0).permutation(len(vectors))[: 64 * cells]
        index.train(np.ascontiguousarray(vectors[np.sort(some)]))
        return index


class Pyserini(Engine):
    """pyserini alone, with all cores."""

    needs, exact = "pyserini", "pyserini"

    def build(self) -> None:
        lucene = need("pyserini.index.lucene", "lucene")
        indexer = lucene.LuceneIndexer(str(self.folder / "index"), threads=self.cores)
        rows = self.work.rows()
        while chunk := list(islice(rows, 1000)):
            indexer.add_batch_dict([row._asdict() for row in chunk])
        indexer.close()

    def open(self) -> Search:
        searcher = need("pyserini.search.lucene", "lucene").LuceneSearcher(str(self.folder / "index"))
        queries = self.work.queries()

        def search(numbers: Sequence[int]) -> list[Ranked]:
            if len(numbers) == 1:
                return [[(int(hit.docid), float(hit.score)) for hit in searcher.search(queries[numbers[0]], DEPTH)]]
            names = [str(number) for number in numbers]
            found = searcher.batch_search([queries[number] for number in numbers], names, DEPTH, self.cores)
            return [[(int(hit.docid), float(hit.score)) for hit in found[name]] for name in names]

        return search


ENGINES: dict[str, type[Engine]] = {
    "bm25": OurBm25,
    "bm25s": Bm25s,
    "lucene": OurLucene,
    "pyserini": Pyserini,
    "dense": OurDense,
    "faiss-flat": FaissFlat,
    "faiss-ivf": FaissIvf,
}


# ------------------------------------------------------------------------------------------ the steps


def measured(search: Search) -> dict[str, Any]:
    """Times of single queries and of batches, memory, and the first ten of each query."""
    for number in range(8):
        search([number])
    search(range(BATCH))
    found, seconds = [], []
    for number in range(QUERIES):
        started = time.perf_counter()
        found += search([number])
        seconds.append(time.perf_counter() - started)
    started = time.perf_counter()
    for first in range(0, QUERIES, BATCH):
        search(range(first, first + BATCH))
    batches = time.perf_counter() - started
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "p50_ms": float(np.percentile(seconds, 50)) * 1000,
        "p95_ms": float(np.percentile(seconds, 95)) * 1000,
        "single_qps": QUERIES / sum(seconds),
        "batch_qps": QUERIES / batches,
        "rss_mb": int(status["VmRSS"].split()[0]) * 1024 / 1e6,
        "anon_mb": int(status["RssAnon"].split()[0]) * 1024 / 1e6,
        "found": found,
    }


def size(folder: Path) -> int:
    """Bytes on disk under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def step(what: str, engine: str, work: Work, data: Path) -> dict[str, Any]:
    """Do a step; returns what it measured."""
    if what == "list":
        return {
            name: {"exact": kind.exact, "needs": kind.needs, "vectors": kind.vectors, "memory_mb": kind.memory_mb}
            for name, kind in ENGINES.items()
        }
    if what == "prepare":
        return prepare(work.root, data, work.seed)
    if what == "corpus":
        work.write()
        return {"corpus_mb": size(work.folder) / 1e6}
    folder = work.folder / engine
    if what == "search":
        return measured(ENGINES[engine](work, folder).open())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    started = time.perf_counter()
    ENGINES[engine](work, folder).build()
    return {"build_s": time.perf_counter() - started, "disk_mb": size(folder) / 1e6}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; writes what was measured to `--out`, or prints it."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("what", choices=("list", "prepare", "corpus", "build", "search"))
    args.add_argument("engine", choices=(*ENGINES, "none"))
    args.add_argument("root", type=Path, help="work folder")
    args.add_argument("--passages", type=int, default=20_000)
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--data", type=Path, default=DATA)
    args.add_argument("--out", type=Path)
    given = args.parse_args(argv)
    try:
        made = step(given.what, given.engine, Work(given.root, given.passages, given.seed), given.data)
    except MiaError as error:
        return report(error)
    if given.out is None:
        print(json.dumps(made))
    else:
        part = given.out.with_suffix(".part")
        part.write_text(json.dumps(made))
        part.rename(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
