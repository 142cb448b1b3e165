"""The report of a run for people: report.md, and report.html as one self-contained page with plots."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from inference.evaluation.folder import read_config, read_dataset, read_rows, read_summary, write_file
from inference.evaluation.plots import NO_PLOTS, curve_plots, png_url
from inference.evaluation.row import Row
from inference.evaluation.summary import GROUPS

Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A heading, the names of the columns, and the rows."""
LABELS = {"judge": "judge", "em": "EM", "f1": "F1", "sub_em": "sub-EM", "title_recall": "title recall"}
_SHOWN = 20
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}td,th{border-bottom:1px solid #ccc;padding:.25rem .75rem;text-align:right}
td:first-child,th:first-child{text-align:left}td.text{text-align:left}img{max-width:100%}
.warn{background:#fff3cd;padding:.5rem 1rem}footer{color:#666;margin-top:2rem}"""


def write_report(path: Path) -> None:
    """Write report.md and report.html of a run that has a summary.

    Raises:
        DataError: they cannot be written, or the folder holds no run.
    """
    settings, dataset, summary, rows = read_config(path), read_dataset(path), read_summary(path), read_rows(path)
    title = f"{summary['dataset']}, {summary['method']}"
    warnings, tables = notices(summary, dataset), all_tables(settings, dataset, summary, rows)
    plots = curve_plots(summary)
    if plots is None:
        warnings = [*warnings, NO_PLOTS]
    write_file(path / "report.md", markdown(title, warnings, tables))
    write_file(path / "report.html", _page(title, warnings, tables, plots or {}))


def notices(summary: Mapping[str, Any], dataset: Mapping[str, Any]) -> list[str]:
    """What a reader must know before the numbers."""
    found = []
    if not summary["complete"]:
        ended = summary["ended"]
        why = f" It ended early: {ended['message']}" if ended else ""
        found.append(f"The run is not complete: {summary['done']} of {summary['questions']} questions are done.{why}")
    if summary["failed"]:
        found.append(f"{summary['failed']} runs failed and count in no metric: {_listed(summary['failed_by'])}.")
        found.append(f"The first failure: {summary['first_failure']}")
    if summary["unjudged"]:
        found.append(f"{summary['unjudged']} answers could not be judged and do not count in `judge`.")
    if not metrics_of(summary):
        found.append("No answer has a metric: nothing was judged.")
    if summary["degraded"]:
        found.append(
            f"{summary['degraded']} answers came about with something missing: {_listed(summary['degraded_by'])}."
        )
    if dataset["faults"]:
        first = dataset["faults"][0]
        where = f"{first['file']}, {first['unit']} {first['place']}"
        found.append(f"{len(dataset['faults'])} faults in the dataset; the first: {where}: {first['message']}")
    return found


def all_tables(
    settings: Mapping[str, Any], dataset: Mapping[str, Any], summary: Mapping[str, Any], rows: Sequence[Row]
) -> list[Table]:
    """The tables of a report."""
    tables = [metrics_table(summary)]
    tables += [
        _group_table(name, summary["groups"][name]) for name in GROUPS if len(summary["groups"].get(name, ())) > 1
    ]
    return [
        *tables,
        _counts_table(summary),
        _cost_table(summary),
        _wrong_table(rows),
        _setting_table(settings, dataset),
    ]


def metrics_table(summary: Mapping[str, Any]) -> Table:
    """Every metric with its interval; `over all`: with what failed or could not be judged as wrong."""
    lines = [
        (label(name), percent(got["mean"]), interval(got), str(got["n"]), percent(summary["over_all"][name]))
        for name, got in metrics_of(summary).items()
    ]
    return "Metrics, in %", ("metric", "mean", "95% interval", "questions", "over all"), lines


def metrics_of(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics among the numbers of a summary or of one of its groups."""
    return {name: got for name, got in numbers.items() if isinstance(got, Mapping) and {"mean", "low", "n"} <= set(got)}


def label(metric: str) -> str:
    """A metric's name as it is printed."""
    return LABELS.get(metric, metric)


def percent(value: float | None) -> str:
    """A share in percent."""
    return "–" if value is None else f"{100 * value:.1f}"


def interval(got: Mapping[str, Any]) -> str:
    """An interval in percent."""
    return "–" if got["low"] is None else f"{percent(got['low'])} to {percent(got['high'])}"


def _group_table(name: str, groups: Mapping[str, Any]) -> Table:
    names = list(dict.fromkeys(metric for numbers in groups.values() for metric in metrics_of(numbers)))

    def cell(numbers: Mapping[str, Any], metric: str) -> str:
        got = numbers.get(metric)
        return f"{percent(got['mean'])} ({interval(got)})" if got else "–"

    lines = [
        (
            value,
            *(cell(numbers, metric) for metric in names),
            *(str(numbers[c]) for c in ("done", "unjudged", "failed")),
        )
        for value, numbers in groups.items()
    ]
    return f"By {name}, in %", (name, *map(label, names), "done", "unjudged", "failed"), lines


def _counts_table(summary: Mapping[str, Any]) -> Table:
    names = ("questions", "done", "answered", "no_answer", "unjudged", "failed", "degraded", "memory_failed")
    lines = [(name.replace("_", " "), str(summary[name])) for name in names]
    lines += [(f"degraded: {kind}", str(n)) for kind, n in summary["degraded_by"].items()]
    lines += [(f"stopped: {reason.replace('_', ' ')}", str(n)) for reason, n in summary["stopped_by"].items()]
    lines += [(f"memory: {action}", str(n)) for action, n in summary["memory"].items()]
    return "Counts", ("what", "rows"), lines


def _cost_table(summary: Mapping[str, Any]) -> Table:
    done = max(1, summary["done"])
    memory = summary["memory_usage"]

    def line(name: str, total: float, form: str = ",.0f") -> tuple[str, str, str]:
        return name, f"{total:{form}}", f"{total / done:,.2f}"

    lines = [
        line("prompt tokens", summary["prompt_tokens"]),
        line("completion tokens", summary["completion_tokens"]),
        line("model calls", summary["model_calls"]),
        *(line(f"calls of {name}", n) for name, n in summary["tool_calls"].items()),
        line("cost", summary["cost"], ",.4f"),
        line("seconds (summed over questions)", summary["seconds"], ",.1f"),
        line("memory: model calls", memory["calls"]),
        line("memory: prompt tokens", memory["prompt_tokens"]),
        line("memory: completion tokens", memory["completion_tokens"]),
    ]
    return "Cost of the agent, and of its memory (judges not counted)", ("what", "total", "per question"), lines


def _wrong_table(rows: Sequence[Row]) -> Table:
    wrong = [row for row in rows if row.correct is False][:_SHOWN]
    lines = [(row.id, _short(row.answer or f"({row.stop_reason})")) for row in wrong]
    return f"The first {len(lines)} wrong answers", ("question", "answer"), lines


def _setting_table(settings: Mapping[str, Any], dataset: Mapping[str, Any]) -> Table:
    models = settings["models"]
    section = settings["eval"]
    lines = [
        (f"model: {role}", f"{model['model'] or '(first listed)'} at {model['url'].split('://')[0]}")
        for role, model in models.items()
        if model
    ]
    lines += [
        ("dataset", f"{dataset['name']} {dataset['version']}, SHA-256 {dataset['sha256']}"),
        ("memory", f"{section['memory']}, batches of {section['batch']}" if section["batch"] else section["memory"]),
        ("order", f"{section['order']}, seed {section['seed']}, repeats {section['repeats']}"),
        ("search", f"{settings['search']['backend']}, {settings['search']['mode']}, k {settings['search']['k']}"),
        ("judge", settings["judge"]["method"]),
    ]
    return "Setting (all of it: config.json)", ("what", "value"), lines


def print_table(shown: Table, title: str, console: Console) -> None:
    """Print a table of a report."""
    _, columns, lines = shown
    table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def _short(text: str, most: int = 120) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items())


def markdown(title: str, warnings: Sequence[str], tables: Sequence[Table]) -> str:
    """Tables as a Markdown page; empty ones are left out."""
    parts = [f"# {title}", *(f"> {warning}" for warning in warnings)]
    for heading, columns, lines in tables:
        if lines:
            body = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
            parts.append(f"## {heading}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n{body}")
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    """A text that cannot leave its cell or become markup."""
    return html.escape(text, quote=False).replace("|", "\\|").replace("\n", " ")


def _page(title: str, warnings: Sequence[str], tables: Sequence[Table], plots: Mapping[str, bytes]) -> str:
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts += [f'<p class="warn">{html.escape(warning)}</p>' for warning in warnings]
    parts += [
        f'<h2>{html.escape(name)}</h2><img alt="{html.escape(name)}" src="{png_url(png)}">'
        for name, png in plots.items()
    ]
    for heading, columns, lines in tables:
        if lines:
            head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
            body = "".join(f"<tr>{''.join(map(_data, line))}</tr>" for line in lines)
            parts.append(f"<h2>{html.escape(heading)}</h2><table><tr>{head}</tr>{body}</table>")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )


def _data(text: str) -> str:
    kind = "" if text[:1].isdigit() or text == "–" else ' class="text"'
    return f"<td{kind}>{html.escape(text)}</td>"
