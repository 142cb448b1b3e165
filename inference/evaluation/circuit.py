"""The circuit: ends a run when the same thing has failed for many questions in a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mia.errors import MiaError, as_error
from mia.types import Boundary, Failure


class Circuit:
    """Counts failures in a row at each boundary, in the order in which questions are done.

    Args:
        limit: failures in a row that end the run.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streaks: Counter[Boundary] = Counter()

    @property
    def tense(self) -> bool:
        """Whether the last question that was done had a failure."""
        return bool(self._streaks)

    def note(self, failures: Iterable[Failure]) -> None:
        """Count what failed for a question that is done; nothing, if all went well.

        Raises:
            MiaError: the limit is reached.
        """
        last = {failure.boundary: failure for failure in failures}
        self._streaks = Counter({boundary: self._streaks[boundary] + 1 for boundary in last})
        for boundary, failure in last.items():
            if self._streaks[boundary] >= self._limit:
                raise ended(failure, f"{self._limit} questions in a row failed")


def ended(failure: Failure, why: str) -> MiaError:
    """The error that ends a run because of a failure."""
    error = as_error(failure)
    error.message = f"{why}: {failure.message}"
    error.args = (error.message,)
    error.remedy = f"{failure.remedy}; then go on with --resume" if failure.remedy else "go on with --resume"
    return error
