"""`mia compare`: two runs question by question, or many as one table of methods by datasets.

Two runs are comparable when they read the same bytes. Each metric is compared over the questions that both have a value
for; the p-value is McNemar's exact one for right and wrong, else that of a permutation test, the interval a paired
bootstrap (see `inference.statistics`). With several metrics, p-values adjusted for being many stand beside them (Holm).
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from inference.evaluation.agreement import Agreement, agreement
from inference.evaluation.folder import flat, read_config, read_dataset, read_rows, read_summary, write_file
from inference.evaluation.report import Table, interval, label, markdown, metrics_of, percent, print_table
from inference.evaluation.row import Row
from inference.evaluation.summary import values
from inference.statistics import Comparison, compare, holm
from mia.cli import parser
from mia.errors import ConfigError

_SHOWN = 10
_HIDDEN = ("dataset.path", "runs", "memory.path", "eval.concurrency", "eval.keep_traces")
"""Settings whose differences say nothing."""


@dataclass(frozen=True)
class Evaluated:
    """A run read again."""

    path: Path
    settings: dict[str, Any]
    dataset: dict[str, Any]
    summary: dict[str, Any]
    rows: list[Row]

    @classmethod
    def read(cls, path: Path) -> Evaluated:
        """Read a folder. Raises DataError when it holds no run that came to an end."""
        return cls(path, read_config(path), read_dataset(path), read_summary(path), read_rows(path))


def main(argv: Sequence[str]) -> int:
    """`mia compare`."""
    made = parser(
        "compare",
        "Compare two runs of the same questions: each metric's difference with its 95% interval and p-value, the\n"
        "questions that flipped, and how many answers and plans are the same word for word. With --table, or more\n"
        "than two runs: one table, a line for each method.",
        ["mia compare runs/react runs/mia", "mia compare runs/* --table --metric em --out table.md"],
    )
    made.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of `mia eval`")
    made.add_argument("--table", action="store_true", help="one table of methods by datasets")
    made.add_argument("--metric", default="judge", help="metric of the table, or of the flips (default: judge)")
    made.add_argument("--force", action="store_true", help="compare although the datasets differ")
    made.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default 0)")
    made.add_argument("--out", type=Path, metavar="FILE", help="also write the table as Markdown")
    made.add_argument("--note", action="append", default=[], help="what the table must say (may be repeated)")
    made.add_argument("--json", action="store_true", help="print JSON")
    args = made.parse_args(argv)
    if len(args.runs) < 2 and not args.table:
        raise ConfigError("one run cannot be compared", remedy="give two, or --table")
    runs = [Evaluated.read(path) for path in args.runs]
    if args.table or len(runs) > 2:
        return _table(runs, args)
    if args.out is not None:
        raise ConfigError("--out is for a table", remedy="give --table too, or leave --out away")
    return _pair(runs[0], runs[1], args.metric, args.seed, args.force, args.json)


def compare_runs(a: Evaluated, b: Evaluated, seed: int = 0, force: bool = False) -> dict[str, Comparison]:
    """Run B against run A in each metric that both have.

    Raises:
        ConfigError: they are of different datasets, and `force` is not set.
    """
    if a.dataset["sha256"] != b.dataset["sha256"] and not force:
        raise ConfigError(
            f"{a.path} is of {a.dataset['name']} ({a.dataset['sha256'][:12]}), "
            f"{b.path} of {b.dataset['name']} ({b.dataset['sha256'][:12]})",
            remedy="compare runs of the same file, or give --force",
        )
    left, right = values(a.rows), values(b.rows)
    return {
        name: compare(_with_unknown(left[name], a), _with_unknown(right[name], b), seed)
        for name in left
        if name in right
    }


def differing(runs: Sequence[Evaluated], leave_out: str = "") -> dict[str, list[Any]]:
    """Settings that are not the same in all runs, with the value in each; those that begin with `leave_out` are not."""
    settings = [flat(run.settings) for run in runs]
    names = sorted({name for some in settings for name in some})
    found = {name: [some.get(name) for some in settings] for name in names if name not in _HIDDEN}
    return {
        name: got
        for name, got in found.items()
        if any(value != got[0] for value in got) and not (leave_out and name.startswith(leave_out))
    }


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One method over all datasets: its metric as in `summary.json` (None: not run, or not measured), and counts."""

    method: str
    metric: dict[str, Any]
    mean: float | None
    """Over the datasets; None unless there is one for each."""
    counts: dict[str, int]


