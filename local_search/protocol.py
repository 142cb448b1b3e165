"""What a search backend and an encoder must offer; the core, its HTTP client and test doubles all satisfy it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mia.types import Hit

Vectors = NDArray[np.float32]
T = TypeVar("T")
R = TypeVar("R")


class Encoder(Protocol):
    """Turns texts into unit vectors."""

    name: str
    """Identifies the weights; vectors of encoders with different names are never compared."""
    dim: int

    def encode(self, texts: Sequence[str], kind: Literal["query", "passage"] = "query") -> Vectors:
        """Vectors of shape (len(texts), dim), float32, each of length 1."""
        ...


class Mapper(Protocol):
    """Does the shards of a build: one after the other here, over processes of this machine, or over a cluster.

    Whichever it is, an index has the same bytes, since shards are cut before, and joined in their order after.
    """

    def __call__(self, tasks: Sequence[T], work: Callable[[T], R]) -> Iterator[R]:
        """`work(task)` of every task, in the order of the tasks.

        `work`, tasks and results travel by pickle: `work` is a function of a module, tasks are small records that name
        files. Tasks may run at once and more than once, so each writes files of its own, by renaming them into place.

        Raises:
            MiaError: what `work` raised, of its own class.
        """
        ...


class SearchBackend(Protocol):
    """Searches passages. Safe to call from many tasks at once."""

    name: str
    """What answered, written in every `Hit.backend`."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best passages of each query.

        Args:
            queries: any number of queries, none of them blank.
            k: how many hits at most for each query, at least 1.

        Returns:
            One list per query, in the order of the queries; each sorted by rank.

        Raises:
            DataError: a query is blank or k is out of bounds.
            ToolError: the search could not be done.
        """
        ...

    async def aclose(self) -> None:
        """Free what the backend holds."""
        ...
