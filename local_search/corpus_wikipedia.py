"""Wikipedia dumps (`enwiki-…-pages-articles.xml`, plain, bz2, gz or zst), cut into passages of 100 words.

Redirects, pages outside the article namespace, disambiguation pages and pages without text are skipped and counted.
Of the wikitext stay the words of paragraphs, lists and links; templates, tables, references, files, categories,
headings and formulas go. Passages follow DPR (Karpukhin et al. 2020, section 4.1): an article's words in blocks of 100
without overlap, each with the article's title; unlike there, words end at spaces and the last, shorter block is kept.
Left out: templates are not expanded, so that what only a template says (a converted length, say) is lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from xml.etree import ElementTree

from local_search.corpus_lines import decompressed
from local_search.corpus_rows import Reader, Row, Unit, join_contents
from mia.extras import need

WORDS = 100
"""Words of a passage."""
MAX_PAGE = 2 * 1024 * 1024
"""Bytes of the longest page: MediaWiki's own limit. To parse a page takes 80 times its size in memory."""

_REDIRECT = re.compile(r"\s*#redirect\b", re.IGNORECASE)
_DISAMBIGUATION = re.compile(
    r"__DISAMBIG__|\{\{\s*(?:disambig(?:uation)?|dab|hndis|geodis|[^{}|]*\bdisambiguation(?: page)?)\s*(?:\||\}\})",
    re.IGNORECASE,
)
_SWITCH = re.compile(r"__[A-Z]{3,}__")
_PREFIX = re.compile(r":?\s*([A-Za-z_ -]+?)\s*:")
_MEDIA = {"file", "image", "media", "category"}
_GONE = {"ref", "references", "table", "gallery", "math", "chem", "timeline", "score", "syntaxhighlight", "source"}


class Page(NamedTuple):
    """A page of the dump."""

    id: str
    title: str
    text: str
    namespace: str
    redirect: bool


class Wikipedia(Reader):
    """A MediaWiki XML dump."""

    unit = "page"
    remedy = "fetch the dump anew, or cut the page out"

    def units(self) -> Iterator[Unit]:
        """See `Reader`; the raw of a unit is a `Page`. The text of pages that are skipped anyway is left out."""
        place = 0
        try:
            with self.path.open("rb") as file:
                size = self.path.stat().st_size
                for element in _closed_pages(decompressed(file)):
                    place += 1
                    page = _page(element)
                    if page.redirect or page.namespace != "0":
                        page = page._replace(text="")
                    if len(page.text) > MAX_PAGE:
                        raise self.broken(place, f"{page.title!r} is longer than {MAX_PAGE} characters")
                    self.share = file.tell() / size
                    yield Unit(place, page, len(page.text) + 100)
        except (OSError, EOFError, ElementTree.ParseError) as error:
            raise self.unreadable(place, error) from error

    def rows(self, unit: Unit, skipped: Counter[str]) -> Iterable[Row]:
        """See `Reader`; a row's id is that of the page, a hyphen and the number of the passage, from 0."""
        page: Page = unit.raw
        if not page.id or not page.title:
            raise self.broken(unit.place, "missing", "title" if page.id else "id")
        reason = _reason_to_skip(page)
        words = [] if reason else plain_text(page.text).split()
        if not words:
            skipped[reason or "empty"] += 1
        for number, start in enumerate(range(0, len(words), WORDS)):
            yield Row(f"{page.id}-{number}", join_contents(page.title, " ".join(words[start : start + WORDS])))


def _closed_pages(stream: Any) -> Iterator[Any]:
    """The `page` elements of a dump, each emptied after use."""
    events = ElementTree.iterparse(stream, events=("start", "end"))
    root = None
    for event, element in events:
        if root is None:
            root = element
        elif event == "end" and _local(element) == "page":
            yield element
            root.clear()


def _local(element: Any) -> str:
    """An element's name without its namespace, which changes with the dump's version."""
    return str(element.tag).rpartition("}")[2]


def _page(element: Any) -> Page:
    parts = {_local(child): child for child in element}
    revision = {_local(child): child for child in parts.get("revision", ())}

    def text(of: dict[str, Any], name: str) -> str:
        return (of[name].text or "") if name in of else ""

    wikitext = text(revision, "text")
    redirect = "redirect" in parts or _REDIRECT.match(wikitext) is not None
    return Page(text(parts, "id"), text(parts, "title").strip(), wikitext, text(parts, "ns") or "0", redirect)


def _reason_to_skip(page: Page) -> str:
    if page.redirect:
        return "redirect"
    if page.namespace != "0":
        return "other namespace"
    if page.title.endswith("(disambiguation)") or _DISAMBIGUATION.search(page.text):
        return "disambiguation"
    return ""


def plain_text(wikitext: str) -> str:
    """The words of a page's wikitext."""
    parsed = need("mwparserfromhell", "search").parse(wikitext)
    return _SWITCH.sub("", "".join(_words(parsed)))


def _words(code: Any) -> Iterator[str]:
    """The text of parsed wikitext, node by node; mwparserfromhell's own `strip_code` would keep tables."""
    nodes = need("mwparserfromhell.nodes", "search")
    for node in code.nodes:
        if isinstance(node, nodes.Text):
            yield str(node)
        elif isinstance(node, nodes.Wikilink):
            prefix = _PREFIX.match(str(node.title))
            if prefix is None or prefix[1].lower() not in _MEDIA:
                yield from _words(node.title if node.text is None else node.text)
        elif isinstance(node, nodes.ExternalLink):
            if node.title is not None:
                yield from _words(node.title)
        elif isinstance(node, nodes.HTMLEntity):
            yield node.normalize() or ""
        elif isinstance(node, nodes.Tag):
            tag = str(node.tag).strip().lower()
            if tag in ("br", "hr", "li", "dt", "dd", "p", "div"):
                yield "\n"
            if tag not in _GONE and node.contents is not None:
                yield from _words(node.contents)
