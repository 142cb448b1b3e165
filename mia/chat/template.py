"""Conversations as tokens: the checkpoint's own chat template; a control token typed in a message is only text.

A conversation can also be continued token by token: what was sampled stays as it was sampled, and only what the
template writes after it is made into tokens. Left out: pictures; one placeholder stands for each.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

from mia.errors import ModelError
from mia.types import Message


class Template:
    """The chat template of one checkpoint.

    Args:
        tokenizer: as transformers loads it, with a chat template.
        name: what messages call the checkpoint.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        self.tokenizer = tokenizer
        self._name = name
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._typed = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)")

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, up to where the reply starts; a picture is one placeholder.

        They are those of `apply_chat_template`, except that a control token typed in a message is only its characters.
        """
        mark = secrets.token_hex(8)  # fences typed control tokens while the template is filled in
        return self._tokens(self._filled(messages, mark).split(mark))

    def text(self, messages: Sequence[Message]) -> str:
        """What the model reads, up to where the reply starts."""
        mark = secrets.token_hex(8)
        return _unfenced(self._filled(messages, mark).split(mark))

    def after(self, messages: Sequence[Message], place: int) -> tuple[str, list[int]]:
        """What the template writes after the text of a message, up to where the next reply starts.

        Args:
            messages: the whole conversation.
            place: index of the message.

        Returns:
            The text of everything up to the end of that message, and the token ids of what follows it.

        Raises:
            ModelError: the template changes the text of messages (code `bad_template`).
        """
        mark, cut = secrets.token_hex(8), secrets.token_hex(8)
        filled = self._filled(messages, mark, place, cut)
        head, found, tail = filled.partition(cut)
        before = _unfenced(head.split(mark))
        if not found or before + _unfenced(tail.split(mark)) != self.text(messages):
            raise ModelError(f"the template of {self._name} changes what it is given", code="bad_template")
        return before, self._tokens(tail.split(mark))

    def plain(self, text: str) -> list[int]:
        """Token ids of a text in which nothing is a control token."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
        return ids

    def decoded(self, ids: Sequence[int], control: bool = False) -> str:
        """The text of tokens; control tokens are left out unless they are asked for."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=not control, clean_up_tokenization_spaces=False)
        return text

    def _filled(self, messages: Sequence[Message], mark: str, place: int = -1, cut: str = "") -> str:
        from jinja2 import TemplateError

        chat: list[dict[str, Any]] = []
        for index, message in enumerate(messages):
            text = self._typed.sub(lambda hit: f"{mark}{hit[0].encode().hex()}{mark}", message.text)
            text += cut if index == place else ""
            parts = [*({"type": "image"} for _ in message.images), {"type": "text", "text": text}]
            chat.append({"role": message.role, "content": parts if message.images else text})
        try:
            filled: str = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            remedy = "order the turns as the template wants: most want user and assistant in turn"
            raise ModelError(f"template of {self._name}: {error}", remedy=remedy, code="bad_conversation") from error
        return filled

    def _tokens(self, pieces: Sequence[str]) -> list[int]:
        """Tokens of a filled template, split at its fences: every second piece is a typed control token, in hex."""
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            if index % 2:
                ids += self.plain(bytes.fromhex(piece).decode())
            else:
                ids += self.tokenizer(piece, add_special_tokens=False, split_special_tokens=False).input_ids
        return ids


def _unfenced(pieces: Sequence[str]) -> str:
    return "".join(bytes.fromhex(piece).decode() if index % 2 else piece for index, piece in enumerate(pieces))
