"""A chat model that answers from a queue. Public: use it to test agents without any model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from mia.errors import MiaError, ModelError
from mia.types import Message, Reply, Sampling, ToolSpec, Usage

Answer = str | Reply | MiaError | Callable[[Sequence[Message]], "str | Reply"]
"""What to answer: a text, a whole reply, an error to raise, or a function of the conversation."""


class ScriptedChat:
    """Answers with the queued answers in order, then with `always` if given, else raises `ModelError`.

    Example:
        >>> chat = ScriptedChat(["<answer>Vienna</answer>"])
    """

    def __init__(self, answers: Iterable[Answer] = (), *, always: Answer | None = None, context: int = 32768) -> None:
        self.name = "scripted"
        self.context = context
        self.history: list[tuple[Message, ...]] = []
        self.samplings: list[Sampling] = []
        self._queue: deque[Answer] = deque(answers)
        self._always = always

    def enqueue(self, *answers: Answer) -> None:
        """Add answers to the end of the queue."""
        self._queue.extend(answers)

    async def generate(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec] = ()) -> Reply:
        """The next answer; token counts are whitespace words, so that tests can reckon with them."""
        self.history.append(tuple(messages))
        self.samplings.append(sampling)
        if self._queue:
            answer = self._queue.popleft()
        elif self._always is not None:
            answer = self._always
        else:
            raise ModelError("the scripted model has no answer left", remedy="enqueue another answer", code="no_script")
        if isinstance(answer, MiaError):
            raise answer
        made = answer(messages) if callable(answer) else answer
        if isinstance(made, Reply):
            return made
        usage = Usage(
            prompt_tokens=sum(len(m.text.split()) for m in messages), completion_tokens=len(made.split()), calls=1
        )
        return Reply(text=made, usage=usage, model=self.name)

    async def aclose(self) -> None:
        """Nothing to free."""
