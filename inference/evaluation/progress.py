"""Progress of a run on stderr: questions done, running accuracy, cost, failures. A line now and then where it is no
terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from inference.evaluation.row import Row

_LINES = 10
"""Lines that a whole run prints where there is no terminal."""


class Tally:
    """Shows rows as they come; use it as a context.

    Args:
        console: where to.
        total: rows of the whole run.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._done = self._judged = self._right = self._failed = self._degraded = 0
        self._cost = 0.0
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task(self._words(), total=total)

    def __enter__(self) -> Tally:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def watch(self, row: Row) -> None:
        """Count a row."""
        self._done += 1
        self._failed += row.failure is not None
        self._degraded += bool(row.degraded)
        self._cost += row.cost
        if row.correct is not None:
            self._judged += 1
            self._right += row.correct
        self._progress.update(self._task, completed=self._done, description=self._words())
        if (
            not self._console.is_terminal
            and self._done * _LINES // self._total > (self._done - 1) * _LINES // self._total
        ):
            self._console.print(f"{self._done}/{self._total}  {self._words()}", highlight=False)

    def _words(self) -> str:
        accuracy = f"{100 * self._right / self._judged:.1f}%" if self._judged else "–"
        parts = [f"accuracy {accuracy}", f"failed {self._failed}", f"degraded {self._degraded}"]
        return ", ".join([*parts, f"cost {self._cost:.4f}"] if self._cost else parts)
