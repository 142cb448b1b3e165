"""What may be asked of online search. Engine and client check alike, so both refuse with the same words."""

from __future__ import annotations

from collections.abc import Sequence

from mia.errors import DataError
from mia.types import clean_text

MAX_K = 100
"""Results for one query; Serper gives no more."""
MAX_QUERIES = 100
"""Queries or pictures in one request to the service."""
MAX_QUERY_CHARS = 2000
MAX_URL_CHARS = 4000
MAX_GOAL_CHARS = 2000
MAX_PICTURE_BYTES = 8 * 1024 * 1024
MAX_PICTURE_CHARS = MAX_PICTURE_BYTES * 4 // 3 + 100
"""A picture as a data URL: base64 and its head."""


def checked_k(k: int) -> int:
    """`k` itself.

    Raises:
        DataError: it is not in 1..MAX_K (code `bad_k`).
    """
    if not 1 <= k <= MAX_K:
        raise DataError(f"k is {k}", remedy=f"give a k from 1 to {MAX_K}", code="bad_k")
    return k


def checked(queries: Sequence[str], k: int) -> list[str]:
    """The queries as valid Unicode without blanks at the ends.

    Raises:
        DataError: `k` is out of bounds (`bad_k`), or a query, named by its index from 0, is blank (`blank_query`) or
            longer than MAX_QUERY_CHARS characters (`long_query`).
    """
    checked_k(k)
    for index, query in enumerate(queries):
        if not query.strip():
            raise DataError(
                f"queries[{index}] is blank", remedy="leave it out, or say what to find", code="blank_query"
            )
        if len(query) > MAX_QUERY_CHARS:
            raise DataError(
                f"queries[{index}] has {len(query)} characters",
                remedy=f"shorten it to {MAX_QUERY_CHARS}",
                code="long_query",
            )
    return [clean_text(query.strip()) for query in queries]
