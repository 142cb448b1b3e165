"""The engine on small corpora: reach, ties, bounds, odd texts, batches."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from local_search.bm25 import tokenize
from local_search.build import build_index
from local_search.config import Mode, SearchConfig
from local_search.encoder import MiniLM
from local_search.engine import SearchEngine
from local_search.index import EngineName
from local_search.open import open_search
from mia.errors import ConfigError, DataError, ToolError

MODES: tuple[Mode, ...] = ("bm25", "dense", "hybrid")


ENCODER = MiniLM()  # loads itself when first used, once for all tests


def index_of(tmp_path: Path, contents: Sequence[str], engines: Sequence[EngineName] = ("bm25",)) -> Path:
    corpus = tmp_path / "corpus.jsonl"
    rows = (json.dumps({"id": str(n), "contents": text}) for n, text in enumerate(contents))
    corpus.write_text("\n".join(rows), encoding="utf-8")
    build_index(corpus, tmp_path / "index", engines, encoder=ENCODER)
    return tmp_path / "index"


def opened(folder: Path, mode: Mode = "hybrid") -> SearchEngine:
    return SearchEngine.open(folder, mode, ENCODER)


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return index_of(
        tmp_path_factory.mktemp("birds"),
        [
            '"Kingfisher"\nA bird that dives for fish in rivers.',
            '"Owl"\nA bird that hunts mice at night.',
            '"Emu"\nA tall bird of Australia that cannot fly.',
            '"Granite"\nA coarse igneous rock.',
        ],
        ("bm25", "dense"),
    )


async def ids(engine: SearchEngine, query: str, k: int = 5) -> list[str]:
    return [hit.passage.id for hit in (await engine.search([query], k))[0]]


# ------------------------------------------------------------------------------------------ hits


@pytest.mark.parametrize("mode", MODES)
async def test_hits_carry_passage_rank_and_backend(birds: Path, mode: Mode) -> None:
    engine = opened(birds, mode)
    [[first, *others]] = await engine.search(["Which bird hunts mice at night?"], 3)
    assert (first.passage.id, first.passage.title) == ("1", "Owl")
    assert first.passage.text == "A bird that hunts mice at night."
    assert engine.name == first.backend == f"local/{mode}"
    assert [hit.rank for hit in (first, *others)] == [1, 2, 3]
    assert first.score > others[0].score >= others[1].score


async def test_mode_of_a_search_goes_before_that_of_the_engine(birds: Path) -> None:
    engine = opened(birds, "bm25")
    [[hit]] = await engine.search(["granite"], 5)
    assert hit.backend == "local/bm25"
    [hits] = await engine.search(["granite"], 5, "dense")
    assert (len(hits), hits[0].backend, hits[0].passage.title) == (4, "local/dense", "Granite")


async def test_meaning_is_found_without_a_shared_word(birds: Path) -> None:
    question = "Which animal feeds on rodents after dark?"
    assert await ids(opened(birds, "bm25"), question) == []
    assert (await ids(opened(birds, "dense"), question))[0] == "1"
    assert (await ids(opened(birds, "hybrid"), question))[0] == "1"


@pytest.mark.parametrize("mode", MODES)
async def test_k_beyond_the_corpus_gives_all_there_is(birds: Path, mode: Mode) -> None:
    [hits] = await opened(birds, mode).search(["bird fish mice rock"], 1000)
    assert sorted(hit.passage.id for hit in hits) == ["0", "1", "2", "3"]


async def test_no_queries_no_results(birds: Path) -> None:
    assert await opened(birds).search([], 3) == []


@pytest.mark.parametrize("mode", MODES)
async def test_result_of_a_batch_is_that_of_the_query_alone(birds: Path, mode: Mode) -> None:
    engine = opened(birds, mode)
    queries = ["tall bird", "rock", "a much longer question about birds that dive for fish in rivers", "tall bird"]
    batch = await engine.search(queries, 3)
    assert batch == [(await engine.search([query], 3))[0] for query in queries]
    assert batch[0] == batch[3]
    assert batch[0] != batch[1] != batch[2]


async def test_searches_at_once_do_not_mix(birds: Path) -> None:
    engine = opened(birds)
    queries = ["owl", "emu", "kingfisher", "granite"] * 5
    results = await asyncio.gather(*(engine.search([query], 1) for query in queries))
    assert [result[0][0].passage.title.lower() for result in results] == queries


# ------------------------------------------------------------------------------------------ every row, every word


async def test_every_row_is_reached_by_its_own_word_and_ties_stay_in_corpus_order(tmp_path: Path) -> None:
    """bm25s numbers words from 0; the first one is as good a word as any (xhluca/bm25s#127)."""
    texts = ["zebra", "yak", "gnu", "grazing ibex", "grazing kudu", "grazing eland"]
    engine = opened(index_of(tmp_path, texts), "bm25")
    for number, text in enumerate(texts):
        assert (await ids(engine, text.split()[-1]))[0] == str(number)
    [hits] = await engine.search(["grazing"], 5)
    assert [hit.passage.id for hit in hits] == ["3", "4", "5"]
    assert len({hit.score for hit in hits}) == 1
    assert hits[0].score > 0
    assert await ids(engine, "grazing", k=2) == ["3", "4"]


async def test_equal_passages_rank_in_corpus_order(tmp_path: Path) -> None:
    texts = ["filler about stones", "the same words", "other filler", *["the same words"] * 6]
    folder = index_of(tmp_path, texts, ("bm25", "dense"))
    for mode in MODES:
        assert await ids(opened(folder, mode), "the same words", 4) == ["1", "3", "4", "5"]


async def test_words_the_corpus_does_not_have_find_nothing(tmp_path: Path) -> None:
    engine = opened(index_of(tmp_path, ["a walk in the park"]), "bm25")
    for query in ("zyzzyva", "the", "!?", "a", "\u200b"):
        assert await ids(engine, query) == []


async def test_corpus_without_any_word_can_be_searched(tmp_path: Path) -> None:
    engine = opened(index_of(tmp_path, ["?", "!"], ("bm25", "dense")), "bm25")
    assert await ids(engine, "anything") == []
    [hits] = await engine.search(["anything"], 5, "hybrid")
    assert sorted(hit.passage.id for hit in hits) == ["0", "1"]


async def test_rows_with_line_separators_are_whole_and_found(tmp_path: Path) -> None:
    towns = ["Bonn", "Kiel", "Ulm", "Trier"]
    marks = ["\u2028", "\u2029", "\u0085", "\x0b"]
    texts = [f'"T"\nLeft{mark}right near {town}.' for mark, town in zip(marks, towns, strict=True)]
    engine = opened(index_of(tmp_path, texts), "bm25")
    assert engine.manifest.passages == 4
    for number, town in enumerate(towns):
        [[found]] = await engine.find([town], 5)
        assert found.row == (str(number), texts[number])


async def test_odd_unicode_is_found(tmp_path: Path) -> None:
    found_by = {
        "Se\u0301ance in Málaga": "séance",  # composed and decomposed accents are one
        "Café in Orléans": "cafe\u0301 orle\u0301ans",
        "ΑΘΗΝΑ is Athens": "αθηνα",
        "Стокгольм on the water": "стокгольм",
        "東京 is Tokyo": "東京",
        "مرحبا means hello": "مرحبا",
        "the emoji 🦉 flock2": "🦉 flock2",
        "nul\x00byte word": "nul\x00byte",
        "the Straße": "straße",
    }
    folder = index_of(tmp_path, list(found_by), ("bm25", "dense"))
    for mode in MODES:
        results = await opened(folder, mode).search(list(found_by.values()), 1)
        assert [hits[0].passage.text for hits in results] == list(found_by)


def test_words_are_stemmed_lower_case_and_without_stop_words() -> None:
    assert tokenize(["The RIVERS are flowing, in a C major!", "", "the"]) == [["river", "flow", "major"], [], []]


# ------------------------------------------------------------------------------------------ bounds


@pytest.mark.parametrize("blank", ["", " ", "\n\t", "\u00a0\u2003"])
async def test_blank_query_is_named_by_its_index(birds: Path, blank: str) -> None:
    with pytest.raises(DataError, match=r"queries\[1\] is blank") as caught:
        await opened(birds, "bm25").search(["owl", blank], 3)
    assert caught.value.code == "blank_query"


@pytest.mark.parametrize("k", [0, -1, 1001])
async def test_k_out_of_bounds_is_refused(birds: Path, k: int) -> None:
    with pytest.raises(DataError, match=f"k is {k}") as caught:
        await opened(birds, "bm25").search(["owl"], k)
    assert caught.value.code == "bad_k"


async def test_long_query_is_refused_and_the_longest_is_not(birds: Path) -> None:
    engine = opened(birds, "hybrid")
    [hits] = await engine.search(["owl " * 1000], 1)
    assert hits[0].passage.title == "Owl"
    with pytest.raises(DataError, match=r"queries\[0\] has 4001 characters") as caught:
        await engine.search(["x" * 4001], 1)
    assert caught.value.code == "long_query"


async def test_mode_without_its_engine_is_refused_with_the_command_to_build_it(tmp_path: Path) -> None:
    folder = index_of(tmp_path, ["some text"])
    with pytest.raises(DataError, match="no dense engine") as caught:
        opened(folder, "hybrid")
    assert caught.value.code == "no_engine"
    assert "--engines bm25,dense" in caught.value.remedy
    with pytest.raises(DataError, match="no dense engine"):
        await opened(folder, "bm25").search(["text"], 1, "dense")


async def test_closed_engine_answers_no_more(birds: Path) -> None:
    engine = opened(birds, "bm25")
    assert not engine.ready
    engine.warm()
    assert engine.ready
    await engine.aclose()
    assert not engine.ready
    with pytest.raises(ToolError, match="closed") as caught:
        await engine.search(["owl"], 1)
    assert caught.value.code == "closed"


@pytest.mark.parametrize(("module", "package"), [("bm25s", "bm25s"), ("Stemmer", "Stemmer"), ("faiss", "faiss")])
async def test_missing_package_is_told_with_the_extra(
    birds: Path, monkeypatch: pytest.MonkeyPatch, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # importing it fails, as where it is not installed
    with pytest.raises(ConfigError, match=f"package {package} is not installed") as caught:
        await opened(birds).search(["owl"], 1)
    assert caught.value.code == "missing_extra"
    assert caught.value.remedy == "pip install -e '.[search]' -c constraints.txt"


async def test_open_search_opens_an_index_folder(birds: Path) -> None:
    backend = open_search(SearchConfig(index=birds, mode="bm25"))
    assert [hit.passage.title for hit in (await backend.search(["emu"], 1))[0]] == ["Emu"]
    await backend.aclose()


# ------------------------------------------------------------------------------------------ any text


@given(st.text(min_size=1, max_size=300))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_query_is_answered_or_refused(birds: Path, query: str) -> None:
    if query.strip():
        [hits] = asyncio.run(opened(birds).search([query], 3))
        assert len(hits) == 3
    else:
        with pytest.raises(DataError):
            asyncio.run(opened(birds).search([query], 3))


_ANY = st.text(st.characters(codec="utf-8"), max_size=60)


@given(st.lists(_ANY, min_size=1, max_size=4), _ANY)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_found_by_a_word_of_it_and_comes_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], title: str
) -> None:
    title = title.replace("\n", " ")
    contents = [f'"{title}"\n{text} marker{number}' for number, text in enumerate(texts)]
    engine = opened(index_of(tmp_path_factory.mktemp("any"), contents), "bm25")
    for number, text in enumerate(texts):
        [[found, *_]] = asyncio.run(engine.find([f"marker{number}"], 2))
        assert found.row == (str(number), contents[number])
        [[hit, *_]] = asyncio.run(engine.search([f"marker{number}"], 2))
        assert (hit.passage.title, hit.passage.text) == (title, f"{text} marker{number}")