def method_rows(runs: Sequence[Evaluated], metric: str = "judge", force: bool = False) -> list[MethodRow]:
    """One row for each method, as in the paper's tables; and what became of the questions.

    Raises:
        ConfigError: runs of one dataset read different files and `force` is not set, or no run has the metric.
    """
    for run in runs:
        first = next(other for other in runs if other.dataset["name"] == run.dataset["name"])
        if first.dataset["sha256"] != run.dataset["sha256"] and not force:
            raise ConfigError(f"{first.path} and {run.path} read different files", remedy="leave one out, or --force")
    known = {name for run in runs for name in metrics_of(run.summary)}
    if metric not in known:
        raise ConfigError(f"no run has the metric {metric!r}", remedy=f"known: {', '.join(sorted(known)) or 'none'}")
    datasets = list(dict.fromkeys(str(run.dataset["name"]) for run in runs))
    rows: dict[str, dict[str, Evaluated]] = {}
    for run in runs:
        name = run.settings["method"]["name"]
        if run.dataset["name"] in rows.get(name, {}):  # the same method twice: the folder tells them apart
            name = f"{name} ({run.path.name})"
        rows.setdefault(name, {})[run.dataset["name"]] = run
    return [_row(name, by, datasets, metric) for name, by in rows.items()]


_COUNTS = {"questions": "asked", "answered": "answered", "unjudged": "unjudged", "failed": "failed"}


def _row(name: str, by: dict[str, Evaluated], datasets: Sequence[str], metric: str) -> MethodRow:
    got = {dataset: metrics_of(by[dataset].summary).get(metric) if dataset in by else None for dataset in datasets}
    means = [one["mean"] for one in got.values() if one is not None and one["mean"] is not None]
    whole = sum(means) / len(means) if len(means) == len(datasets) else None
    summaries = [run.summary for run in by.values()]
    counts = {shown: sum(summary[kind] for summary in summaries) for kind, shown in _COUNTS.items()}
    counts["searches"] = sum(summary["tool_calls"].get("search", 0) for summary in summaries)
    return MethodRow(name, got, whole, counts)


def table_of(rows: Sequence[MethodRow], metric: str) -> Table:
    """The rows as texts, in %; there must be one."""
    columns = ("method", *(f"{name}: {label(metric)}" for name in rows[0].metric), "mean", *rows[0].counts)
    lines = [
        [
            row.method,
            *("–" if one is None else f"{percent(one['mean'])} ({interval(one)})" for one in row.metric.values()),
            percent(row.mean),
            *map(str, row.counts.values()),
        ]
        for row in rows
    ]
    return "Methods, in %", columns, lines


def _with_unknown(by_id: dict[str, float], run: Evaluated) -> dict[str, float | None]:
    return {row.id: by_id.get(row.id) for row in run.rows}


