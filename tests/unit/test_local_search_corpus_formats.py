"""Corpora other than plain JSONL: compressed files, TSV, Parquet, Wikipedia dumps."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from local_search.build import build_index
from local_search.corpus import Row, format_of, read_rows, reader_of
from local_search.corpus_wikipedia import plain_text
from mia.errors import DataError

pyarrow: Any = pytest.importorskip("pyarrow")  # without types
pyarrow_parquet: Any = pytest.importorskip("pyarrow.parquet")

LINES = b"".join(b'{"id": "%d", "contents": "\\"T%d\\"\\nword%d"}\n' % (n, n, n * n) for n in range(3000))
ROWS = [Row(str(n), f'"T{n}"\nword{n * n}') for n in range(3000)]
SEPARATORS = "\u2028\u2029\u0085\x0b\x0c\x1c"


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": zstd, "bz2": bz2.compress}


def file_of(tmp_path: Path, content: bytes, name: str) -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def refused(path: Path, code: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        list(read_rows(path))
    assert caught.value.code == code
    assert caught.value.message.startswith(str(path))
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.jsonl", "jsonl"),
        ("a.JSONL.GZ", "jsonl"),
        ("a.json.zst", "jsonl"),
        ("psgs_w100.tsv", "tsv"),
        ("psgs_w100.tsv.gz", "tsv"),
        ("a.parquet", "parquet"),
        ("enwiki-latest-pages-articles.xml.bz2", "wikipedia"),
        ("enwiki.xml", "wikipedia"),
        ("corpus", "jsonl"),
        (".gz", "jsonl"),
    ],
)
def test_format_is_told_by_the_suffix(name: str, format: str) -> None:
    assert format_of(Path("folder.tsv") / name) == format


# ------------------------------------------------------------------------------------------ compression


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_compressed_lines_are_the_lines(tmp_path: Path, suffix: str) -> None:
    compress = COMPRESSIONS[suffix]
    assert list(read_rows(file_of(tmp_path, compress(LINES), f"c.jsonl.{suffix}"))) == ROWS
    parts = compress(LINES[:1000]) + compress(LINES[1000:])
    assert list(read_rows(file_of(tmp_path, parts, f"two.jsonl.{suffix}"))) == ROWS
    assert list(read_rows(file_of(tmp_path, compress(b""), f"empty.jsonl.{suffix}"))) == []


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_cut_compressed_file_is_named(tmp_path: Path, suffix: str) -> None:
    noise = b"".join(b'{"id": "%d", "contents": "%d"}\n' % (n, hash((n, "x" * n)) ** 3) for n in range(9000))
    whole = COMPRESSIONS[suffix](noise)
    for cut in (len(whole) - 1, len(whole) // 2, 9):
        refused(file_of(tmp_path, whole[:cut], f"c.jsonl.{suffix}"), "unreadable_corpus", f"c.jsonl.{suffix}")


@pytest.mark.parametrize("suffix", ["gz", "zst", "bz2"])
def test_damaged_compressed_file_is_named(tmp_path: Path, suffix: str) -> None:
    whole = bytearray(COMPRESSIONS[suffix](LINES))
    whole[len(whole) // 2 : len(whole) // 2 + 40] = b"\xa5" * 40
    path = file_of(tmp_path, bytes(whole), f"c.jsonl.{suffix}")
    with pytest.raises(DataError) as caught:  # where no checksum guards the data, it is a row that breaks
        list(read_rows(path))
    assert caught.value.code in ("unreadable_corpus", "broken_row")


# ------------------------------------------------------------------------------------------ TSV


def test_tsv_of_dpr(tmp_path: Path) -> None:
    """As in DPR's psgs_w100.tsv: the csv module's own quoting, columns id, text, title."""
    made = io.StringIO()
    writer = csv.writer(made, delimiter="\t", lineterminator="\n")
    rows = [
        ("id", "text", "title"),
        ("1", 'Aaron is "a prophet" of God', "Aaron"),
        ("2", "plain", 'The "Song"'),
        ("3", f"no{SEPARATORS}end", "T"),
    ]
    writer.writerows(rows)
    found = list(read_rows(file_of(tmp_path, made.getvalue().encode(), "psgs.tsv")))
    assert found == [Row(name, f'"{title}"\n{text}') for name, text, title in rows[1:]]


def test_tsv_columns_are_found_by_name(tmp_path: Path) -> None:
    content = 'title\tscore\tid\ttext\r\nT\t0.5\tx\t"Half" quoted "text"\r\n\r\nU\t\ty\t5" disk\r\n'
    found = list(read_rows(file_of(tmp_path, content.encode(), "c.tsv")))
    assert [(row.id, row.passage().title, row.passage().text) for row in found] == [
        ("x", "T", '"Half" quoted "text"'),
        ("y", "U", '5" disk'),
    ]


def test_tsv_without_titles(tmp_path: Path) -> None:
    [row] = read_rows(file_of(tmp_path, b"id\ttext\n7\tonly text", "c.tsv"))
    assert (row.id, row.passage().title, row.passage().text) == ("7", "", "only text")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"1\tsome text\tTitle\n", r"line 1: the columns are 1, some text, Title, not id, text, title"),
        (b"id\ttext\ttitle\n1\ta\tT\n2\tb\n", r"line 3: 2 columns where the first line names 3"),
        (b'id\ttext\ttitle\n1\t"a\nb"\tT\n', r"line 2: 2 columns"),
        (b"id\ttext\ttitle\n\ttext\tT\n", r"line 2, field id: blank"),
        (b"id\ttext\ttitle\n1\t \tT\n", r"line 2, field text: blank"),
        (b"id\ttext\ttitle\n1\t\xff\tT\n", r"line 2: byte 1 is not UTF-8"),
    ],
)
def test_broken_tsv_is_named_by_line_and_reason(tmp_path: Path, content: bytes, words: str) -> None:
    refused(file_of(tmp_path, content, "c.tsv"), "broken_row", words)


@given(st.lists(st.tuples(st.text(), st.text().filter(str.strip)), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_the_csv_module_writes_is_read(tmp_path: Path, pairs: list[tuple[str, str]]) -> None:
    clean = [tuple(field.replace("\t", " ").replace("\n", " ").replace("\r", " ") for field in pair) for pair in pairs]
    rows = [(title, text) for title, text in clean if text.strip()]
    made = io.StringIO(newline="")
    writer = csv.writer(made, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(("id", "text", "title"))
    writer.writerows((str(n), text, title) for n, (title, text) in enumerate(rows))
    found = list(read_rows(file_of(tmp_path, made.getvalue().encode(), "c.tsv")))
    assert [row.passage().text for row in found] == [text for _, text in rows]
    assert [row.passage().title for row in found] == [" ".join(title.split()) for title, _ in rows]


# ------------------------------------------------------------------------------------------ Parquet


def parquet(tmp_path: Path, columns: dict[str, Any], **options: Any) -> Path:
    path = tmp_path / "c.parquet"
    pyarrow_parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def test_parquet_of_contents(tmp_path: Path) -> None:
    contents = [row.contents + SEPARATORS for row in ROWS]
    path = parquet(tmp_path, {"url": ["u"] * 3000, "id": list(range(3000)), "contents": contents}, row_group_size=700)
    assert list(read_rows(path)) == [Row(row.id, row.contents + SEPARATORS) for row in ROWS]


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), "str")])
def test_parquet_of_text_and_title(tmp_path: Path, kind: Any) -> None:
    columns = {name: pyarrow.array(["a", "b"]).cast(kind) for name in ("id", "text", "title")}
    assert list(read_rows(parquet(tmp_path, columns))) == [Row("a", '"a"\na'), Row("b", '"b"\nb')]


def test_parquet_without_titles(tmp_path: Path) -> None:
    assert list(read_rows(parquet(tmp_path, {"id": ["a"], "text": ["b"]}))) == [Row("a", '""\nb')]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": ["a"]}, "columns id, and no text"),
        ({"text": ["a"]}, "columns text, and no id"),
        ({"id": ["a"], "text": [1.5]}, "field text: a double where a string belongs"),
        ({"id": [1.5], "text": ["a"]}, "field id: a double where a string belongs"),
        ({"id": ["a", "b"], "contents": ["x", None]}, "row 2, field contents: a NoneType"),
        ({"id": ["a", None], "contents": ["x", "y"]}, "row 2, field id: a NoneType"),
        ({"id": ["a"], "text": [" "]}, "row 1, field text: blank"),
    ],
)
def test_broken_parquet_is_named(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    refused(parquet(tmp_path, columns), "broken_row", words)


def test_cut_and_damaged_parquet_are_named(tmp_path: Path) -> None:
    path = parquet(tmp_path, {"id": [row.id for row in ROWS], "contents": [row.contents for row in ROWS]})
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"PAR1", whole[:400] + b"\0" * 2000 + whole[2400:]):
        path.write_bytes(content)
        refused(path, "unreadable_corpus", r"c\.parquet")
    path.unlink()
    refused(path, "unreadable_corpus", r"c\.parquet")


# ------------------------------------------------------------------------------------------ Wikipedia


def page(title: str, text: str, name: int = 1, ns: int = 0, redirect: str = "") -> str:
    target = f'<redirect title="{redirect}" />' if redirect else ""
    return (
        f"<page><title>{escape(title)}</title><ns>{ns}</ns><id>{name}</id>{target}<revision><id>99</id>"
        f'<contributor><username>N</username><id>5</id></contributor><text xml:space="preserve">{escape(text)}</text>'
        "</revision></page>"
    )


def dump(*pages: str) -> bytes:
    head = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/"><siteinfo><dbname>w</dbname></siteinfo>\n'
    return (head + "\n".join(pages) + "</mediawiki>").encode()


@pytest.mark.parametrize("suffix", ["", ".bz2", ".gz", ".zst"])
def test_article_is_cut_into_passages_of_100_words(tmp_path: Path, suffix: str) -> None:
    compress = {"": bytes, **{f".{name}": made for name, made in COMPRESSIONS.items()}}[suffix]
    words = [f"w{n}" for n in range(250)]
    content = dump(page("Vienna & co", " ".join(words), 12), page("Graz", "One\u2028two.", 13))
    found = list(read_rows(file_of(tmp_path, compress(content), f"wiki.xml{suffix}")))
    assert found == [
        Row("12-0", '"Vienna & co"\n' + " ".join(words[:100])),
        Row("12-1", '"Vienna & co"\n' + " ".join(words[100:200])),
        Row("12-2", '"Vienna & co"\n' + " ".join(words[200:])),
        Row("13-0", '"Graz"\nOne two.'),
    ]


def test_what_is_no_article_is_skipped_and_counted(tmp_path: Path) -> None:
    content = dump(
        page("A", "An article that mentions {{disambiguation needed}} things."),
        page("B", "#REDIRECT [[A]]", 2, redirect="A"),
        page("C", "#redirect [[A]]", 3),
        page("Talk:A", "chatter", 4, ns=1),
        page("Template:X", "box", 5, ns=10),
        page("D", "D may mean:\n* [[A]]\n{{disambiguation|geo}}", 6),
        page("E (disambiguation)", "E may mean", 7),
        page("F", "F may mean {{Hndis|name=F}}", 8),
        page("G", "{{stub}}", 9),
        page("H", "", 10),
    )
    path = file_of(tmp_path, content, "wiki.xml")
    assert [row.id for row in read_rows(path)] == ["1-0"]
    manifest, _ = build_index(path, tmp_path / "index", ["bm25"])
    assert manifest.passages == 1
    assert manifest.skipped == {"disambiguation": 3, "empty": 2, "other namespace": 2, "redirect": 2}
    assert manifest.source == "wikipedia"


@pytest.mark.parametrize(
    ("wikitext", "words"),
    [
        ("'''Vienna''' is the ''capital''.", "Vienna is the capital."),
        ("the [[Danube|river]] and [[Graz]]s", "the river and Grazs"),
        ("a{{cite|x={{inner}}|y}}b {{infobox\n|a=b\n}}", "ab"),
        ("born<ref name=a>Source, {{cite}}</ref> here<ref name=a/>.", "born here."),
        ("[[File:A.jpg|thumb|A [[link]] in it]]text[[Image:B.png]] [[Category:Cities]]", "text"),
        ("before\n{| class=wikitable\n|-\n! head\n| cell {{x}}\n|}\nafter", "before after"),
        ("== Heading ==\nText\n=== Sub ===\nmore", "Text more"),
        ("see [https://example.org the site] or [https://example.org] https://example.org", "see the site or"),
        ("* one\n* two\n# three", "one two three"),
        ("5&nbsp;km &amp; &lt;more&gt; caf&eacute;", "5 km & <more> café"),
        ("a<!-- hidden -->b<br/>c <math>x^2</math> <span style=x>d</span>", "ab c d"),
        ("__NOTOC__ text __FORCETOC__", "text"),
        ("<gallery>\nA.jpg|caption\n</gallery>kept", "kept"),
        ("[[Star Trek: Picard]] and [[:Category:Cities|cities]]", "Star Trek: Picard and"),
        ("{{unclosed [[also", "{{unclosed [[also"),
    ],
)
def test_wikitext_becomes_its_words(wikitext: str, words: str) -> None:
    assert " ".join(plain_text(wikitext).split()) == words


def test_cut_and_broken_dumps_are_named(tmp_path: Path) -> None:
    whole = dump(*(page(f"P{n}", "some text", n + 1) for n in range(50)))
    refused(file_of(tmp_path, whole[: len(whole) // 2], "w.xml"), "unreadable_corpus", r"after page 2\d: ")
    refused(file_of(tmp_path, bz2.compress(whole)[:-20], "w.xml.bz2"), "unreadable_corpus", "end")
    refused(file_of(tmp_path, whole.replace(b"P30", b"P&30"), "w.xml"), "unreadable_corpus", "after page 30: ")
    refused(file_of(tmp_path, b"", "w.xml"), "unreadable_corpus", r"w\.xml")
    refused(file_of(tmp_path, dump(page("", "text")), "w.xml"), "broken_row", "page 1, field title: missing")


def test_page_beyond_mediawikis_limit_is_refused_unless_it_is_skipped_anyway(tmp_path: Path) -> None:
    text = "x" * (2 * 1024 * 1024 + 1)
    assert list(read_rows(file_of(tmp_path, dump(page("Talk:P", text, ns=1)), "w.xml"))) == []
    refused(file_of(tmp_path, dump(page("P", text)), "w.xml"), "broken_row", "page 1: 'P' is longer than 2097152")


def test_pages_are_forgotten_once_they_are_read(tmp_path: Path) -> None:
    path = file_of(tmp_path, dump(*(page(f"P{n}", "x " * 5000, n + 1) for n in range(1000))), "w.xml")
    tracemalloc.start()
    try:
        assert sum(len(unit.raw.text) for unit in reader_of(path).units()) == 1000 * 10_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000  # of 10 MB
    finally:
        tracemalloc.stop()


def test_forced_format_wins_over_the_name(tmp_path: Path) -> None:
    path = file_of(tmp_path, LINES, "c.tsv")
    assert list(read_rows(path, "jsonl")) == ROWS
    assert (
        json.loads(build_index(path, tmp_path / "i", ["bm25"], format="jsonl")[0].model_dump_json())["passages"] == 3000
    )


def test_rows_of_a_unit_are_made_apart_from_reading(tmp_path: Path) -> None:
    """What a worker gets is a unit, pickled: nothing of the open file."""
    reader = reader_of(file_of(tmp_path, LINES, "c.jsonl"))
    unit = next(iter(reader.units()))
    assert list(reader_of(tmp_path / "elsewhere.jsonl").rows(unit, Counter())) == ROWS[:1]
