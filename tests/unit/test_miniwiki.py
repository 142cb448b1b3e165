"""The bundled corpus: counts, truth to its own tables, one answer per question, disjoint splits, stable growth.

Facts and answers are checked against the raw CSV cells, read here with the csv module alone; the generator's own
reading and chain following is not used for that. BM25 stands in for a search engine. No network, no torch.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from local_search import miniwiki
from local_search.miniwiki.__main__ import main
from local_search.miniwiki.facts import SCHEMA, FactError, load
from local_search.miniwiki.forms import BRIDGES, COMPARISONS
from local_search.miniwiki.splits import HUBS

PERSONS = ("scientist", "writer", "composer", "painter", "director", "architect")
PASSAGES = {passage.title: passage.text for passage in miniwiki.passages()}
QUESTIONS = miniwiki.questions()
UNSEEN = {form.id for form in BRIDGES if form.unseen} | {form.id for form in COMPARISONS if form.unseen}


def _raw_tables() -> dict[str, list[dict[str, str]]]:
    """Kind of thing -> its rows as plain dictionaries, articles cut off, dates split into year and full date."""
    raw: dict[str, list[dict[str, str]]] = {}
    for table in SCHEMA:
        text = (miniwiki.TABLES / table.file).read_text(encoding="utf-8").splitlines()
        rows = list(csv.DictReader(line for line in text if not line.startswith("#")))
        for row in rows:
            for column, cell in row.items():
                row[column] = re.sub("^the ", "", cell)
            if "born" in row:
                row["birthdate"] = row["born"]
                row["born"] = row["born"][-4:]
        raw[table.kind] = rows
    return raw


RAW = _raw_tables()
ROWS = {row["name"]: (kind, row) for kind, rows in RAW.items() for row in rows}


def _walk(name: str, path: list[str]) -> str:
    for column in path:
        name = ROWS[name][1][column]
    return name


def _says(text: str, value: str) -> bool:
    """Whether a text holds a value as whole words."""
    return value in text and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def test_counts_and_shares() -> None:
    assert len(PASSAGES) >= 2000
    per_split = Counter(question.split for question in QUESTIONS)
    assert per_split["train"] >= 1500
    assert per_split["dev"] >= 250
    assert per_split["test"] >= 400
    assert sum(q.split == "test" and q.form in UNSEEN for q in QUESTIONS) >= 200
    assert {q.hops for q in QUESTIONS} == {2, 3}
    for split in miniwiki.SPLITS:
        asked = miniwiki.questions(split)
        assert 0.20 <= sum(q.type == "comparison" for q in asked) / len(asked) <= 0.36
        assert 0.09 <= sum(q.answer in ("yes", "no") for q in asked) / len(asked) <= 0.18
        assert 0.12 <= sum(q.hops == 3 for q in asked) / len(asked) <= 0.25
        verdicts = Counter(q.answer for q in asked if q.answer in ("yes", "no"))
        assert 0.3 <= verdicts["yes"] / verdicts.total() <= 0.7


def test_passages_are_short_and_varied() -> None:
    lengths = [len(text.split()) for text in PASSAGES.values()]
    assert min(lengths) >= 38
    assert max(lengths) <= 95
    assert sum(40 <= length <= 90 for length in lengths) / len(lengths) > 0.98
    for kind, rows in RAW.items():
        shapes = {re.sub("|".join(map(re.escape, sorted(_own(row), key=len, reverse=True))), "_", PASSAGES[row["name"]])
                  for row in rows}  # fmt: skip
        assert len(shapes) > 1 or len(rows) == 1, kind


def _own(row: dict[str, str]) -> list[str]:
    return [cell for cell in row.values() if cell]


def test_every_table_says_what_kind_of_source_it_has() -> None:
    for table in SCHEMA:
        head = (miniwiki.TABLES / table.file).read_text(encoding="utf-8").split("\nname,")[0]
        assert "# Kind of source: " in head, table.file


def test_every_passage_states_its_table_facts() -> None:
    for rows in RAW.values():
        for row in rows:
            for column, cell in row.items():
                if not cell:
                    continue
                assert cell in PASSAGES[row["name"]], (row["name"], column, cell)


def test_no_passage_contradicts_a_table() -> None:
    """Names of other records, and years, stand in a passage only where a table links the two."""
    neighbours: dict[str, set[str]] = {name: set() for name in ROWS}
    for name, (_, row) in ROWS.items():
        for cell in row.values():
            if cell in ROWS:
                neighbours[name].add(cell)
                neighbours[cell].add(name)
    # places and persons are the things a passage could wrongly tie to its subject
    kinds = {"country", "city", "museum", *PERSONS}
    names = sorted((name for name, (kind, _) in ROWS.items() if kind in kinds), key=len, reverse=True)
    pattern = re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, names)) + r")(?!\w)")
    for name, text in PASSAGES.items():
        own = " | ".join(_own(ROWS[name][1])) + " | " + " | ".join(neighbours[name])
        for found in set(pattern.findall(text)):
            assert found == name or found in neighbours[name] or found in own, (name, found)
        for year in set(re.findall(r"(?<!\d)[12]\d{3}(?!\d)", text)):
            assert year in own, (name, year)


def test_each_capital_is_claimed_by_one_country_only() -> None:
    capitals = {row["capital"]: row["name"] for row in RAW["country"] if row["capital"]}
    for row in RAW["city"]:
        claim = re.search(r"(?:is |, )the capital of (?:the )?([^,.]+?)(?:,|\.)", PASSAGES[row["name"]])
        assert (claim.group(1) if claim else None) == capitals.get(row["name"]), row["name"]
        if row["name"] in capitals:
            assert row["country"] == capitals[row["name"]]


def test_gold_chains_are_literal() -> None:
    for question in QUESTIONS:
        assert question.supporting_titles == tuple(step.title for step in question.steps)
        assert question.hops == len(question.steps)
        assert question.answer == question.answers[0]
        for step in question.steps:
            assert _says(PASSAGES[step.title], step.finding), question.id
        if question.type == "bridge":
            assert question.answer == question.steps[-1].finding
            assert question.answer.lower() not in question.question.lower()
            for step, following in zip(question.steps, question.steps[1:], strict=False):
                assert step.finding == following.title
        elif question.answer not in ("yes", "no"):
            assert any(_says(PASSAGES[title], question.answer) for title in question.supporting_titles)


def _named(question_text: str, kinds: tuple[str, ...], column: str) -> list[str]:
    """All rows of some kinds whose cell stands in the question, longest cells only (brute force over the tables)."""
    hits = [(row[column], row["name"]) for kind in kinds for row in RAW[kind] if row[column]]
    hits = [(cell, name) for cell, name in hits if _says(question_text, cell)]
    return [name for cell, name in hits if not any(cell != other and cell in other for other, _ in hits)]


@pytest.mark.parametrize("form", [form.id for form in BRIDGES])
def test_bridge_questions_have_exactly_one_answer(form: str) -> None:
    head, *path = form.split("-")
    kind, _, by = head.rstrip(")").partition("(")
    kinds = PERSONS if kind == "person" else (kind,)
    for question in (q for q in QUESTIONS if q.form == form):
        starts = _named(question.question, kinds, by or "name")
        answers = {_walk(start, path) for start in starts}
        assert answers == {question.answer}, (question.question, starts)


@pytest.mark.parametrize("form", [form.id for form in COMPARISONS])
def test_comparison_questions_have_exactly_one_answer(form: str) -> None:
    for question in (q for q in QUESTIONS if q.form == form):
        titles, values = _sides(question.question, form)
        left, right = values
        if form.endswith("-same"):
            expected = "yes" if left == right else "no"
        elif form == "born-before-died":
            assert left != right
            expected = "yes" if int(left) < int(right) else "no"
        else:
            assert left != right
            first = 0 if int(left) < int(right) else 1
            expected = titles[first if form.endswith("-earlier") else 1 - first]
        assert question.answer == expected, question.question


def _sides(text: str, form: str) -> tuple[list[str], list[str]]:
    """The two names a comparison asks about, in order of the text, and their raw values."""
    kind = form.split("-")[0]
    kinds = PERSONS if kind in ("person", "born") else (kind,)
    both = form in ("novel-author-born-earlier", "film-director-born-earlier")
    if both:
        kinds = (*kinds, "writer" if kind == "novel" else "director")
    named = [(text.index(name), name) for k in kinds for name in (r["name"] for r in RAW[k]) if _says(text, name)]
    named = [(at, n) for at, n in named if not any(n != other and n in other for _, other in named)]
    names = [name for _, name in sorted(named)]
    assert len(names) == 2, (text, names)
    if both:
        people = [_walk(names[0], [form.split("-")[1]]), names[1]]
        return people, [ROWS[person][1]["born"] for person in people]
    if form == "born-before-died":
        return names, [ROWS[names[0]][1]["died"], ROWS[names[1]][1]["born"]]
    return names, [ROWS[name][1][form.split("-")[1]] for name in names]


def test_texts_and_ids_are_unique() -> None:
    assert not [text for text, count in Counter(q.question for q in QUESTIONS).items() if count > 1]
    assert not [id_ for id_, count in Counter(q.id for q in QUESTIONS).items() if count > 1]
    ids = [passage.id for passage in miniwiki.passages()]
    assert len(set(ids)) == len(ids)


def test_splits_share_no_passage_and_test_forms_are_unseen() -> None:
    read = {
        split: {title for q in miniwiki.questions(split) for title in q.supporting_titles if ROWS[title][0] not in HUBS}
        for split in miniwiki.SPLITS
    }
    assert not read["train"] & read["test"]
    assert not read["train"] & read["dev"]
    assert not read["dev"] & read["test"]
    forms = {split: {q.form for q in miniwiki.questions(split)} for split in miniwiki.SPLITS}
    assert not (forms["train"] | forms["dev"]) & UNSEEN
    assert forms["test"] >= UNSEEN


def test_test_only_wordings_stay_out_of_train() -> None:
    with (miniwiki.TABLES / "wordings.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    held_out = [re.split(r"\{\w+\}", row["wording"]) for row in rows if row["split"] == "test"]
    patterns = [re.compile(".+".join(map(re.escape, parts))) for parts in held_out]
    assert len(patterns) > 40
    for question in QUESTIONS:
        if question.split != "test":
            assert not any(pattern.fullmatch(question.question) for pattern in patterns), question.question


def test_files_are_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    rows = miniwiki.write(here)
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    command = [sys.executable, "-m", "local_search.miniwiki", "--out", str(there), "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert json.loads(ran.stdout)["rows"] == rows
    assert rows.keys() == {file.name for file in there.iterdir()}
    for name in rows:
        assert (here / name).read_bytes() == (there / name).read_bytes()
    row = json.loads((here / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert row["contents"].startswith('"Austria"\nAustria')
    line = (here / "questions.test.jsonl").read_text(encoding="utf-8").splitlines()[0]
    assert set(json.loads(line)) == {
        "id",
        "question",
        "answer",
        "answers",
        "type",
        "hops",
        "form",
        "split",
        "supporting_titles",
        "steps",
    }


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A copy of the tables to write into."""
    return Path(shutil.copytree(miniwiki.TABLES, tmp_path / "tables"))


