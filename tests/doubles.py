"""Test doubles of the public Protocols: a search with fixed passages, and a driver put together of doubles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inference.driver import Driver
from inference.tools import SearchTool, ToolBox
from memory_serve.protocol import MemoryStore
from mia.chat.scripted import ScriptedChat
from mia.errors import MiaError
from mia.types import Hit, Passage, Role

VIENNA = Passage(id="1", title="Vienna", text="Vienna, the capital of Austria, lies on the Danube.")
DANUBE = Passage(id="2", title="Danube", text="The Danube flows through Vienna to the Black Sea.")


class FixedSearch:
    """Finds every passage whose title occurs in the query; raises what `errors` holds for a query."""

    name = "fixed"

    def __init__(
        self, passages: Sequence[Passage] = (VIENNA, DANUBE), errors: Mapping[str, MiaError] | None = None
    ) -> None:
        self.queries: list[str] = []
        self._passages = passages
        self._errors = errors or {}

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `SearchBackend.search`."""
        self.queries.extend(queries)
        for query in queries:
            if query in self._errors:
                raise self._errors[query]
        return [self._hits(query)[:k] for query in queries]

    def _hits(self, query: str) -> list[Hit]:
        found = [p for p in self._passages if p.title.lower() in query.lower()]
        return [Hit(passage=p, score=1.0, rank=rank, backend=self.name) for rank, p in enumerate(found, start=1)]

    async def aclose(self) -> None:
        """Nothing to free."""


def call(query: str) -> str:
    """A search call in our grammar."""
    return f'<tool_call>{{"name": "search", "arguments": {{"query": "{query}"}}}}</tool_call>'


def scripted(planner: ScriptedChat, executor: ScriptedChat, **others: ScriptedChat) -> dict[Role, ScriptedChat]:
    """Models by role; roles that are not given fail when used."""
    models: dict[Role, ScriptedChat] = {"planner": planner, "executor": executor}
    for role in ("manager", "judge", "router"):
        models[role] = others.get(role, ScriptedChat())  # type: ignore[index]  # the names are roles
    return models


def driver(
    models: Mapping[Role, ScriptedChat], search: FixedSearch | None = None, memory: MemoryStore | None = None
) -> Driver:
    """A driver over doubles, with the search tool and three passages a search."""
    return Driver(models, ToolBox([SearchTool(search or FixedSearch(), 3)]), memory)
