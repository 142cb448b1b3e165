"""The Executor's tools: what they are called, how their arguments are checked, how results are written out.

A tool returns observations. A model's mistake (unknown tool, arguments that do not fit) becomes text that tells the
model so; a tool's failure becomes a `Failure` without text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator

from local_search.protocol import SearchBackend
from mia.errors import DataError, MiaError, ToolError
from mia.types import Hit, Observation, Passage, Question, Text, ToolCall, ToolSpec

if TYPE_CHECKING:
    from web_tools.protocol import WebTools


MAX_QUERY = 1000
"""Characters of a query, at most."""


class Tool(Protocol):
    """One tool. `run` answers a call whose arguments are as the model wrote them."""

    spec: ToolSpec

    async def run(self, call: ToolCall, question: Question) -> Observation:
        """Answer one call made for a question.

        Raises:
            ValidationError: the arguments do not fit; the model is told so.
            MiaError: the tool itself failed.
        """
        ...


class SearchArguments(BaseModel):
    """Arguments of the search tool."""

    model_config = ConfigDict(extra="forbid")

    query: Text = Field(max_length=MAX_QUERY, description="what to look for, in a few words")

    @field_validator("query")
    @classmethod
    def _not_blank(cls, query: str) -> str:
        if not query.strip():
            raise ValueError("is blank")
        return query


class SearchTool:
    """Text search over any backend; shows the k best passages with their titles."""

    def __init__(self, backend: SearchBackend, k: int) -> None:
        self._backend = backend
        self._k = k
        parameters: dict[str, JsonValue] = SearchArguments.model_json_schema()
        self.spec = ToolSpec(
            name="search", description="finds passages of an encyclopedia or the web", parameters=parameters
        )

    async def run(self, call: ToolCall, question: Question) -> Observation:
        """See `Tool.run`."""
        arguments = SearchArguments.model_validate(call.arguments)
        (hits,) = await self._backend.search([arguments.query], self._k)
        return Observation(call_id=call.id, text=results_text(hits), hits=tuple(hits))


class VisitArguments(BaseModel):
    """Arguments of the visit tool."""

    model_config = ConfigDict(extra="forbid")

    url: Text = Field(min_length=1, max_length=2000, description="address of the page, from a search result")
    goal: Text = Field("", max_length=1000, description="what to find on the page; empty: its beginning")


PAGE_FAULTS = {
    "too_large": "it is too large",
    "unsupported_type": "it is neither a web page nor a PDF",
    "unreadable_page": "it cannot be decoded",
    "no_text": "it holds no text",
    "too_many_redirects": "it redirects without end",
}
"""Faults of a page itself; they are evidence for the model, as an empty search result is. All others are failures."""


class VisitTool:
    """Reads a page of the web."""

    def __init__(self, web: WebTools) -> None:
        self._web = web
        parameters: dict[str, JsonValue] = VisitArguments.model_json_schema()
        self.spec = ToolSpec(name="visit", description="reads a web page found by search", parameters=parameters)

    async def run(self, call: ToolCall, question: Question) -> Observation:
        """See `Tool.run`."""
        arguments = VisitArguments.model_validate(call.arguments)
        try:
            page = await self._web.visit(arguments.url, arguments.goal)
        except DataError as error:  # the engine checks nothing but the address and the goal, which the model chose
            return Observation(call_id=call.id, text=f"Arguments of visit do not fit: {error.message}.", refused=True)
        except ToolError as error:
            gone = "the site refuses it" if error.code.startswith("http_4") and error.code != "http_429" else ""
            reason = PAGE_FAULTS.get(error.code, gone)
            if not reason:
                raise
            return Observation(call_id=call.id, text=f"The page cannot be read: {reason}.")
        passage = Passage(id=page.url, title=page.title, text=page.text)
        hit = Hit(passage=passage, score=1.0, rank=1, backend=self._web.name)
        nothing = "The page says nothing on this." if arguments.goal else "The page is empty."
        text = f"{page.title}\n{page.text}" if page.text else nothing
        return Observation(call_id=call.id, text=text, hits=(hit,) if page.text else ())


def results_text(hits: Sequence[Hit]) -> str:
    """Hits as the model reads them, best first: title and text, without numbers, which small models copy as answers."""
    return "\n\n".join(f"{hit.passage.title}: {hit.passage.text}" for hit in hits) or "Nothing was found."


class ToolBox:
    """Runs calls of several tools at once and turns what goes wrong into observations."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.spec.name: tool for tool in tools}

    def offered(self, question: Question) -> tuple[ToolSpec, ...]:
        """The tools there are for a question, in order."""
        specs = (tool.spec for tool in self._tools.values())
        return tuple(spec for spec in specs if question.images or not spec.needs_picture)

    async def run(self, calls: Sequence[ToolCall], question: Question) -> tuple[Observation, ...]:
        """One observation per call, in the order of the calls."""
        if len(calls) == 1:
            return (await self._run(calls[0], question),)
        return tuple(await asyncio.gather(*(self._run(call, question) for call in calls)))

    async def _run(self, call: ToolCall, question: Question) -> Observation:
        offered = [spec.name for spec in self.offered(question)]
        tool = self._tools.get(call.name)
        if tool is None or call.name not in offered:
            names = ", ".join(offered) or "none"
            return Observation(call_id=call.id, text=f"There is no tool {call.name}. Tools: {names}.", refused=True)
        started = time.perf_counter()
        try:
            observation = await tool.run(call, question)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors())
            text = f"Arguments of {call.name} do not fit: {faults}."
            observation = Observation(call_id=call.id, text=text, refused=True)
        except MiaError as error:
            observation = Observation(call_id=call.id, failure=error.failure())
        return observation.model_copy(update={"seconds": time.perf_counter() - started})
