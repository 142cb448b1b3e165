"""When two memories are the same, and which of them stays: the label-aware duplicate rule.

    draft       twin of the same label        else a twin of another label
    correct     the shorter workflow stays    incorrect: both stay; unjudged: the draft replaces it
    incorrect   the newer one stays           correct: both stay; unjudged: the draft replaces it
    unjudged    the newer one stays           correct or incorrect: the twin stays, the draft is dropped

So a failure never replaces a success, a guess never replaces a verdict, and of one question one success and one failure
stand side by side. Nor does what rests on less (see `Trust`) replace what rests on more. What is merely alike is merged
by `memory_serve.keep`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

from memory_serve.ranking import Floats, Ints, best
from memory_serve.vectors import OUTCOMES, Bucket
from mia.types import Outcome

MAX_WORDS = 120
MAX_WORD = 40
"""Of up to so many words, each of so many characters, an encoder with 256 word pieces reads the whole."""

Decision = tuple[Literal["stored", "replaced", "kept"], str]
"""What becomes of a draft, and the id of the memory it replaces or yields to; no id when it is stored anew."""


def twins(
    bucket: Bucket,
    rows: Ints,
    similarities: Floats,
    threshold: float,
    modality: str,
    captioned: bool,
    source_id: str,
) -> dict[Outcome, str]:
    """The nearest memory of each outcome that is of the same question as a draft.

    Args:
        bucket: the memories of the draft's bucket.
        rows: the m rows that are looked at, (m,).
        similarities: raw similarities of the draft to them, (m,).
        threshold: similarity from which two questions are the same.
        modality: the draft's modality.
        captioned: whether the draft has a caption.
        source_id: id of the draft's question.

    Returns:
        Ids by outcome; an outcome without twin is absent.
    """
    same = (similarities >= threshold) & (bucket.captioned[rows] == captioned)
    if modality == "text-image" and not captioned:
        # `Who is this?` asked of two pictures is not one question; without captions only the source can tell.
        same &= ~bucket.foreign(source_id)[rows] if source_id else False
    if not same.any():
        return {}
    ids = [bucket.ids[row] for row in rows]
    found: dict[Outcome, str] = {}
    for outcome in OUTCOMES:
        nearest = best(similarities, bucket.created[rows], ids, same & bucket.having(outcome)[rows], 1)
        if nearest:
            found[outcome] = ids[nearest[0]]
    return found


def same_question(text: str, other: str) -> bool:
    """Whether equal vectors of two questions may be believed.

    An encoder reads the beginning of a long text only, and all that it does not know looks alike to it: questions of
    which it may have missed something are the same only if their words are.
    """
    return (_legible(text) and _legible(other)) or _words(text) == _words(other)


def _legible(text: str) -> bool:
    words = _words(text)
    return 2 <= len(words) <= MAX_WORDS and max(map(len, words)) <= MAX_WORD and "".join(words).isascii()


def _words(text: str) -> list[str]:
    """The words of a text, or its signs if it has no word."""
    folded = text.casefold()
    return re.findall(r"\w+", folded) or folded.split()


def decide(
    outcome: Outcome, twins: Mapping[Outcome, str], shorter: Callable[[str], bool], weaker: Callable[[str], bool]
) -> Decision:
    """What to do with a draft.

    Args:
        outcome: how the draft's run was judged.
        twins: ids of memories of the same question, by outcome.
        shorter: whether the draft's workflow has fewer words than that of a memory.
        weaker: whether the draft's outcome rests on less than that of a memory.
    """
    judged = twins.get("correct") or twins.get("incorrect")
    if outcome == "unjudged" and judged:
        return "kept", judged
    own = twins.get(outcome)
    if own:
        keeps = weaker(own) or (outcome == "correct" and not shorter(own))
        return ("kept", own) if keeps else ("replaced", own)
    unjudged = twins.get("unjudged")
    return ("replaced", unjudged) if unjudged else ("stored", "")