def _append(folder: Path, file: str, row: str) -> int:
    """Adds a row and returns its line number."""
    path = folder / file
    text = path.read_text(encoding="utf-8") + row + "\n"
    path.write_text(text, encoding="utf-8")
    return len(text.splitlines())


def test_new_rows_give_new_passages_and_questions_and_move_no_others(tables: Path) -> None:
    _append(tables, "cities.csv", "Eisenstadt,Austria,,Esterházy Palace")
    _append(tables, "composers.csv", "Test Composer,Eisenstadt,1 April 1801,1861")
    _append(tables, "compositions.csv", "The Test Opera,Test Composer,opera,1831,Eisenstadt")
    grown = miniwiki.passages(tables)
    assert {p.title for p in grown} - PASSAGES.keys() == {"Eisenstadt", "Test Composer", "The Test Opera"}
    assert {p.title: p.id for p in miniwiki.passages()}.items() <= {p.title: p.id for p in grown}.items()
    after = {q.id: q for q in miniwiki.questions(tables=tables)}
    for question in QUESTIONS:
        assert after.pop(question.id) == question
    added = {q.form for q in after.values()}
    assert {"composition-composer-birthplace", "composition-composer-born"} <= added
    assert all({"Eisenstadt", "Test Composer", "The Test Opera"} & set(q.supporting_titles) for q in after.values())


