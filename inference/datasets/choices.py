"""Multiple choice: options as files write them, and the question that shows them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import ascii_uppercase

from inference.datasets.rows import Row
from mia.prompts import prompt

_LETTERED = re.compile(r"\s*[(\[]?([A-Z])[.):\]]\s*(.*)", re.DOTALL)


def with_options(question: str, choices: Sequence[str]) -> str:
    """The text of a multiple choice question: the question, a line per option with its letter, how to answer.

    Args:
        question: what is asked.
        choices: texts of the options, 2 to 26, without letters.
    """
    options = "\n".join(f"{letter}. {text}" for letter, text in zip(ascii_uppercase, choices, strict=False))
    return prompt("executor/choice").render(question=question, options=options)


def options_of(row: Row, name: str) -> tuple[str, ...]:
    """The texts of the options in the order of their letters; letters that stand before them are taken off.

    Raises:
        BadRow: they are not 2 to 26 texts, or some have letters and others do not, or the letters are not A, B, C…
    """
    value = row.get(name)
    if value is None:
        raise row.bad(name, "missing")
    if not isinstance(value, list) or not all(isinstance(text, str) and text.strip() for text in value):
        raise row.bad(name, "not a list of texts")
    if not 2 <= len(value) <= len(ascii_uppercase):
        raise row.bad(name, f"{len(value)} options; a question has 2 to {len(ascii_uppercase)}")
    led = [_LETTERED.fullmatch(text) for text in value]
    found = [match.group(1) for match in led if match]
    if found == list(ascii_uppercase[: len(value)]):
        texts = tuple(match.group(2).strip() for match in led if match)
        if not all(texts):
            raise row.bad(name, "an option has a letter and no text")
        return texts
    if len(found) == len(value):
        raise row.bad(name, f"the letters of the options are {', '.join(found)}")
    if led[0] and found[0] == "A":  # an option of its own may begin with a letter, as "C. elegans"; a list does not
        raise row.bad(name, "some options have letters and others do not")
    return tuple(text.strip() for text in value)


def letter_of(row: Row, name: str, choices: Sequence[str]) -> str:
    """The letter of the right option: `C`, or as in `C. 1989`.

    Raises:
        BadRow: it is missing, or no option has it.
    """
    text = row.text(name)
    match = re.fullmatch(r"[(\[]?([A-Za-z])[\])]?(?:[.):].*)?", text, re.DOTALL)
    letter = match.group(1).upper() if match else ""
    if not letter or letter not in ascii_uppercase[: len(choices)]:
        raise row.bad(name, f"{text[:40]!r} is the letter of none of the {len(choices)} options")
    return letter
