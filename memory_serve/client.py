"""A memory service as a `MemoryStore`: the same methods and the same errors as in-process."""

from __future__ import annotations

import copy
import os
import re
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from memory_serve.checks import check_namespace
from memory_serve.protocol import MAX_BATCH, Added, Change, Compacted, Credited, Draft, Edit, PlanPair, Stats, Stored
from memory_serve.schema import (
    AbsorbRequest,
    AddAnswer,
    AddRequest,
    ClearRequest,
    Count,
    CreditAnswer,
    CreditRequest,
    DeleteAnswer,
    DeleteRequest,
    EditRequest,
    History,
    ImportRequest,
    Page,
    PairsAnswer,
    PairsRequest,
    RecallAnswer,
    RecallRequest,
    Scoped,
    UndoRequest,
)
from mia.errors import ConfigError, DataError, MemoryStoreError
from mia.http import ServiceClient
from mia.types import Question, Recalled, clean_text

if TYPE_CHECKING:
    import httpx

_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
"""What an id of a memory can look like; other texts need not be looked up, nor escaped in a path."""
_NO_PICTURE = ("data:,",)


class MemoryClient:
    """See `MemoryStore`.

    Args:
        url: base URL of the service.
        transport: another httpx transport, e.g. `httpx.ASGITransport(app)` in tests.
        timeout_s: limit of one call, in seconds.
        retries: repetitions after a passing fault; none of the calls counts twice for it.
        token_env: name of the environment variable with the service's bearer token; empty: none is sent.

    Raises:
        ConfigError: that variable is not set.
    """

    def __init__(
        self,
        url: str,
        transport: httpx.AsyncBaseTransport | None = None,
        timeout_s: float = 60.0,
        retries: int = 2,
        token_env: str = "",
    ) -> None:
        if token_env:
            transport = with_token(transport, read_token(token_env))
        self._service = ServiceClient(url, MemoryStoreError, transport, timeout_s, retries)
        self._namespace: str | None = None  # the service's own

    def scoped(self, namespace: str | None = None, actor: str | None = None) -> MemoryClient:
        """See `MemoryStore.scoped`. The service writes its own names in the log."""
        view = copy.copy(self)
        if namespace is not None:
            view._namespace = check_namespace(namespace)
        return view

    async def recall(self, question: Question, k: int = 2, skip: int = 0, own: bool = False) -> Recalled:
        """See `MemoryStore.recall`. Pictures stay here; memory only asks whether there are any."""
        body = RecallRequest(questions=(_sent(question),), k=k, skip=skip, own=own, namespace=self._namespace)
        return (await self._service.call("POST", "/v1/recall", RecallAnswer, body)).results[0]

    async def pairs(self, question: Question, k: int = 3) -> list[PlanPair]:
        """See `MemoryStore.pairs`."""
        body = PairsRequest(questions=(_sent(question),), k=k, namespace=self._namespace)
        return list((await self._service.call("POST", "/v1/pairs", PairsAnswer, body)).results[0])

    async def add(self, drafts: Sequence[Draft]) -> list[Added]:
        """See `MemoryStore.add`."""
        body = AddRequest(memories=tuple(drafts), namespace=self._namespace)
        return list((await self._service.call("POST", "/v1/memories", AddAnswer, body)).results)

    async def load(self, memories: Sequence[Stored]) -> list[Added]:
        """See `MemoryStore.load`."""
        body = ImportRequest(memories=tuple(memories), namespace=self._namespace)
        return list((await self._service.call("POST", "/v1/import", AddAnswer, body)).results)

    async def export(self, after: str = "", limit: int = MAX_BATCH) -> list[Stored]:
        """See `MemoryStore.export`."""
        where = f"after={quote(clean_text(after), safe='')}&limit={limit}"
        return list((await self._service.call("GET", self._path(f"/v1/export?{where}"), Page)).memories)

    async def credit(self, ids: Sequence[str], success: bool, key: str = "") -> list[Credited]:
        """See `MemoryStore.credit`. Without a key one is made up, so that a repeated request counts once."""
        key = key or uuid.uuid4().hex
        body = CreditRequest(ids=_sendable(ids), success=success, key=key, namespace=self._namespace)
        return list((await self._service.call("POST", "/v1/credit", CreditAnswer, body)).results)

    async def get(self, memory_id: str) -> Stored | None:
        """See `MemoryStore.get`."""
        if not _ID.fullmatch(memory_id):
            return None
        try:
            return await self._service.call("GET", self._path(f"/v1/memories/{memory_id}"), Stored)
        except DataError as error:
            if error.code == "not_found":
                return None
            raise

    async def update(self, memory_id: str, edit: Edit, version: int) -> Stored:
        """See `MemoryStore.update`. When the answer is lost on the way, the repetition may meet its own conflict."""
        if not _ID.fullmatch(memory_id):
            raise DataError(f"no memory {memory_id!r:.200}", code="not_found", status=404)
        body = EditRequest(edit=edit, version=version, namespace=self._namespace)
        return await self._service.call("PATCH", f"/v1/memories/{memory_id}", Stored, body)

    async def absorb(self, ids: Sequence[str], checkpoint: str) -> int:
        """See `MemoryStore.absorb`."""
        body = AbsorbRequest(ids=_sendable(ids), checkpoint=checkpoint, namespace=self._namespace)
        return (await self._service.call("POST", "/v1/absorb", Count, body)).count

    async def delete(self, ids: Sequence[str]) -> int:
        """See `MemoryStore.delete`."""
        body = DeleteRequest(ids=_sendable(ids), namespace=self._namespace)
        return (await self._service.call("DELETE", "/v1/memories", DeleteAnswer, body)).deleted

    async def clear(self, everything: bool = False) -> int:
        """See `MemoryStore.clear`."""
        namespace = None if everything else (self._namespace or (await self.stats()).namespace)
        body = ClearRequest(namespace=namespace, all=everything)
        return (await self._service.call("POST", "/v1/clear", Count, body)).count

    async def compact(self) -> Compacted:
        """See `MemoryStore.compact`."""
        return await self._service.call("POST", "/v1/compact", Compacted, Scoped(namespace=self._namespace))

    async def history(self, limit: int = 100) -> list[Change]:
        """See `MemoryStore.history`."""
        path = self._path(f"/v1/history?limit={limit}")
        return list((await self._service.call("GET", path, History)).changes)

    async def undo(self, number: int | None = None) -> Change:
        """See `MemoryStore.undo`. The last change is named by its number: a repeated request undoes no other."""
        if number is None:
            changes = await self.history(MAX_BATCH)
            number = next((c.number for c in changes if c.action != "undo" and c.undone is None), None)
        body = UndoRequest(number=number, namespace=self._namespace)
        return await self._service.call("POST", "/v1/undo", Change, body)

    async def stats(self) -> Stats:
        """See `MemoryStore.stats`."""
        return await self._service.call("GET", self._path("/v1/stats"), Stats)

    async def list(self, limit: int = 100, offset: int = 0) -> list[Stored]:
        """See `MemoryStore.list`."""
        page = await self._service.call("GET", self._path(f"/v1/memories?limit={limit}&offset={offset}"), Page)
        return [*page.memories]

    async def aclose(self) -> None:
        """See `MemoryStore.aclose`. The service goes on."""
        await self._service.aclose()

    def _path(self, path: str) -> str:
        if self._namespace is None:
            return path
        return f"{path}{'&' if '?' in path else '?'}namespace={self._namespace}"