@pytest.mark.parametrize(
    ("file", "row", "column", "words"),
    [
        ("cities.csv", "Nowhere,Atlantis,,", "country", "no country is named 'Atlantis'"),
        ("cities.csv", "Vienna,Austria,,", "name", "titles are unique"),
        ("cities.csv", "Nowhere,,,", "country", "the cell is empty"),
        ("cities.csv", "Nowhere,Austria,", "landmark", "3 cells where 4 are expected"),
        ("films.csv", "Some Film,Fritz Lang,soon", "year", "not a whole number"),
        ("writers.csv", "Some Writer,Vienna,31 Smarch 1900,1950,", "born", "neither a year nor"),
        ("museums.csv", "the Some Museum,Danube", "city", "no city is named 'Danube'"),
        ("novels.csv", ",Jane Austen,1813,English,", "name", "no name"),
    ],
)
def test_a_bad_row_is_refused_by_file_line_and_column(
    tables: Path, file: str, row: str, column: str, words: str
) -> None:
    line = _append(tables, file, row)
    with pytest.raises(FactError, match=re.escape(f"{file}:{line}:{column}: ")) as caught:
        load(tables)
    assert words in str(caught.value)


def test_wording_files_are_checked_too(tables: Path) -> None:
    line = _append(tables, "wordings.csv", "no-such-form,any,What?")
    with pytest.raises(FactError, match=rf"wordings.csv:{line}:form: "):
        miniwiki.questions(tables=tables)
    line = _append(tables, "sentences.csv", "ghost,closing,Boo.")
    with pytest.raises(FactError, match=rf"sentences.csv:{line}:kind: "):
        miniwiki.passages(tables)


