"""The tokens of a trained role's conversation: those it sampled as they were sampled, those that others wrote between.

Their text is what serving would send for the same conversation; where the template or a stop text changed what was
sampled, the changed part counts as written by others. Pictures are one placeholder each until the record is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

from mia.chat.template import Template
from mia.errors import ModelError
from mia.types import Message, Reply

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished conversation of P + C tokens.

    `sampled` (C,) is true on the tokens the trained model sampled, `logprobs` (C,) holds their log-probabilities and 0
    elsewhere. Pictures stand at full width in the ids; `images` are they, in order. `cut` says that a limit
    took its end away.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    logprobs: tuple[float, ...]
    images: tuple[str, ...] = ()
    cut: bool = False


@dataclass
class Conversation:
    """A conversation while it goes on.

    Args:
        template: of the trained model.
        ends: tokens that end a reply.
    """

    template: Template
    ends: frozenset[int]
    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    _prompt: int = 0
    _told: int = 0
    _text: str = ""
    _reply: Reply | None = None

    def extend(self, messages: Sequence[Message]) -> list[int]:
        """The tokens up to where the next reply starts.

        Args:
            messages: the whole conversation; it goes on from the one of the last call and the reply to it.

        Raises:
            ModelError: the template writes earlier turns another way once there is a later one (code `bad_template`).
        """
        if self._reply is None:
            self._write(self.template.ids(messages))
            self._prompt = len(self.ids)
        else:
            before, tail = self.template.after(messages, self._told)
            if before != self._text + self._reply.text:
                raise ModelError(
                    "the chat template rewrites earlier turns", remedy='set policy.template = "chatml"',
                    code="bad_template",
                )  # fmt: skip
            self._settle(self._reply, tail)
        self._told, self._text, self._reply = len(messages), self.template.text(messages), None
        self.images = [image for message in messages for image in message.images]
        return list(self.ids)

    def add(self, reply: Reply) -> None:
        """Take the reply that was sampled after `extend`; its `tokens` must be there."""
        self._reply = reply

    def finished(self, limit: int, placeholder: int | None = None, widths: Sequence[int] = ()) -> Rollout:
        """The whole record, in which the last reply stands as it was sampled.

        Args:
            limit: tokens that P + C may have; the end is cut off, pictures whole or not at all. What others wrote after
                the last sampled token is left out as well.
            placeholder: the token that stands for a picture.
            widths: tokens that each picture takes.
        """
        if self._reply is not None and self._reply.tokens is not None:
            self._write(self._reply.tokens.completion_ids, self._reply.tokens.logprobs)
            self._reply = None
        waiting = iter(widths)
        sizes = [next(waiting) if token == placeholder else 1 for token in self.ids]
        fits = sum(1 for end in accumulate(sizes) if end <= limit)
        end = next((at for at in range(fits, self._prompt, -1) if self.sampled[at - 1]), self._prompt)

        def wide(values: Sequence[T], start: int, stop: int) -> tuple[T, ...]:
            pairs = zip(values[start:stop], sizes[start:stop], strict=True)
            return tuple(value for value, size in pairs for _ in range(size))

        return Rollout(
            wide(self.ids, 0, self._prompt),
            wide(self.ids, self._prompt, end),
            wide(self.sampled, self._prompt, end),
            wide(self.logprobs, self._prompt, end),
            tuple(self.images[: sum(token == placeholder for token in self.ids[:end])]),
            cut=any(self.sampled[end:]),
        )

    def _settle(self, reply: Reply, tail: list[int]) -> None:
        """Write a reply as the conversation holds it, and what follows it."""
        assert reply.tokens is not None
        ids, logprobs = reply.tokens.completion_ids, reply.tokens.logprobs
        ended = ids[-1] in self.ends
        body = ids[:-1] if ended else ids
        kept = agreed(self.template, body, reply.text)
        rest = reply.text[len(self.template.decoded(body[:kept], control=True)) :]
        if ended and kept == len(body) and not rest and ids[-1] == tail[0]:
            self._write(ids, logprobs)
            self._write(tail[1:])
        else:
            self._write(body[:kept], logprobs[:kept])
            self._write(self.template.plain(rest) + tail)

    def _write(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        self.ids += ids
        self.sampled += [logprobs is not None] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)


def agreed(template: Template, ids: Sequence[int], text: str) -> int:
    """How many of the tokens, from the first on, write the beginning of a text."""
    low, high = 0, len(ids)
    if template.decoded(ids, control=True) == text:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(template.decoded(ids[:middle], control=True)):
            low = middle
        else:
            high = middle - 1
    return low
