"""A progress bar on stderr for builds, with rate and time left; silent where stderr is not a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from local_search.build import Step

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

_STAGES = {
    "cut": "cutting the corpus",
    "read": "reading passages",
    "bm25": "indexing words",
    "lucene": "indexing by Lucene",
    "dense": "encoding passages",
    "faiss": "indexing vectors",
}
_WINDOW = 60.0
"""Seconds over which the rate is taken."""


@contextmanager
def bar(console: Console | None = None) -> Iterator[Step]:
    """A `Step` that draws one bar for each stage, from its first call on: rate in units a second, time left.

    Args:
        console: where to draw; stderr if not given.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(TextColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.0f}/s" if speed else "")

    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description:20}"), BarColumn(), MofNCompleteColumn(), Rate(""))
    time_left = TimeRemainingColumn(elapsed_when_finished=True)
    quiet = not console.is_terminal
    with Progress(*columns, time_left, console=console, disable=quiet, speed_estimate_period=_WINDOW) as progress:
        tasks: dict[str, TaskID] = {}

        def step(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(_STAGES.get(stage, stage), total=None)
            progress.update(tasks[stage], completed=done, total=total or None)

        yield step