def test_command_line_reports_rows_and_refuses_bad_tables(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(tmp_path / "out")]) == 0
    assert "corpus.jsonl" in capsys.readouterr().out
    _append(tables, "cities.csv", "Nowhere,Atlantis,,")
    assert main(["--out", str(tmp_path / "out"), "--tables", str(tables)]) == 1
    assert "cities.csv" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "examples:" in capsys.readouterr().out


def test_bm25_finds_the_gold_passages() -> None:
    bm25s = pytest.importorskip("bm25s")
    titles = [passage.title for passage in miniwiki.passages()]
    index = bm25s.BM25()
    corpus = bm25s.tokenize([p.contents for p in miniwiki.passages()], stopwords="en", show_progress=False)
    index.index(corpus, show_progress=False)
    sample = QUESTIONS[::4]  # keeps the test quick
    queries = sorted({step.query for question in sample for step in question.steps})
    tokens = bm25s.tokenize(queries, stopwords="en", show_progress=False)
    rows, _ = index.retrieve(tokens, k=3, show_progress=False)
    top = {query: {titles[int(at)] for at in row} for query, row in zip(queries, rows, strict=True)}
    first = [step.title in top[step.query] for q in sample for step in q.steps[:1]]
    later = [step.title in top[step.query] for q in sample for step in q.steps[1:]]
    assert sum(first) / len(first) >= 0.97
    assert sum(later) / len(later) >= 0.97
