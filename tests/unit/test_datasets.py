"""Loaders of text benchmarks: each reads its released form, values written by hand; bad rows are named and counted."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from inference.datasets import NAMES, Columns, Dataset, DatasetConfig, load_dataset
from inference.datasets.load import LOADERS
from local_search import miniwiki
from mia.config import Config, load
from mia.errors import ConfigError, DataError
from mia.examples import Example, Reference
from mia.types import Question

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "datasets"


def read(name: str, file: str, **settings: object) -> Dataset:
    return load_dataset(DatasetConfig.model_validate({"name": name, "path": FIXTURES / file, **settings}))


def faults(dataset: Dataset) -> list[str]:
    """The faults without their folder."""
    return [str(fault).removeprefix(f"{FIXTURES}/") for fault in dataset.faults]


def test_hotpotqa_official() -> None:
    dataset = read("hotpotqa", "hotpotqa.json")
    assert dataset.examples == (
        Example(
            question=Question(id="hq1", text="Were Ada Quill and Bo Rivet born in the same town?"),
            reference=Reference(answers=("yes",)),
            source="hotpotqa",
            type="comparison",
            level="easy",
            supporting_titles=("Ada Quill", "Bo Rivet"),
        ),
        Example(
            question=Question(id="hq2", text="Which lake lies north of the town where Ada Quill was born?"),
            reference=Reference(answers=("Lake Örm",)),
            source="hotpotqa",
            type="bridge",
            level="hard",
            supporting_titles=("Ada Quill", "Larkton"),
        ),
    )
    assert faults(dataset) == [
        "hotpotqa.json, item 3, field question: blank",
        "hotpotqa.json, item 4, field answer: missing",
        "hotpotqa.json, item 5, field id: 'hq1' is the id of hotpotqa.json, item 1 already",
        "hotpotqa.json, item 6: a string where an object belongs",
        "hotpotqa.json, item 7, field supporting_facts: not a list of [title, sentence number]",
    ]
    assert dataset.counts.model_dump() == {"rows": 7, "examples": 2, "faults": 5, "left_out": {}}
    assert dataset.sha256 == hashlib.sha256((FIXTURES / "hotpotqa.json").read_bytes()).hexdigest()
    assert (dataset.name, dataset.version) == ("hotpotqa", "1")


def test_hotpotqa_short_form_counts_lines_of_the_file() -> None:
    dataset = read("hotpotqa", "hotpotqa_short.jsonl")
    assert [example.question.id for example in dataset.examples] == ["s1", "s2", "s3"]
    assert dataset.examples[0].supporting_titles == ("The Tin Heron", "Ada Quill")
    assert [example.reference.answers for example in dataset.examples[1:]] == [("1402",), ("1610",)]
    assert faults(dataset) == [
        "hotpotqa_short.jsonl, line 5: not JSON: Expecting value (column 46)",
        "hotpotqa_short.jsonl, line 6, field question: missing",
    ]


def test_hotpotqa_of_search_r1() -> None:
    (example,) = read("hotpotqa", "flashrag_hotpotqa.jsonl").examples
    assert example == Example(
        question=Question(id="dev_0", text="Were Ada Quill and Bo Rivet both painters?"),
        reference=Reference(answers=("no",)),
        source="hotpotqa",
        type="comparison",
        level="hard",
        supporting_titles=("Ada Quill", "Bo Rivet"),
    )


def test_2wikimultihopqa() -> None:
    dataset = read("2wikimultihopqa", "2wikimultihopqa.json")
    (example,) = dataset.examples
    assert (example.question.id, example.type, example.level) == ("2w1", "bridge_comparison", "")
    assert example.reference.answers == ("Grey Tide",)
    assert example.supporting_titles == ("Grey Tide", "Night Loom", "Ada Quill", "Cy Marsh")
    assert faults(dataset) == ["2wikimultihopqa.json, item 2, field answer: blank"]


def test_search_r1() -> None:
    dataset = read("nq", "nq.jsonl")
    assert [(e.question.id, e.question.text, e.reference.answers) for e in dataset.examples] == [
        ("test_0", "who wrote the song tin heron", ("Dee Cole", "D. Cole")),
        ("test_1", "when was larkton founded", ("1402",)),
    ]
    assert faults(dataset) == ["nq.jsonl, line 3, field golden_answers: blank"]
    dataset = read("popqa", "popqa.jsonl")
    assert [(e.question.id, e.type, e.reference.answers) for e in dataset.examples] == [
        ("test_0", "occupation", ("sailor", "mariner")),
        ("7", "", ("Larkton",)),
    ]
    assert faults(dataset) == [
        "popqa.jsonl, line 3, field golden_answers: an object where a text or a number belongs",
    ]
    (example,) = read("musique", "musique.jsonl").examples
    assert example.supporting_titles == ("Ada Quill", "Larkton")
    assert {read(name, "nq.jsonl").name for name in ("triviaqa", "bamboogle")} == {"triviaqa", "bamboogle"}


def test_simpleqa() -> None:
    dataset = read("simpleqa", "simpleqa.csv")
    rows = [(e.question.id, e.question.text, e.reference.answers, e.category, e.type) for e in dataset.examples]
    assert rows == [
        ("simpleqa-0", 'Who painted "The Tin Heron", in 1931?', ("Ada Quill",), "Art", "Person"),
        ("simpleqa-1", "How deep, in metres,\nis Lake Örm?", ("212",), "Geography", "Number"),
        ("simpleqa-5", "Where was Ada Quill born?", ("Larkton",), "", ""),
    ]
    assert faults(dataset) == [  # the second record takes lines 3 and 4
        "simpleqa.csv, line 5, field answer: blank",
        "simpleqa.csv, line 6, field metadata: not a Python literal: '{' was never closed (<unknown>, line 1)",
        "simpleqa.csv, line 7: 4 columns where the first line names 3",
    ]


def test_gaia_leaves_questions_with_files_out_and_counts_them() -> None:
    dataset = read("gaia", "gaia.jsonl")
    (example,) = dataset.examples
    assert (example.question.id, example.level, example.reference.answers) == ("g-1", "1", ("3",))
    assert faults(dataset) == [
        "gaia.jsonl, line 3, field Final answer: no public answer ('?')",
        "gaia.jsonl, line 4, field task_id: missing",
    ]
    assert dataset.counts.model_dump() == {
        "rows": 4,
        "examples": 1,
        "faults": 2,
        "left_out": {"comes with a file": 1},
    }
    (example,) = read("gaia", "gaia_webthinker.json").examples
    assert (example.question.id, example.level, example.reference.answers) == ("g-9", "2", ("a heron",))


def test_miniwiki_is_bundled(tmp_path: Path) -> None:
    dataset = load_dataset(DatasetConfig())
    wanted = miniwiki.questions("test")
    assert len(dataset.examples) == dataset.counts.rows == len(wanted)
    example, question = dataset.examples[0], wanted[0]
    assert example == Example(
        question=Question(id=question.id, text=question.question),
        reference=Reference(answers=question.answers),
        source="miniwiki",
        type=question.type,
        level="1 hop" if question.hops == 1 else f"{question.hops} hops",
        supporting_titles=question.supporting_titles,
    )
    miniwiki.write(tmp_path)
    for split in ("train", "dev", "test"):
        written = (tmp_path / f"questions.{split}.jsonl").read_bytes()
        assert load_dataset(DatasetConfig(split=split)).sha256 == hashlib.sha256(written).hexdigest()


def test_any_file_by_a_column_map() -> None:
    columns = {"id": "qid", "question": "meta.text", "answers": "gold", "images": "pics", "caption": "seen"}
    columns |= {"category": "meta.topic", "supporting_titles": "titles"}
    dataset = read("jsonl", "own.jsonl", columns=columns)
    first, second = dataset.examples
    assert dataset.name == first.source == "own"
    assert first.question.text == "Which bird is on the Larkton flag?"
    assert first.question.caption == "A flag."
    assert first.question.images[0].startswith("data:image/png;base64,iVBORw0KGgo")
    assert first.reference.answers == ("heron", "a heron")
    assert (first.category, first.supporting_titles) == ("flags", ("Larkton",))
    assert second.question.images == ("https://example.org/blue.png",)
    assert second.modality == "text-image"
    assert faults(dataset) == [
        f"own.jsonl, line 3, field pics: ../../secret.png lies outside {FIXTURES / 'images'}",
        "own.jsonl, line 4, field meta.text: missing",
    ]


def test_choices_by_a_column_map() -> None:
    dataset = read("jsonl", "own_choices.jsonl", columns={"choices": "options", "choice": "right"})
    first, second = dataset.examples
    assert first.question.text == (
        "Which bird is on the flag?\n\nA. Grey heron\nB. C. elegans\nC. Owl\n\n"
        "Answer with the letter of the right option."
    )
    assert first.choices == ("Grey heron", "C. elegans", "Owl")
    assert first.reference == Reference(answers=("heron", "Grey heron"), choice="A")
    assert second.choices == ("Carp", "Pike")
    assert second.reference == Reference(answers=("pike", "Pike"), choice="B")
    assert faults(dataset) == [
        "own_choices.jsonl, line 3, field options: some options have letters and others do not",
        "own_choices.jsonl, line 4, field right: 'C' is the letter of none of the 2 options",
        "own_choices.jsonl, line 5, field options: 1 options; a question has 2 to 26",
        "own_choices.jsonl, line 6, field options: the letters of the options are B, A",
    ]


def test_without_an_id_column_the_place_is_the_id() -> None:
    dataset = read("jsonl", "hotpotqa_short.jsonl", columns={"id": ""})
    assert [example.question.id for example in dataset.examples] == ["1", "2", "3"]


@pytest.mark.parametrize(("ending", "module"), [("gz", gzip), ("bz2", bz2)])
@pytest.mark.parametrize("file", ["hotpotqa.json", "hotpotqa_short.jsonl"])
def test_compressed_files_give_the_same_examples(tmp_path: Path, ending: str, module: object, file: str) -> None:
    packed = tmp_path / f"{file}.{ending}"
    packed.write_bytes(module.compress((FIXTURES / file).read_bytes()))  # type: ignore[attr-defined]
    dataset = load_dataset(DatasetConfig(name="hotpotqa", path=packed))
    assert dataset.examples == read("hotpotqa", file).examples
    assert dataset.sha256 == hashlib.sha256(packed.read_bytes()).hexdigest()


def test_what_only_programs_see_is_read_over(tmp_path: Path) -> None:
    """Byte order mark, carriage returns, blank lines, U+2028 within a text, a lone surrogate, no last line end."""
    file = tmp_path / "q.jsonl"
    row = '{"id": "a", "question": "one\u2028two \\ud83d", "answer": "x"}'
    file.write_bytes(b"\xef\xbb\xbf\r\n \r\n" + row.encode() + b'\r\n{"id": "b", "question": "q", "answer": "y"}')
    dataset = load_dataset(DatasetConfig(name="hotpotqa", path=file))
    assert [example.question.text for example in dataset.examples] == ["one\u2028two \ufffd", "q"]
    file.write_bytes(b'{"id": "a", "question": "q", "answer": "x"}\n{"id": "b", "question": "\xff", "answer": "x"}\n')
    dataset = load_dataset(DatasetConfig(name="hotpotqa", path=file))
    assert [str(fault) for fault in dataset.faults] == [f"{file}, line 2: byte 26 is not UTF-8"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "q.json",
            b'[{"_id": "a", "question": "q", "answer": "x"}, {"_id"',
            "after item 1: parse error: premature EOF",
        ),
        ("q.json", b'[{"_id": "a", "question": "q", "answer": NaN}]', "lexical error: invalid char"),
        (
            "q.jsonl.gz",
            gzip.compress(b'{"id": "a", "question": "q", "answer": "x"}\n' * 99)[:-9],
            "ended before the end",
        ),
        ("q.csv", b'metadata,problem,answer\n,q,a\n,"q,a\n', "after line 2: unexpected end of data"),
        ("q.csv", b"metadata,problem,answer\n,\xff,a\n", "codec can't decode byte 0xff"),
        ("q.parquet", b"PAR1 and nothing more", "Parquet magic bytes not found"),
    ],
    ids=["cut array", "NaN in an array", "cut gzip", "cut CSV", "CSV not UTF-8", "cut Parquet"],
)
def test_a_file_that_cannot_be_read_to_its_end_is_an_error(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    """What could be read would be another, smaller benchmark."""
    (tmp_path / name).write_bytes(content)
    dataset = "simpleqa" if "csv" in name else "hotpotqa"
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(DatasetConfig(name=dataset, path=tmp_path / name))
    assert caught.value.code == "unreadable_dataset"
    assert str(tmp_path / name) in caught.value.message


def test_nothing_usable_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read("simpleqa", "nq.jsonl")
    file = FIXTURES / "nq.jsonl"
    assert caught.value.message.splitlines() == [
        f"simpleqa: none of 3 rows of {file} can be used",
        *(f"{file}, line {line}, field problem: missing" for line in (1, 2, 3)),
    ]
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(DataError, match="none of 0 rows"):
        load_dataset(DatasetConfig(name="nq", path=empty))
    with pytest.raises(DataError, match="no file or folder"):
        load_dataset(DatasetConfig(name="nq", path=tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match="a folder without Parquet files"):
        load_dataset(DatasetConfig(name="nq", path=tmp_path))


def test_strict_refuses_any_fault() -> None:
    with pytest.raises(DataError, match=r"5 faults in 7 rows.*\n.*item 3, field question: blank\n"):
        read("hotpotqa", "hotpotqa.json", strict=True)
    assert len(read("musique", "musique.jsonl", strict=True).examples) == 1


def test_only_the_first_faults_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"id": 1}\n' * 8)
    with pytest.raises(DataError, match="line 5, field question: missing\n… and 3 more"):
        load_dataset(DatasetConfig(name="nq", path=file))


class _Config(Config):
    dataset: DatasetConfig = DatasetConfig()


def test_settings(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[dataset]\nname = "HotpotQA"\n')
    with pytest.raises(ConfigError, match=r"dataset.name: .*no dataset 'HotpotQA'; did you mean 'hotpotqa'\?"):
        load(_Config, file)
    file.write_text('[dataset.columns]\nanswer = "gold"\n')
    with pytest.raises(ConfigError, match=r"dataset.columns.answer: unknown key; did you mean 'answers'\?"):
        load(_Config, file)
    with pytest.raises(ValidationError, match="known: 2wikimultihopqa, bamboogle"):
        DatasetConfig(name="zzz")
    with pytest.raises(ConfigError, match=r"dataset\.path is empty"):
        load_dataset(DatasetConfig(name="nq"))
    with pytest.raises(ConfigError, match="nq has no split 'dev'"):
        read("nq", "nq.jsonl", split="dev")
    with pytest.raises(ConfigError, match="miniwiki has no split 'tset'"):
        load_dataset(DatasetConfig(split="tset"))
    with pytest.raises(ConfigError, match="nq has no multiple choice form"):
        read("nq", "nq.jsonl", form="choice")
    assert Columns().answers == "answer"


def test_every_name_has_a_loader_and_every_loader_a_documented_row() -> None:
    assert {*LOADERS, "miniwiki"} == set(NAMES)
    for loader in LOADERS.values():
        text = loader.__doc__ or ""
        assert "row" in text or "item" in text
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []


def test_references_reach_no_question() -> None:
    """Whatever a loader reads, the answer is in the reference alone (options of multiple choice aside)."""
    marker = "MARKER-7f3a"
    row = {"_id": "a", "question": "q", "answer": marker, "supporting_facts": [[marker, 0]], "context": [[marker, []]]}
    file = FIXTURES / "hotpotqa.json"
    assert marker not in file.read_text()
    from inference.datasets import hotpotqa
    from inference.datasets.images import Images
    from inference.datasets.rows import Context, Row

    context = Context(DatasetConfig(name="hotpotqa"), Images(None), "hotpotqa")
    (example,) = hotpotqa.examples(Row(json.loads(json.dumps(row))), context)
    assert marker in example.reference.answers
    assert marker not in example.question.model_dump_json()


def test_the_real_hotpotqa_sample(hotpotqa: Path) -> None:
    dataset = load_dataset(DatasetConfig(name="hotpotqa", path=hotpotqa / "questions.jsonl", strict=True))
    assert dataset.counts.model_dump() == {"rows": 230, "examples": 230, "faults": 0, "left_out": {}}
    assert sum(bool(example.supporting_titles) for example in dataset.examples) == 40
    assert Counter(example.type for example in dataset.examples).total() == 230
    assert {example.type for example in dataset.examples} == {"bridge", "comparison", ""}
    assert dataset.examples[1].reference.answers == ("Pulitzer Prize",)
