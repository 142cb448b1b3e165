"""A memory service as a `MemoryStore`: the same methods and the same errors as in-process."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memory_serve.protocol import Added, Credited, Draft, Stats
from memory_serve.schema import (
    AddAnswer,
    AddRequest,
    CreditAnswer,
    CreditRequest,
    DeleteAnswer,
    DeleteRequest,
    Page,
    RecallAnswer,
    RecallRequest,
)
from mia.errors import DataError, MemoryStoreError
from mia.http import ServiceClient
from mia.types import Memory, Question, Recalled, clean_text

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
    """

    def __init__(
        self, url: str, transport: httpx.AsyncBaseTransport | None = None, timeout_s: float = 60.0, retries: int = 2
    ) -> None:
        self._service = ServiceClient(url, MemoryStoreError, transport, timeout_s, retries)

    async def recall(self, question: Question, k: int = 2) -> Recalled:
        """See `MemoryStore.recall`. Pictures stay here; memory only asks whether there are any."""
        changes = {"id": clean_text(question.id), "images": _NO_PICTURE if question.images else ()}
        body = RecallRequest(questions=(question.model_copy(update=changes),), k=k)
        return (await self._service.call("POST", "/v1/recall", RecallAnswer, body)).results[0]

    async def add(self, drafts: Sequence[Draft]) -> list[Added]:
        """See `MemoryStore.add`."""
        body = AddRequest(memories=tuple(drafts))
        return list((await self._service.call("POST", "/v1/memories", AddAnswer, body)).results)

    async def credit(self, ids: Sequence[str], success: bool, key: str = "") -> list[Credited]:
        """See `MemoryStore.credit`. Without a key one is made up, so that a repeated request counts once."""
        body = CreditRequest(ids=_sendable(ids), success=success, key=key or uuid.uuid4().hex)
        return list((await self._service.call("POST", "/v1/credit", CreditAnswer, body)).results)

    async def get(self, memory_id: str) -> Memory | None:
        """See `MemoryStore.get`."""
        if not _ID.fullmatch(memory_id):
            return None
        try:
            return await self._service.call("GET", f"/v1/memories/{memory_id}", Memory)
        except DataError as error:
            if error.code == "not_found":
                return None
            raise

    async def list(self, limit: int = 100, offset: int = 0) -> list[Memory]:
        """See `MemoryStore.list`."""
        page = await self._service.call("GET", f"/v1/memories?limit={limit}&offset={offset}", Page)
        return [*page.memories]

    async def delete(self, ids: Sequence[str]) -> int:
        """See `MemoryStore.delete`."""
        body = DeleteRequest(ids=_sendable(ids))
        return (await self._service.call("DELETE", "/v1/memories", DeleteAnswer, body)).deleted

    async def stats(self) -> Stats:
        """See `MemoryStore.stats`."""
        return await self._service.call("GET", "/v1/stats", Stats)

    async def aclose(self) -> None:
        """See `MemoryStore.aclose`. The service goes on."""
        await self._service.aclose()


def _sendable(ids: Sequence[str]) -> tuple[str, ...]:
    if isinstance(ids, str):
        raise DataError("one text in the place of a list of ids", remedy="give a list of ids")
    return tuple(clean_text(i) for i in ids)
