"""Chat logs become episodes: a user's question, the answer of whoever answered, and what the user said next.

Two forms, told apart line by line:

    OpenAI     a line is a conversation: `{"messages": [{"role": "user", "content": "…"}, …]}`, content as a text or as
               a list of parts; tool messages and calls are skipped
    OpenClaw   a file is a session: first `{"type": "session", "id": …}`, then a line for each message,
               `{"type": "message", "message": {"role": "user", "content": [{"type": "text", "text": "…"}]}}`, with
               lines of other types (models, thinking levels, tool results) between them

What an assistant said in several turns before the user spoke again is one answer: its last text. A question that nobody
said anything about teaches nothing, and is left out. Ids follow from the content, so that reading a log twice learns
once. Left out: pictures, and what the assistant thought.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mia.errors import DataError
from mia.types import clean_text
from ttrl_streaming.schema import EpisodeItem

Turn = tuple[str, str]
"""Who spoke, `user` or `assistant`, and what."""
_LONGEST = 20_000


def read_episodes(path: Path) -> list[EpisodeItem]:
    """The episodes of a file, in order.

    Raises:
        DataError: it cannot be read, or a line has neither form; the error names file, line and field.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}", remedy="give a JSONL file of conversations") from error
    found = {episode.id: episode for turns in _conversations(path, lines) for episode in episodes(turns)}
    return list(found.values())


def episodes(turns: Sequence[Turn]) -> Iterator[EpisodeItem]:
    """The episodes of one conversation."""
    joined: list[Turn] = []
    for who, text in turns:
        if joined and joined[-1][0] == who:
            joined[-1] = who, f"{joined[-1][1]}\n\n{text}" if who == "user" else text
        else:
            joined.append((who, text))
    for place in range(len(joined) - 2):
        (who, question), (_, answer), (_, said) = joined[place : place + 3]
        if who == "user":
            name = hashlib.sha256(json.dumps([question, answer, said]).encode()).hexdigest()[:24]
            parts = {"question": question, "answer": answer, "said": said}
            yield EpisodeItem.model_validate({"id": f"chat-{name}", **{k: v[:_LONGEST] for k, v in parts.items()}})


def _conversations(path: Path, lines: Sequence[str]) -> Iterator[list[Turn]]:
    session: list[Turn] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        entry = _object(line, where)
        if isinstance(entry.get("messages"), list):
            yield [turn for message in entry["messages"] for turn in _turn(message, where)]
        elif entry.get("type") == "session":
            yield session
            session = []
        elif entry.get("type") == "message":
            session += _turn(entry.get("message"), where)
        elif not isinstance(entry.get("type"), str):
            raise DataError(
                f"{where}: neither `messages` nor `type`",
                remedy="give conversations in OpenAI's form, or an OpenClaw session", code="bad_conversation",
            )  # fmt: skip
    yield session


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: no JSON: {error}", remedy="mend the line", code="bad_conversation") from error
    if not isinstance(entry, dict):
        raise DataError(f"{where}: no JSON object", remedy="mend the line", code="bad_conversation")
    return entry


def _turn(message: Any, where: str) -> Iterator[Turn]:
    """What a message says, if a user or an assistant says something in it."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise DataError(f"{where}: message.role: there is none", remedy="mend the line", code="bad_conversation")
    content = message.get("content")
    if message["role"] not in ("user", "assistant") or content is None:
        return
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise DataError(f"{where}: message.content: neither text nor parts", remedy="mend the line",
                        code="bad_conversation")  # fmt: skip
    texts = [part["text"] for part in parts if part.get("type") == "text" and isinstance(part.get("text"), str)]
    text = str(clean_text("\n".join(texts))).strip()
    if text:
        yield message["role"], text
