"""How fast a server is asked, and when a call is repeated. The only place of this folder that repeats anything.

A server that answers 429 is obeyed by everybody: the pause it asks for holds back all calls that share the `Pace`, not
just the one that was told. Such pauses are bounded by their sum, other passing faults by their number.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from mia.errors import ToolError

T = TypeVar("T")
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 8.0


class Passing(ToolError):
    """A fault that may pass. Inside this folder it may be repeated; outside it is a retryable ToolError.

    Args:
        message: what went wrong.
        code: name of the kind.
        remedy: what the user can do.
        throttled: whether the server said that it is asked too often.
        retry_after: seconds that the server asks to wait; None: it did not say.
    """

    def __init__(
        self, message: str, code: str, remedy: str = "", throttled: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message, remedy=remedy, code=code, retryable=True)
        self.throttled = throttled
        self.retry_after = retry_after


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a `Retry-After` header, given as seconds or as a date (RFC 9110, section 10.2.3); None if unreadable.

    A date is reckoned from the server's own `Date`, where there is one: clocks differ.
    """
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    until = _date(value)
    if until is None:
        return None
    return max(0.0, (until - (_date(headers.get("Date", "")) or datetime.now(UTC))).total_seconds())


def _date(value: str) -> datetime | None:
    try:
        read = parsedate_to_datetime(value)
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


class Pace:
    """Spaces the starts of calls evenly, first come, first served.

    Args:
        per_second: how many calls may start in a second.
    """

    def __init__(self, per_second: float) -> None:
        self._gap = 1.0 / per_second
        self._next = 0.0
        self._turns = asyncio.Lock()

    async def turn(self) -> None:
        """Wait until a call may start."""
        clock = asyncio.get_running_loop().time
        async with self._turns:
            while self._next > clock():  # a pause may be asked for meanwhile
                wait = self._next - clock()
                await asyncio.sleep(wait)
            self._next = clock() + self._gap

    def pause(self, seconds: float) -> None:
        """Let no call start for so long."""
        self._next = max(self._next, asyncio.get_running_loop().time() + seconds)


async def patiently(call: Callable[[], Awaitable[T]], retries: int, max_wait_s: float, pace: Pace | None = None) -> T:
    """Make a call, and make it again when it failed for a passing reason.

    Args:
        call: the call; raises `Passing` for what may pass.
        retries: repetitions after faults other than "too often".
        max_wait_s: bound on the sum of the waits between tries.
        pace: whose turn each try awaits, and whom a "too often" holds back.

    Raises:
        ToolError: the last fault.
    """

    async def attempt() -> T:
        if pace is not None:
            await pace.turn()
        return await call()

    def wait(state: RetryCallState) -> float:
        fault = _fault(state)
        grown = min(_FIRST_WAIT_S * 2.0 ** min(state.attempt_number - 1, 8), _LONGEST_WAIT_S) * random.uniform(0.75, 1)
        seconds = grown if fault.retry_after is None else fault.retry_after
        if pace is not None and fault.throttled and seconds <= max_wait_s:
            pace.pause(seconds)
        return seconds

    def stop(state: RetryCallState) -> bool:
        tried = 0 if _fault(state).throttled else state.attempt_number
        return tried > retries or state.idle_for + state.upcoming_sleep > max_wait_s

    retrying = AsyncRetrying(retry=retry_if_exception_type(Passing), wait=wait, stop=stop, reraise=True)
    return await retrying(attempt)


def _fault(state: RetryCallState) -> Passing:
    error = state.outcome.exception() if state.outcome is not None else None
    if not isinstance(error, Passing):  # pragma: no cover  # only such errors are repeated
        raise TypeError(f"{error!r} cannot be repeated")
    return error
