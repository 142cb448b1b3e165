"""The corpus reader: what it accepts, and how it names what it refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from local_search.corpus import Row, read_corpus, read_rows, split_contents
from local_search.passages import Passages, writing
from mia.errors import DataError
from mia.types import Passage

GOOD = b'{"id": "a", "contents": "\\"Alpha\\"\\nThe first letter."}\n'


def _file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"Vienna"\nA city.', "Vienna", "A city."),
        ('"(Where Is) My Mind?"\nA song.', "(Where Is) My Mind?", "A song."),
        ('""Hurricane" Higgins"\nA player.', '"Hurricane" Higgins', "A player."),
        ('"Hurricane" Higgins\nA player.', '"Hurricane" Higgins', "A player."),
        ('Songs by "Queen"\nA list.', 'Songs by "Queen"', "A list."),
        ('"Two\nlines"', '"Two', 'lines"'),
        ('"Only a title"', "Only a title", ""),
        ("only a text", "", "only a text"),
        ('""\nNo title.', "", "No title."),
        ('"\nA lone quote.', '"', "A lone quote."),
        ('"Carriage"\r\nReturn.', "Carriage", "Return."),
        ("\nAfter an empty line.", "", "After an empty line."),
        ('"T"\nOne.\n\nTwo.', "T", "One.\n\nTwo."),
    ],
)
def test_title_is_the_first_line_without_its_surrounding_quotes(contents: str, title: str, text: str) -> None:
    assert split_contents(contents) == (title, text)


def test_rows_become_passages_in_file_order(tmp_path: Path) -> None:
    path = _file(tmp_path, GOOD + b'\n  \n{"id": 7, "contents": "plain", "url": "https://example.org"}')
    assert list(read_corpus(path)) == [
        Passage(id="a", title="Alpha", text="The first letter."),
        Passage(id="7", title="", text="plain"),
    ]


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    assert list(read_rows(_file(tmp_path, gzip.compress(GOOD)))) == [Row("a", '"Alpha"\nThe first letter.')]


def test_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    assert [row.id for row in read_rows(_file(tmp_path, b"\xef\xbb\xbf" + GOOD))] == ["a"]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\r"])
@pytest.mark.parametrize("escaped", [True, False])
def test_only_newlines_end_a_row(tmp_path: Path, separator: str, escaped: bool) -> None:
    contents = f'"Title"\nbefore{separator}after'
    escaped = escaped or separator < " "  # JSON has no bare control characters
    rows = [{"id": str(n), "contents": contents} for n in range(2)]
    path = _file(tmp_path, "\n".join(json.dumps(row, ensure_ascii=escaped) for row in rows).encode())
    assert list(read_rows(path)) == [Row("0", contents), Row("1", contents)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id": "b", "contents": "cut', "not JSON: Unterminated string"),
        (b"\xff\xfe", "byte 1 is not UTF-8"),
        (b"[" * 200_000, "not usable JSON"),
        (b'{"id": ' + b"9" * 10_000 + b"}", "not usable JSON"),
        (b'["b", "text"]', "a JSON list where an object belongs"),
        (b'{"contents": "text"}', "field id: missing"),
        (b'{"id": "", "contents": "text"}', "field id: blank"),
        (b'{"id": true, "contents": "text"}', "field id: a bool where a string belongs"),
        (b'{"id": null, "contents": "text"}', "field id: a NoneType where a string belongs"),
        (b'{"id": "b"}', "field contents: missing"),
        (b'{"id": "b", "contents": " \\n "}', "field contents: blank"),
        (b'{"id": "b", "contents": ["text"]}', "field contents: a list where a string belongs"),
    ],
)
def test_broken_row_is_named_by_file_line_and_reason(tmp_path: Path, line: bytes, reason: str) -> None:
    path = _file(tmp_path, GOOD + b"\n" + line + b"\n" + GOOD)
    rows = read_rows(path)
    assert next(rows).id == "a"
    with pytest.raises(DataError) as caught:
        next(rows)
    assert caught.value.code == "broken_row"
    assert caught.value.message.startswith(f"{path}, line 3")
    assert reason in caught.value.message
    assert caught.value.remedy


def test_cut_gzip_is_named_with_the_last_whole_line(tmp_path: Path) -> None:
    noise = b"".join(b'{"id": "%d", "contents": "%s"}\n' % (n, str(hash((n,))).encode()) for n in range(5000))
    whole = gzip.compress(noise)
    with pytest.raises(DataError, match=r"corpus\.jsonl, after line \d+") as caught:
        list(read_rows(_file(tmp_path, whole[: len(whole) // 2])))
    assert caught.value.code == "unreadable_corpus"


@pytest.mark.parametrize("content", [b"\x1f\x8b", b"\x1f\x8bnot gzip at all", gzip.compress(GOOD)[:-8] + b"\0" * 8])
def test_damaged_gzip_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError) as caught:
        list(read_rows(_file(tmp_path, content)))
    assert caught.value.code == "unreadable_corpus"


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(DataError, match=str(path)):
            list(read_rows(path))


def test_file_without_line_ends_does_not_fill_the_memory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1: longer than 16777216 bytes") as caught:
        list(read_rows(_file(tmp_path, b"x" * (16 * 1024 * 1024 + 1))))
    assert caught.value.code == "broken_row"


def test_lone_surrogates_become_replacement_characters(tmp_path: Path) -> None:
    [row] = read_rows(_file(tmp_path, rb'{"id": "\ud800", "contents": "a\udc00b \ud83d\ude00"}'))
    assert row == Row("\ufffd", "a\ufffdb 😀")


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_comes_back_by_byte_offset(tmp_path: Path, texts: list[str]) -> None:
    path = _file(tmp_path, b"".join(json.dumps({"id": n, "contents": t}).encode() + b"\n" for n, t in enumerate(texts)))
    read = list(read_rows(path))
    assert [row.contents for row in read] == texts
    folder = tmp_path / "stored"
    folder.mkdir(exist_ok=True)
    assert list(writing(read, folder)) == read
    stored = Passages(folder)
    assert [stored.row(n) for n in range(len(stored))] == read
