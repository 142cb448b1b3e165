"""Image search as a tool of the Executor: pictures like one of the question's, or by words, with their titles.

Where it looks (a cache by question, Serper Lens, an index of your own) is the business of `web_tools`. In the original
the tool is called `web_image_to_image_search`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from inference.tools import MAX_QUERY
from mia.errors import DataError, as_error
from mia.pictures import fitted
from mia.types import Observation, Question, Text, ToolCall, ToolSpec

if TYPE_CHECKING:
    from web_tools.protocol import WebTools
    from web_tools.records import ImageHit, ImageQuery

CAPTION_CHARS = 2000
"""Characters of a caption that the search is told."""
SIDE = 1024
"""Longest side, in pixels, of a picture that is searched by."""
CHARS = 4_000_000
"""Characters of its data URL."""


class ImageSearchArguments(BaseModel):
    """Arguments of the image search tool."""

    model_config = ConfigDict(extra="forbid")

    picture: int = Field(1, description="number of the question's picture to search by, from 1")
    query: Text = Field("", max_length=MAX_QUERY, description="words to search pictures by, in place of a picture")


class ImageSearchTool:
    """Finds up to k pictures. They reach the Executor as pixels, their titles as text.

    Args:
        web: does the search.
        k: pictures that are shown.
    """

    def __init__(self, web: WebTools, k: int) -> None:
        self._web = web
        self._k = k
        parameters: dict[str, JsonValue] = ImageSearchArguments.model_json_schema()
        self.spec = ToolSpec(
            name="image_search",
            description="finds pictures like the question's and what they show; can be used once",
            parameters=parameters,
            needs_picture=True,
            once=True,
        )

    async def run(self, call: ToolCall, question: Question) -> Observation:
        """See `Tool.run`."""
        arguments = ImageSearchArguments.model_validate(call.arguments)
        if not arguments.query.strip() and not 1 <= arguments.picture <= len(question.images):
            last = f"picture must be from 1 to {len(question.images)}"
            return Observation(call_id=call.id, text=f"Arguments of image_search do not fit: {last}.", refused=True)
        wanted = await asyncio.to_thread(_wanted, arguments, question)
        (result,) = await self._web.images([wanted], self._k, download=True)
        if result.failure is not None:
            raise as_error(result.failure)
        return Observation(
            call_id=call.id,
            text=found_text(result.hits),
            images=tuple(hit.image for hit in result.hits if hit.image is not None),
            hits=tuple(hit.as_hit(self._web.name) for hit in result.hits),
        )


def _wanted(arguments: ImageSearchArguments, question: Question) -> ImageQuery:
    """What to look for.

    Raises:
        DataError: the question's id is too long to be asked for.
    """
    from web_tools.records import ImageQuery

    if arguments.query.strip():
        return ImageQuery(query=arguments.query.strip())
    picture = fitted(question.images[arguments.picture - 1], SIDE, CHARS)
    try:
        return ImageQuery(image=picture, caption=question.caption[:CAPTION_CHARS], question_id=question.id)
    except ValidationError as error:  # not the model's mistake
        what = f"question {question.id!r:.80}: no picture can be searched for it: {error.errors()[0]['msg']}"
        raise DataError(what, remedy="give it an id of at most 200 characters", code="bad_id") from error


def found_text(hits: tuple[ImageHit, ...]) -> str:
    """Titles and snippets of pictures as the model reads them; those that come with pixels are numbered in order."""
    lines = []
    number = 0
    for hit in hits:
        number += hit.image is not None
        head = f"Picture {number}" if hit.image is not None else "A picture not shown"
        lines.append(f"{head}: {' '.join(f'{hit.title}. {hit.snippet}'.split())}")
    return "\n".join(lines) or "Nothing was found."