def read_token(name: str, setting: str = "memory.token_env") -> str:
    """The bearer token in an environment variable.

    Raises:
        ConfigError: it is not set, or blank.
    """
    token = os.environ.get(name, "").strip()
    if not token:
        raise ConfigError(f"{setting} names {name}, which is not set", remedy=f"set {name}, or empty token_env")
    return token


def with_token(transport: httpx.AsyncBaseTransport | None, token: str) -> httpx.AsyncBaseTransport:
    """A transport that sends a bearer token with each request."""
    import httpx

    class Authorised(httpx.AsyncBaseTransport):
        """Adds the header to every request."""

        def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
            self._inner = inner

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            request.headers["authorization"] = f"Bearer {token}"
            return await self._inner.handle_async_request(request)

        async def aclose(self) -> None:
            await self._inner.aclose()

    return Authorised(transport or httpx.AsyncHTTPTransport())


def _sent(question: Question) -> Question:
    changes = {"id": clean_text(question.id), "images": _NO_PICTURE if question.images else ()}
    return question.model_copy(update=changes)


def _sendable(ids: Sequence[str]) -> tuple[str, ...]:
    if isinstance(ids, str):
        raise DataError("one text in the place of a list of ids", remedy="give a list of ids")
    return tuple(clean_text(i) for i in ids)
