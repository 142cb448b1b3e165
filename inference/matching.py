"""Answers compared by rule where no text metric fits: accepted lists, letters of multiple choice, GAIA.

No model is asked. These comparisons are more forgiving about form than exact match and are reported under their own
names (`accepted`, `choice`, `gaia`), never as EM.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from string import ascii_uppercase, punctuation

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)")
_GROUPS = re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))")
_POINT = re.compile(r"(?<=\d)[.,](?=\d)")
_ACCENTS = re.compile("[\u0300-\u036f]")
_ARTICLES = ("a", "an", "the")
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_WORDS = {word: str(number) for number, word in enumerate(_DIGITS)}
_LEAD_IN = re.compile(
    r"(?:so\W+|therefore\W+)?(?:the\s+)?(?:final\s+|correct\s+|best\s+|right\s+)*(?:answer|option|choice)\b"
    r"(?:\s+is\b)?\s*:?\s*(?:(?:option|choice)\b\s*)?",
    re.IGNORECASE,
)
_ALONE = re.compile(r"[(\[]?([A-Za-z])[)\]]?[.:]?")
_LED = re.compile(r"(?:[(\[]([A-Z])[)\]][.:]?\s*|([A-Z])(?:[.:,)\]]\s+|\s+[-–—]\s+|\s*\n\s*))(\S.*)", re.DOTALL)
_OWN_LETTER = re.compile(r"\s*[(\[]?([A-Z])[.:)\]]\s*")
_NAMED = re.compile(r"(?<![\w'’])(?!A\s+\w)(?!I\b)[A-Z](?![\w'’])")
"""A letter that stands alone and is neither the article nor the pronoun."""


def accepted(answer: str, answers: Iterable[str]) -> bool:
    """Whether an open answer is one of the accepted ones (LiveVQA's `Ground_Truth_List`).

    Both sides are folded first: Unicode compatibility forms, accents, case, dashes, apostrophes, punctuation, articles
    and white space do not count; the number words zero to ten are numbers, as in the VQA evaluation. Two numbers are
    equal by value (`2.0` and `2`, `1,000` and `$1000`), signs of currency and per cent left out. Nothing is searched
    for inside a longer answer.
    """
    folded = _fold(answer)
    return bool(folded) and any(folded == _fold(other) for other in answers)


def read_choice(answer: str, choices: Sequence[str] = ()) -> str | None:
    """The letter that an answer to a multiple choice question chooses, or None if that is not clear.

    Read are a letter alone (`B`, `b`, `(B)`, `**B**`, `B.`), a letter with its text or a remark (`B. Vienna`,
    `(B) Vienna`), the text of one option alone, and each of these behind words such as `The answer is`. Not clear are
    a letter that no option has, a letter with the text or the letter of another option, a text that two options have,
    a text that is one option's letter and another's text, and everything else.

    Args:
        answer: what was answered.
        choices: texts of the options in the order of their letters, with or without `A.` before each; when empty,
            only letters can be read.
    """
    options = dict(zip(ascii_uppercase, (_fold(text) for text in _without_letters(choices)), strict=False))
    plain = _unmarked(answer)
    lead = _LEAD_IN.match(plain)
    texts = (plain, _unmarked(plain[lead.end() :])) if lead else (plain,)
    found = {letter for text in texts for letter in _read(text, options)}
    return found.pop() if len(found) == 1 else None


def gaia_match(answer: str, reference: str) -> bool:
    """Whether an answer is right by the rules of GAIA's scorer (Mialon et al. 2023, leaderboard `scorer.py`).

    A reference that is a number wants an equal number, `$`, `%` and `,` of the answer left out. One with a comma or a
    semicolon is a list: as many elements, in order, numbers by value, texts without white space and case. Any other is
    compared without white space, case and ASCII punctuation. Kept as it is there: `1,000` is a list of two elements.
    Not as there: a number that is not finite (`inf`, `nan`) is a text, as an unreadable answer counts as infinite.
    """
    if _is_number(reference):
        return _gaia_number(answer) == float(reference)
    if any(mark in reference for mark in ",;"):
        wanted, given = re.split("[,;]", reference), re.split("[,;]", answer)
        return len(wanted) == len(given) and all(map(_gaia_element, given, wanted))
    return _gaia_text(answer) == _gaia_text(reference)


def _fold(text: str) -> str:
    """The form in which accepted answers and options are compared; a number is written in one way."""
    plain = _GROUPS.sub("", unicodedata.normalize("NFKC", text)).strip()
    number = plain.strip("$€£% ").rstrip(".").replace("−", "-")
    if _NUMBER.fullmatch(number):
        plain = f"{Decimal(number):f}"
        return plain.rstrip("0").rstrip(".") if "." in plain else plain
    # Accents of Latin, Greek and Cyrillic only: marks of other scripts make other words.
    bare = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", plain.casefold())))
    words = _POINT.sub("\0", bare).translate(_MARKS).replace("\0", ".").split()
    return " ".join(_WORDS.get(word, word) for word in [w for w in words if w not in _ARTICLES] or words)


class _Marks(dict[int, str | None]):
    """For `str.translate`: dashes and separators become spaces, other punctuation goes, the rest stays."""

    def __missing__(self, code: int) -> str | None:
        kind = unicodedata.category(chr(code))
        return " " if kind == "Pd" or kind[0] == "Z" else None if kind[0] == "P" else chr(code)


_MARKS = _Marks()


def _without_letters(choices: Sequence[str]) -> list[str]:
    """The texts of the options, without `A.`, `B.`… where every option has its own."""
    led = [_OWN_LETTER.match(text) for text in choices]
    if all(match and match.group(1) == letter for match, letter in zip(led, ascii_uppercase, strict=False)):
        return [text[match.end() :] for text, match in zip(choices, led, strict=True) if match]
    return list(choices)


def _unmarked(text: str) -> str:
    """The text without emphasis, and without white space and quotes around it."""
    return text.replace("**", "").replace("__", "").strip("`\"'“”* \t\r\n")


def _read(text: str, options: dict[str, str]) -> set[str]:
    """Every letter that the text may mean."""
    folded = _fold(text)
    wanted = {letter: (option, f"{letter.lower()} {option}") for letter, option in options.items() if option}
    found = {letter for letter, forms in wanted.items() if folded in forms}
    known = options or ascii_uppercase
    if (alone := _ALONE.fullmatch(text)) and alone.group(1).upper() in known:
        found.add(alone.group(1).upper())
    elif (led := _LED.fullmatch(text)) and (letter := led.group(1) or led.group(2)) in known:
        found |= {letter} | _others(letter, led.group(3), options)
    return found


def _others(letter: str, rest: str, options: dict[str, str]) -> set[str]:
    """The options that the text behind a letter names, by their text or letter, beside the letter's own."""
    own, folded = options.get(letter, ""), _fold(rest)
    if own and folded == own:
        return set()
    texts = {
        other
        for other, option in options.items()
        if option and f" {option} " in f" {folded} " and f" {option} " not in f" {own} "
    }
    return (texts | {name for name in _NAMED.findall(rest) if not options or name in options}) - {letter}


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _gaia_number(text: str) -> float:
    bare = text.translate(str.maketrans("", "", "$%,"))
    return float(bare) if _is_number(bare) else math.inf


def _gaia_element(given: str, wanted: str) -> bool:
    if _is_number(wanted):
        return _gaia_number(given) == float(wanted)
    return "".join(given.split()).lower() == "".join(wanted.split()).lower()


def _gaia_text(text: str) -> str:
    return "".join(text.split()).lower().translate(str.maketrans("", "", punctuation))
