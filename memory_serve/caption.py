"""A picture in words, so that memory can compare it."""

from __future__ import annotations

from mia.chat import ChatModel
from mia.errors import ParseError
from mia.prompts import prompt
from mia.types import Message, Question, Sampling

_MOST_CHARACTERS = 2000


async def caption(model: ChatModel, question: Question) -> str:
    """What the pictures of a question show, as a model that can see describes them, on one line.

    Raises:
        ModelError: the model did not answer.
        ParseError: it wrote nothing.
    """
    text = prompt("manager/caption").render(question=question.text)
    message = Message(role="user", text=text, images=question.images)
    reply = await model.generate([message], Sampling(max_tokens=512))
    seen = " ".join(reply.text.rpartition("</think>")[2].split())[:_MOST_CHARACTERS]
    if not seen or seen.startswith("<think>"):
        raise ParseError(
            f"{model.name} described no picture: {reply.text[:200]!r}",
            remedy="use an Executor model that takes pictures, or set memory.caption = false",
            code="no_caption",
        )
    return seen
