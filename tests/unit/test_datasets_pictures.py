"""Loaders of benchmarks with pictures: released forms, the original's forms, values written by hand."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from inference.datasets import Dataset, DatasetConfig, load_dataset
from mia.errors import ConfigError, DataError
from mia.examples import Example, Reference
from mia.pictures import decoded, from_data_url
from mia.types import Question
from tests.conftest import SHARED

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "datasets"
RED = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAAD0lEQVR4nGP8z8DAwMAAAAYIAQHLR3Z1AAAAAElFTkSu"
    "QmCC"
)
BLUE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAAD0lEQVR4nGNkYPjPwMAAAAQKAQHOAd3hAAAAAElFTkSu"
    "QmCC"
)


def read(name: str, file: str, **settings: object) -> Dataset:
    return load_dataset(DatasetConfig.model_validate({"name": name, "path": FIXTURES / file, **settings}))


def faults(dataset: Dataset) -> list[str]:
    """The faults without their folder."""
    return [str(fault).replace(f"{FIXTURES}/", "") for fault in dataset.faults]


def test_the_two_pictures_are_what_they_are_called() -> None:
    assert decoded(from_data_url(RED)).getpixel((0, 0)) == (255, 0, 0)
    assert decoded(from_data_url(BLUE)).getpixel((1, 0)) == (0, 0, 255)


def test_livevqa_open() -> None:
    dataset = read("livevqa", "livevqa")
    first, second, third, fourth = dataset.examples[:4]
    assert first == Example(
        question=Question(id="News-n1-1", text="Which town is shown?", images=(RED,)),
        reference=Reference(answers=("Larkton", "the town of Larkton")),
        source="livevqa",
        part="News",
        type="location",
        category="Larkton Post",
        level="1",
    )
    assert (second.question.id, second.level, second.type, second.reference.answers) == (
        "News-n1-2",
        "2",
        "count",
        ("10", "ten"),
    )
    assert second.question.images[0] is first.question.images[0]
    assert third.question.id == "News-n2-2"  # its other level lacks the picture
    assert (fourth.question.id, fourth.reference.answers) == ("News-n3-1", ("a boat",))
    assert [(e.question.id, e.part, e.question.images) for e in dataset.examples[4:]] == [
        ("Paper-n1-1", "Paper", (BLUE,)),
        ("Paper-n1-2", "Paper", (BLUE,)),
    ]
    file = "livevqa/News/benchmark.json"
    assert faults(dataset) == [
        f"{file}, item 2, field img_path: cannot read livevqa/News/News_imgs/missing.png: No such file or directory",
        f"{file}, item 4, field img_path: livevqa/News/News_imgs/note.png is not a JPEG, PNG, WebP or GIF",
        f"{file}, item 4, field level2_qa.Ground_Truth_List: missing or blank",
        f"{file}, item 5, field img_path: ../../../own.jsonl lies outside livevqa/News/News_imgs",
    ]
    assert dataset.counts.model_dump() == {
        "rows": 6,
        "examples": 6,
        "faults": 4,
        "left_out": {"no level2_qa": 2},
    }


def test_livevqa_choice() -> None:
    dataset = read("livevqa", "livevqa", form="choice")
    first, second = dataset.examples[:2]
    assert first.question.text == (
        "Which town is shown?\n\nA. Orm\nB. Larkton (Orm)\nC. Fogham\n\nAnswer with the letter of the right option."
    )
    assert first.choices == ("Orm", "Larkton (Orm)", "Fogham")
    assert first.reference == Reference(answers=("Larkton", "the town of Larkton", "Larkton (Orm)"), choice="B")
    assert (second.choices, second.reference.choice) == (("4", "2", "6", "10"), "D")
    file = "livevqa/News/benchmark.json"
    assert f"{file}, item 3, field level1_qa.Ground_Truth: 'E' is the letter of none of the 2 options" in faults(
        dataset
    )
    assert "Ground_Truth_List" not in str(faults(dataset))  # the right option is an answer too


def test_livevqa_by_part_and_by_file() -> None:
    paper = read("livevqa", "livevqa", split="Paper")
    assert [example.question.id for example in paper.examples] == ["Paper-n1-1", "Paper-n1-2"]
    assert read("livevqa", "livevqa/Paper").examples == paper.examples
    assert read("livevqa", "livevqa/Paper/benchmark.json").examples == paper.examples
    with pytest.raises(ConfigError, match=r"no part 'Papers' there\n.*known: News, Paper"):
        read("livevqa", "livevqa", split="Papers")
    with pytest.raises(DataError, match=r"holds no benchmark\.json"):
        read("livevqa", "images")


def test_livevqa_needs_its_pictures(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "livevqa" / "Paper", tmp_path / "Paper")
    shutil.move(tmp_path / "Paper" / "images", tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"no folder of pictures; looked for .*Paper_imgs") as caught:
        load_dataset(DatasetConfig(name="livevqa", path=tmp_path))
    assert caught.value.code == "no_pictures"
    dataset = load_dataset(DatasetConfig(name="livevqa", path=tmp_path, images=tmp_path / "elsewhere"))
    assert [example.question.images for example in dataset.examples] == [(BLUE,), (BLUE,)]
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "Paper").symlink_to(tmp_path / "elsewhere")  # caches of hubs hold links
    dataset = load_dataset(DatasetConfig(name="livevqa", path=tmp_path / "Paper", images=tmp_path / "linked"))
    assert [example.question.images for example in dataset.examples] == [(BLUE,), (BLUE,)]


def test_the_checksum_covers_every_file_read(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FIXTURES / "livevqa", tmp_path / "livevqa"))
    names = ["Paper/benchmark.json", "Paper/images/2501.00001/x1.png"]

    def checksum() -> str:
        return load_dataset(DatasetConfig(name="livevqa", path=folder, split="Paper")).sha256

    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    before = checksum()
    assert before == hashlib.sha256("".join(lines).encode()).hexdigest()
    (folder / "Paper/images/other.png").write_bytes(b"not read")
    assert checksum() == before
    shutil.copy(FIXTURES / "images/red.png", folder / names[1])
    assert checksum() != before


def test_original_test_items() -> None:
    dataset = read("original", "original.json")
    assert [e.question for e in dataset.examples] == [
        Question(id="o-1", text="What bird is this?", images=(RED,), caption="A grey bird by a lake."),
        Question(id="2", text="Where is Larkton?"),
        Question(id="o-3", text="Who drew this?", images=(BLUE,), caption="A drawing."),
    ]
    answers = [e.reference.answers for e in dataset.examples]
    assert answers == [("a heron",), ("Orm", "the Orm valley"), ("Ada Quill",)]
    first, second = faults(dataset)
    assert first.startswith("original.json, item 4, field images: picture 2: ")
    assert second == "original.json, item 5, field id: missing"


def test_original_lines_are_read_for_livevqa_too(tmp_path: Path) -> None:
    rows = json.loads((FIXTURES / "original.json").read_text())
    file = tmp_path / "livevqa.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    dataset = load_dataset(DatasetConfig(name="livevqa", path=file))
    assert [e.question for e in dataset.examples] == [e.question for e in read("original", "original.json").examples]
    assert [fault.unit for fault in dataset.faults] == ["line", "line"]
    assert {example.part for example in dataset.examples} == {""}


def test_original_tables() -> None:
    first, second = read("original", "executor.parquet").examples
    assert first == Example(
        question=Question(id="e-1", text="What bird is this?", images=(RED,)),
        reference=Reference(answers=("a heron",)),
        source="original",
        category="birds",
        level="1",
    )
    assert second.question == Question(id="e-2", text="Where is Larkton?")
    (example,) = read("original", "ttrl.parquet").examples
    assert example.question == Question(id="t-1", text="What bird is this?", images=(RED,), caption="A grey bird.")
    assert example.reference.answers == ("a heron", "heron", "grey heron")


def test_fvqa() -> None:
    dataset = read("fvqa", "fvqa.parquet")
    rows = [(e.question.id, e.question.text, e.question.images, e.category) for e in dataset.examples]
    assert rows == [
        ("fvqa_test_0", "What is the name of the bird?", (RED,), "search_required"),
        ("fvqa_test_1", "What colour is this?", (BLUE,), "search_free"),
    ]
    assert [e.reference.answers for e in dataset.examples] == [("heron", "grey heron"), ("blue",)]
    assert faults(dataset) == [
        "fvqa.parquet, row 3, field reward_model.ground_truth: missing",
        "fvqa.parquet, row 4, field images: picture 1 is not a JPEG, PNG, WebP or GIF",
    ]
    assert dataset.sha256 == hashlib.sha256((FIXTURES / "fvqa.parquet").read_bytes()).hexdigest()


def test_a_folder_of_tables_is_one_dataset(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "executor.parquet", tmp_path / "test-00000-of-00002.parquet")
    shutil.copy(FIXTURES / "ttrl.parquet", tmp_path / "test-00001-of-00002.parquet")
    dataset = load_dataset(DatasetConfig(name="original", path=tmp_path))
    assert [example.question.id for example in dataset.examples] == ["e-1", "e-2", "t-1"]
    shutil.copy(FIXTURES / "ttrl.parquet", tmp_path / "test-00002-of-00002.parquet")
    dataset = load_dataset(DatasetConfig(name="original", path=tmp_path))
    assert dataset.faults[0].message == "'t-1' is the id of test-00001-of-00002.parquet, row 1 already"


def test_infoseek() -> None:
    dataset = read("infoseek", "infoseek.jsonl")
    first, second = dataset.examples
    assert first == Example(
        question=Question(id="infoseek_val_00000000", text="Who designed this building?", images=(RED,)),
        reference=Reference(answers=("Eve Stone", "E. Stone")),
        source="infoseek",
        category="val_unseen_question",
    )
    assert (second.question.images, second.reference.answers) == ((BLUE,), ("48", "48.5"))
    missing, answerless = faults(dataset)
    assert missing.startswith("infoseek.jsonl, line 3, field image_id: cannot read images/oven_09999999.jpg")
    assert answerless == "infoseek.jsonl, line 4, field answer: missing"
    assert [e.question.id for e in read("infoseek", "fvqa.parquet").examples] == ["fvqa_test_0", "fvqa_test_1"]


def test_simplevqa() -> None:
    dataset = read("simplevqa", "simplevqa.parquet", split="EN")
    (example,) = dataset.examples
    assert example == Example(
        question=Question(id="0", text="What colour is this?", images=(BLUE,)),
        reference=Reference(answers=("blue",)),
        source="simplevqa",
        type="colour",
        category="Art",
    )
    (fault,) = faults(dataset)
    assert fault.startswith("simplevqa.parquet, row 3, field image: picture 1: ")
    assert dataset.counts.left_out == {"language CN": 1}
    assert [e.reference.answers for e in read("simplevqa", "simplevqa.parquet").examples] == [("blue",), ("蓝色",)]
    with pytest.raises(ConfigError, match=r"no split 'english'\n.*known: EN, CN"):
        read("simplevqa", "simplevqa.parquet", split="english")


def test_mmsearch() -> None:
    dataset = read("mmsearch", "mmsearch.parquet")
    first, second = dataset.examples
    assert first == Example(
        question=Question(id="0", text="Which bird is this?", images=(RED,)),
        reference=Reference(answers=("heron", "grey heron")),
        source="mmsearch",
        type="news",
        category="sports",
    )
    assert second.question == Question(id="1", text="Who won the Larkton race in 2031?")
    assert faults(dataset) == ["mmsearch.parquet, row 3, field gt_answer: blank"]
    pictured = read("mmsearch", "mmsearch.parquet", split="image")
    assert [example.question.id for example in pictured.examples] == ["0"]
    assert pictured.counts.left_out == {"without a picture": 2}


@pytest.fixture(scope="module")
def livevqa() -> Path:
    """Folder of the real LiveVQA sample; the test is skipped where it is absent."""
    folder = SHARED / "livevqa"
    if not folder.is_dir():
        pytest.skip(f"no LiveVQA sample at {folder}")
    return folder


def test_the_real_livevqa_sample(livevqa: Path) -> None:
    dataset = load_dataset(DatasetConfig(name="livevqa", path=livevqa, form="choice", strict=True))
    assert dataset.counts.model_dump() == {"rows": 24, "examples": 48, "faults": 0, "left_out": {}}
    parts = Counter((example.part, example.level) for example in dataset.examples)
    assert parts == {(part, level): 8 for part in ("News", "Paper", "Video") for level in ("1", "2")}
    by_id = {example.question.id: example for example in dataset.examples}
    example = by_id["News-0_20250509114421195092-1"]
    assert example.reference.choice == "C"
    assert example.choices[2] == "Morehouse School of Medicine" == example.reference.answers[0]
    assert "\nC. Morehouse School of Medicine\n" in example.question.text
    picture = livevqa / "News" / "images" / "cnn_af5a704c009b9515479ab4c6c6730bfd.jpg"
    assert base64.b64decode(example.question.images[0].partition(",")[2]) == picture.read_bytes()
    for example in dataset.examples:
        decoded(from_data_url(example.question.images[0]))
    opened = load_dataset(DatasetConfig(name="livevqa", path=livevqa, strict=True))
    assert opened.sha256 == dataset.sha256
    assert [e.question.id for e in opened.examples] == [e.question.id for e in dataset.examples]
    assert not any(e.choices or e.reference.choice for e in opened.examples)
    video = next(e for e in opened.examples if e.part == "Video" and e.level == "2")
    assert video.reference.answers == ("250",)
