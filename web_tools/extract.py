"""What of a page serves a goal: by a model where there is one, else the passages that match the goal best."""

from __future__ import annotations

import re
from typing import NamedTuple

from mia.chat import ChatModel
from mia.errors import ModelError
from mia.prompts import prompt
from mia.types import Message, Sampling
from web_tools.ranking import Bm25

_PASSAGE_WORDS = 120
_CHARS_PER_TOKEN = 3
"""Fewer than English has, so that a page fits into the context of a model in any case."""
_THINKING = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_NOTHING = re.compile(r"\W*nothing\W*", re.IGNORECASE)
PROMPT = "executor/extract"


class Extract(NamedTuple):
    """What serves the goal, and whether there was more."""

    text: str
    truncated: bool


def passages(text: str) -> list[str]:
    """A text in passages of at most 120 words that end where a line ends, unless a line is longer than that."""
    made: list[list[str]] = [[]]
    for line in text.splitlines():
        words = line.split()
        if made[-1] and len(made[-1]) + len(words) > _PASSAGE_WORDS:
            made.append([])
        for start in range(0, len(words), _PASSAGE_WORDS):
            if start:
                made.append([])
            made[-1].extend(words[start : start + _PASSAGE_WORDS])
    return [" ".join(words) for words in made if words]


def matching(text: str, goal: str, count: int, max_chars: int) -> Extract:
    """The `count` passages that match a goal best by BM25, in the order of the text, within `max_chars` characters.

    Passages that share no word with the goal are left out; if all are, the extract is empty.
    """
    parts = passages(text)
    taken: list[int] = []
    size = 0
    for row, _ in Bm25(parts).top(goal, count):
        if size + len(parts[row]) > max_chars and taken:
            break
        taken.append(row)
        size += len(parts[row]) + 2
    chosen = "\n\n".join(parts[row] for row in sorted(taken))
    return Extract(chosen[:max_chars], len(taken) < len(parts) or len(chosen) > max_chars)


async def extracted(url: str, text: str, goal: str, chat: ChatModel, max_tokens: int, max_chars: int) -> Extract:
    """What a model writes out of a page for a goal; empty if it says that the page has nothing on it.

    A page longer than `max_chars`, or than the model's context holds, is shown in those passages that match the goal.

    Raises:
        ModelError: the model did not answer, or with an empty text.
    """
    template = prompt(PROMPT)
    frame = len(template.text) + len(url) + len(goal)
    room = min(max_chars, max(200, (chat.context - max_tokens) * _CHARS_PER_TOKEN - frame))
    shown = Extract(text, False)
    if len(text) > room:
        shown = matching(text, goal, len(text), room)
        if not shown.text:
            return Extract("", True)
    message = Message(role="user", text=template.render(url=url, goal=goal, text=shown.text))
    reply = await chat.generate([message], Sampling(max_tokens=max_tokens))
    said = _THINKING.sub("", reply.text).strip()
    if not said:
        raise ModelError(
            f"{chat.name} extracted nothing, not even the word that says so",
            remedy="raise web.visit.extract_tokens, or use another model",
            code="empty_reply",
        )
    return Extract("" if _NOTHING.fullmatch(said) else said, shown.truncated or reply.finish_reason == "length")
