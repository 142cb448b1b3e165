"""What a run came to, as numbers: metrics with 95% intervals, counts, costs, and curves over the stream.

Each metric counts the questions that have a value for it, and says how many (`n`): a run that failed has none, an
answer that could not be judged has none from the judge. `over_all` shows what a metric would be if all of these were
wrong: its lower bound. Repeats of a question are averaged first, since its rows are not independent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inference.evaluation.row import KINDS, Learned, Row
from inference.statistics import mean_interval
from mia.types import Failure, Usage

GROUPS = ("part", "type", "category", "level", "modality")
BINS = 10
Numbers = dict[str, Any]


def summarise(
    settings: Mapping[str, Any],
    dataset: Mapping[str, Any],
    rows: Sequence[Row],
    learned: Iterable[Learned],
    expected: int,
    ended: Failure | None = None,
) -> Numbers:
    """The content of summary.json.

    Args:
        settings: the resolved config.
        dataset: what is kept of the dataset.
        rows: all rows, in order.
        learned: what memory made of the runs.
        expected: rows of the whole run.
        ended: why it ended early, if it did.
    """
    seed = settings["eval"]["seed"]
    entries = list(learned)
    return {
        "complete": len(rows) == expected and ended is None,
        "ended": None if ended is None else ended.model_dump(),
        "dataset": dataset["name"],
        "dataset_sha256": dataset["sha256"],
        "faults": len(dataset["faults"]),
        "method": settings["method"]["name"],
        "questions": expected,
        **counts(rows),
        **metrics(rows, seed),
        "over_all": {name: total / expected for name, total in _totals(rows).items()} if expected else {},
        "first_failure": next((f"{row.id}: {row.failure.message}" for row in rows if row.failure), ""),
        "failed_by": dict(Counter(f"{row.failure.boundary}/{row.failure.code}" for row in rows if row.failure)),
        "degraded_by": {kind: n for kind in KINDS if (n := sum(kind in row.degraded for row in rows))},
        "stopped_by": dict(sorted(Counter(row.stop_reason for row in rows).items())),
        "groups": _groups(rows, seed),
        **_costs(rows),
        "memory_usage": sum((entry.usage for entry in entries), Usage()).model_dump(),
        "memory": dict(Counter(entry.added.action if entry.added else "nothing" for entry in entries)),
        "memory_failed": sum(entry.failure is not None for entry in entries),
        "curves": curves(rows),
    }


def counts(rows: Sequence[Row]) -> Numbers:
    """How many rows are done, and of which kind. `answered`, `no_answer` and `failed` add up to `done`."""
    failed = sum(row.failure is not None for row in rows)
    answered = sum(row.answer is not None for row in rows)
    return {
        "done": len(rows),
        "answered": answered,
        "no_answer": len(rows) - failed - answered,
        "failed": failed,
        "unjudged": sum(row.failure is None and row.correct is None for row in rows),
        "degraded": sum(bool(row.degraded) for row in rows),
    }


def values(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Each metric by question, repeats averaged; the judge's verdict among them as `judge`, 1 for right."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for name, value in _of(row).items():
            found[name][row.id].append(value)
    ordered = sorted(found, key=lambda name: (name != "judge", name))
    return {name: {id: sum(got) / len(got) for id, got in found[name].items()} for name in ordered}


def metrics(rows: Sequence[Row], seed: int) -> Numbers:
    """Each metric as mean, low, high and n."""
    return {name: mean_interval(list(by_id.values()), seed).model_dump() for name, by_id in values(rows).items()}


def curves(rows: Sequence[Row]) -> Numbers:
    """Means over up to ten equal stretches of the stream; of repeats, the same stretches are taken together.

    `accuracy` is that of the stretch by the judge, `running` that of all questions up to its end; None where nothing
    was judged.
    """
    if not rows:
        return {}
    length = len({row.id for row in rows})
    places = {id: place for place, id in enumerate(dict.fromkeys(row.id for row in rows))}
    bins: list[list[Row]] = [[] for _ in range(min(BINS, length))]
    for row in rows:
        bins[places[row.id] * len(bins) // length].append(row)
    verdicts = [[float(row.correct) for row in stretch if row.correct is not None] for stretch in bins]
    return {
        "upto": [max(places[row.id] for row in stretch) + 1 for stretch in bins],
        "tool_calls": [_mean([sum(row.tool_calls.values()) for row in stretch]) for stretch in bins],
        "recalled": [_mean([row.recalled for row in stretch]) for stretch in bins],
        "with_memory": [_mean([float(row.recalled > 0) for row in stretch]) for stretch in bins],
        "replanned": [_mean([float(row.replanned) for row in stretch]) for stretch in bins],
        "accuracy": [_mean(got) for got in verdicts],
        "running": [_mean([v for got in verdicts[: n + 1] for v in got]) for n in range(len(bins))],
    }


def _of(row: Row) -> dict[str, float]:
    return row.metrics if row.correct is None else {"judge": float(row.correct), **row.metrics}


def _totals(rows: Iterable[Row]) -> dict[str, float]:
    totals: Counter[str] = Counter()
    for row in rows:
        totals.update(_of(row))
    return dict(totals)


def _groups(rows: Sequence[Row], seed: int) -> Numbers:
    """Counts and metrics by each label that takes more than one value, or that the dataset gives."""
    found: dict[str, dict[str, list[Row]]] = {name: defaultdict(list) for name in GROUPS}
    for row in rows:
        for name in GROUPS:
            if name in row.labels:
                found[name][row.labels[name]].append(row)
    return {
        name: {value: {**counts(some), **metrics(some, seed)} for value, some in sorted(by_value.items())}
        for name, by_value in found.items()
        if by_value
    }


def _costs(rows: Sequence[Row]) -> Numbers:
    tools: Counter[str] = Counter()
    for row in rows:
        tools.update(row.tool_calls)
    return {
        "prompt_tokens": sum(row.prompt_tokens for row in rows),
        "completion_tokens": sum(row.completion_tokens for row in rows),
        "model_calls": sum(row.model_calls for row in rows),
        "tool_calls": dict(sorted(tools.items())),
        "cost": sum(row.cost for row in rows),
        "seconds": sum(row.seconds for row in rows),
    }


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None
