"""What may be asked of a search. The engine and its client check alike, so that both refuse with the same words."""

from __future__ import annotations

from collections.abc import Sequence

from mia.errors import DataError
from mia.types import clean_text

MAX_K = 1000
MAX_QUERY_CHARS = 4000


def checked(queries: Sequence[str], k: int) -> list[str]:
    """The queries as valid Unicode.

    Raises:
        DataError: `k` is not in 1..MAX_K (code `bad_k`), or a query, named by its index from 0, is blank
            (`blank_query`) or longer than MAX_QUERY_CHARS characters (`long_query`).
    """
    if not 1 <= k <= MAX_K:
        raise DataError(f"k is {k}", remedy=f"give a k from 1 to {MAX_K}", code="bad_k")
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
    return [clean_text(query) for query in queries]