def _pair(a: Evaluated, b: Evaluated, metric: str, seed: int, force: bool, as_json: bool) -> int:
    found = compare_runs(a, b, seed, force)
    adjusted = _adjusted(found)
    settings = differing([a, b])
    same = agreement((a.path, a.rows), (b.path, b.rows))
    if as_json:
        shown = {name: {**one.model_dump(), "p_holm": adjusted.get(name)} for name, one in found.items()}
        said = {name: asdict(one) for name, one in same.items()}
        told = {"runs": [str(a.path), str(b.path)], "settings": settings, "metrics": shown, "same": said}
        print(json.dumps(told, ensure_ascii=False, indent=1))
        return 0
    console = Console(highlight=False)
    console.print(f"A: {a.path}\nB: {b.path}", markup=False, soft_wrap=True)
    for name, (left, right) in settings.items():
        console.print(f"   {name}: {left!r} in A, {right!r} in B", markup=False, soft_wrap=True)
    columns = ("metric", "A", "B", "B − A (95%)", "p", "p (Holm)", "better", "worse", "n")
    lines = [(label(name), *_cells(one, adjusted.get(name))) for name, one in found.items()]
    print_table(("", columns, lines), "B against A, in %", console)
    console.print("p: McNemar's exact test where all values are 0 or 1, else a permutation test", style="dim")
    for name, one in same.items():
        console.print(f"same {name}: {_listed(one)}", markup=False, soft_wrap=True)
    _flips(a, b, found.get(metric), metric, console)
    return 0


def _listed(same: Agreement) -> str:
    text = f"{same.same} of {same.n}"
    if same.differ:
        more = len(same.differ) - _SHOWN
        text += f"; others in {', '.join(same.differ[:_SHOWN])}{f' and {more} more' if more > 0 else ''}"
    return text


def _adjusted(found: dict[str, Comparison]) -> dict[str, float]:
    known = {name: one.p_value for name, one in found.items() if one.p_value is not None}
    return dict(zip(known, holm(list(known.values())), strict=True))


def _cells(one: Comparison, adjusted: float | None) -> list[str]:
    difference = "–"
    if one.difference is not None and one.low is not None and one.high is not None:
        difference = f"{100 * one.difference:+.1f} ({100 * one.low:+.1f} to {100 * one.high:+.1f})"
    p_values = ["–" if p is None else f"{p:.4f}" for p in (one.p_value, adjusted)]
    counts = [str(len(one.gained)), str(len(one.lost)), str(one.n)]
    return [percent(one.mean_a), percent(one.mean_b), difference, *p_values, *counts]


def _flips(a: Evaluated, b: Evaluated, one: Comparison | None, metric: str, console: Console) -> None:
    """Print which questions became better or worse, with both answers."""
    if one is None:
        return
    left_out = {reason: n for reason, n in one.left_out.items() if n}
    if left_out:
        console.print(f"left out of {metric}: {left_out}", markup=False)
    answers = [{row.id: row.answer for row in run.rows} for run in (a, b)]
    for words, ids in (("better", one.gained), ("worse", one.lost)):
        for id in ids[:_SHOWN]:
            told = " → ".join(repr(by.get(id)) for by in answers)
            console.print(f"{words:>7}  {id}  {told}", markup=False, soft_wrap=True)
        if len(ids) > _SHOWN:
            console.print(f"{words:>7}  … and {len(ids) - _SHOWN} more (--json lists all)", markup=False)


def _table(runs: Sequence[Evaluated], args: Namespace) -> int:
    rows = method_rows(runs, args.metric, args.force)
    shown = table_of(rows, args.metric)
    settings = differing(runs, leave_out="method.")
    notes = [*args.note]
    notes += [f"{name} is not the same in all runs: {', '.join(map(repr, got))}" for name, got in settings.items()]
    notes += [f"{run.path.name} is not complete" for run in runs if not run.summary["complete"]]
    if args.out is not None:
        write_file(args.out, markdown("Methods compared", notes, [shown]))
    if args.json:
        listed = [{"method": row.method, args.metric: row.metric, "mean": row.mean, **row.counts} for row in rows]
        print(json.dumps({"rows": listed, "notes": notes}, ensure_ascii=False, indent=1))
        return 0
    console = Console(highlight=False)
    print_table(shown, f"{label(args.metric)}, % (95% interval)", console)
    for note in notes:
        console.print(note, markup=False, style="yellow", soft_wrap=True)
    return 0
