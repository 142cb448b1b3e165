"""A progress bar on stderr for builds; silent where stderr is not a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from local_search.build import Step

_STAGES = {
    "read": "reading the corpus",
    "bm25": "indexing words",
    "dense": "encoding passages",
    "lucene": "indexing by Lucene",
}


@contextmanager
def bar() -> Iterator[Step]:
    """A `Step` that draws one bar for each stage."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        tasks = {stage: progress.add_task(label, total=None) for stage, label in _STAGES.items()}

        def step(stage: str, done: int, total: int) -> None:
            progress.update(tasks[stage], completed=done, total=total or None)

        yield step
