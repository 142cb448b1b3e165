"""Names of encoders: the model, and how it is used where that is not its family's way.

    all-MiniLM-L6-v2                                         the embedded one
    intfloat/e5-base-v2                                      a model of the Hugging Face hub, with its family's prefixes
    /models/e5-base-v2                                       a folder with such a model
    intfloat/e5-base-v2?query=question%3A%20&length=256      another query prefix, texts cut after 256 word pieces

The whole name is written in an index: vectors made with other prefixes are not compared, and whoever reads the index
makes the same encoder from its name. Families are told by the last part of the model's name.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from mia.errors import DataError


class EncoderName(NamedTuple):
    """A name taken apart. `length` 0: the model's own limit."""

    model: str
    query: str
    passage: str
    length: int = 0


_FAMILIES: tuple[tuple[str, str, str], ...] = (
    # multilingual-e5-large-instruct, e5-mistral-7b-instruct: the task of its model card for web search
    (
        r"(multilingual-)?e5-.*instruct",
        "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: ",
        "",
    ),
    (r"(multilingual-)?e5-.*", "query: ", "passage: "),  # Wang et al. 2022; e5-base-v2, multilingual-e5-small
    (r"bge-(small|base|large)-en.*", "Represent this sentence for searching relevant passages: ", ""),
    (r"bge-(small|base|large)-zh.*", "为这个句子生成表示以用于检索相关文章：", ""),
)


def prefixes_of(model: str) -> tuple[str, str]:
    """What the model's family puts before a query and before a passage; nothing for families not known here."""
    last = model.rstrip("/").rpartition("/")[2].lower()
    for pattern, query, passage in _FAMILIES:
        if re.fullmatch(pattern, last):
            return query, passage
    return "", ""


def parse_name(name: str) -> EncoderName:
    """A name taken apart.

    Raises:
        DataError: it has a setting that this version does not know (code `unknown_encoder`).
    """
    model, _, settings = name.partition("?")
    query, passage = prefixes_of(model)
    given = dict(parse_qsl(settings, keep_blank_values=True, separator="&"))
    length = given.pop("length", "0")
    parsed = EncoderName(model, given.pop("query", query), given.pop("passage", passage), _number(name, length))
    if given:
        raise _unknown(name, f"the setting {next(iter(given))!r}")
    return parsed


def full_name(model: str, query: str | None = None, passage: str | None = None, length: int = 0) -> str:
    """The name of a model used in some way; what is None or its family's own is not mentioned."""
    own = prefixes_of(model)
    settings: dict[str, str] = {}
    if query is not None and query != own[0]:
        settings["query"] = query
    if passage is not None and passage != own[1]:
        settings["passage"] = passage
    if length:
        settings["length"] = str(length)
    return f"{model}?{urlencode(settings, quote_via=quote)}" if settings else model


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise _unknown(name, f"the length {text!r}")
    return int(text)


def _unknown(name: str, what: str) -> DataError:
    return DataError(
        f"encoder {name!r}: {what} is not known",
        remedy="after the model may stand ?query=PREFIX&passage=PREFIX&length=WORD_PIECES",
        code="unknown_encoder",
    )
