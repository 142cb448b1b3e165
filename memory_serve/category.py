"""Which of ten categories a question belongs to, by deterministic English rules; recall looks into one category only.

The question word decides, then the first telling noun behind it. Names do not count (a question about New York City is
no other question than the same one about Boston), nor does what stands in quotes. No model is asked.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from mia.types import Question

Classifier = Callable[[Question], str]
"""Names the category of a question; the store calls it off the event loop."""

CATEGORIES = (
    "location", "human", "time", "career", "process", "definition", "event", "function", "property", "others",
)  # fmt: skip
"""The nine categories of the original, and the rest."""

_NOUNS = {
    "location": "airport border capital cathedral city cities coast continent country countries county counties "
    "desert district harbor harbour hometown island islands lake location located mountain municipality "
    "neighborhood neighbourhood ocean peninsula place port province region river sea state states street "
    "suburb town valley village birthplace venue",
    "human": "actor actress architect artist athlete author brother child children coach composer daughter "
    "director emperor father founder husband inventor king leader man men member monarch mother musician "
    "painter people person philosopher player poet politician pope president producer prince princess "
    "queen ruler scientist singer sister son spouse wife winner woman women writer",
    "time": "age birthday century date day days decade era hour month period season time week year years",
    "career": "career employer job occupation occupations position profession professions rank trade work",
    "process": "algorithm manner mechanism method procedure process recipe steps technique way",
    "definition": "abbreviation acronym definition mean meaning stand term",
    "event": "accident attack battle ceremony championship coronation crisis cup disaster earthquake election "
    "event events festival happen happened incident match occurred race revolution storm summit "
    "tournament treaty war",
    "function": "function functions purpose role use used uses",
    "property": "altitude amount area breed color colour cost currency density depth diameter distance elevation "
    "ethnicity frequency gender genre height kind language languages length mass material nationality "
    "nickname number percentage population price religion shape size species speed temperature type value "
    "weight width",
}
_CATEGORY_OF = {noun: category for category, nouns in _NOUNS.items() for noun in nouns.split()}

_QUOTED = re.compile(r"\"[^\"]*\"|“[^”]*”|‘[^’]*’|«[^»]*»")
_WORD = re.compile(r"[^\W_]+", re.UNICODE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_ASKING = frozenset(["who", "whom", "whose", "when", "where", "why", "how", "what", "which"])
_DIRECT = {"who": "human", "whom": "human", "when": "time", "where": "location", "why": "others"}
_MEASURES = frozenset(
    ["big", "deep", "far", "fast", "heavy", "high", "large", "long", "many", "much", "old", "tall", "wide"]
)
_YES_NO = frozenset(
    ["are", "can", "could", "did", "do", "does", "had", "has", "have", "is", "was", "were", "will", "would"]
)
_COPULA = frozenset(["is", "are", "was", "were"])
_REACH = 8
"""How many words behind the question word may decide."""


def by_rules(question: Question) -> str:
    """The category of a question, one of `CATEGORIES`. The caption is not looked at."""
    words, asking = _asking_words(_QUOTED.sub(" ", question.text))
    if asking is None:
        return "property" if words and words[0].lower() in _YES_NO else "others"
    asked, rest = words[asking].lower(), words[asking + 1 :]
    if asked in _DIRECT:
        return _DIRECT[asked]
    if asked == "how":
        return "property" if rest and rest[0].lower() in _MEASURES else "process"
    return _by_noun(rest) or ("human" if asked == "whose" else _by_shape(rest))


def _asking_words(text: str) -> tuple[list[str], int | None]:
    """The words of the last sentence that has a question word, and where that word is; else all words and None."""
    if text.isupper():
        text = text.lower()
    for sentence in reversed(_SENTENCE_END.split(text)):
        words = _WORD.findall(sentence)
        for position, word in enumerate(words):
            if word.lower() in _ASKING:
                return words, position
    return _WORD.findall(text), None


def _by_noun(rest: list[str]) -> str | None:
    # A capital letter marks a part of a name, which tells nothing of what is asked.
    found = (_CATEGORY_OF.get(word) for word in rest[:_REACH] if not word[0].isupper())
    return next((category for category in found if category), None)


def _by_shape(rest: list[str]) -> str:
    """`What is a fjord?` and the like ask for a definition; a name counts as one word."""
    names = [word[0].isupper() for word in rest]
    length = len(rest) - sum(a and b for a, b in itertools.pairwise(names))
    if len(rest) >= 2 and rest[0].lower() in _COPULA and (rest[1].lower() in ("a", "an") or length <= 3):
        return "definition"
    return "others"
