"""Plots of a report, as PNG files in memory. matplotlib is an optional extra; without it a report says so."""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import Mapping, Sequence
from typing import Any

NO_PLOTS = "No plots: matplotlib is missing (pip install -e '.[eval]' -c constraints.txt, then `mia show` the folder)."


def curve_plots(summary: Mapping[str, Any]) -> dict[str, bytes] | None:
    """The plots of a run by heading; None where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    curves = summary["curves"]
    if not curves:
        return {}
    plots = {"Accuracy over the stream": _accuracy(curves)}
    plots["Tool use over the stream"] = _lines(curves, {"tool_calls": "tool calls per question"})
    if any(curves["recalled"]):
        named = {"recalled": "memories shown per question", "with_memory": "share of questions with a memory"}
        plots["Memory use over the stream"] = _lines(curves, named)
    groups = {
        f"{name}: {value}": got["judge"]
        for name, by in summary["groups"].items()
        for value, got in by.items()
        if "judge" in got
    }
    if len(groups) > 1:
        plots["Accuracy by group, with 95% intervals"] = _bars(groups)
    return plots


def learning_curves(series: Mapping[str, tuple[Sequence[int], Sequence[float | None]]]) -> bytes | None:
    """Running accuracy of several runs over the questions asked; None where matplotlib is missing.

    Args:
        series: by name, how many questions were asked, and the accuracy over them; None where nothing was judged.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return None
    figure, axes = _figure(4.0)
    for name, (upto, running) in series.items():
        shown = [(x, y) for x, y in zip(upto, running, strict=True) if y is not None]
        axes.plot([x for x, _ in shown], [y for _, y in shown], marker="o", label=name)
    axes.set(xlabel="questions", ylabel="running accuracy", ylim=(-0.03, 1.03))
    axes.legend()
    return _png(figure)


def png_url(png: bytes) -> str:
    """A picture as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _figure(height: float = 3.0) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110, metadata={"Software": None})
    return out.getvalue()


def _accuracy(curves: Mapping[str, Any]) -> bytes:
    figure, axes = _figure()
    for name, words in (("accuracy", "of the stretch"), ("running", "of all so far")):
        shown = [(x, y) for x, y in zip(curves["upto"], curves[name], strict=True) if y is not None]
        axes.plot([x for x, _ in shown], [y for _, y in shown], marker="o", label=words)
    axes.set(xlabel="questions", ylabel="accuracy", ylim=(-0.03, 1.03))
    axes.legend()
    return _png(figure)


def _lines(curves: Mapping[str, Any], names: Mapping[str, str]) -> bytes:
    figure, axes = _figure()
    for name, words in names.items():
        axes.plot(curves["upto"], curves[name], marker="o", label=words)
    axes.set(xlabel="questions")
    axes.set_ylim(bottom=0)
    axes.legend()
    return _png(figure)


def _bars(groups: Mapping[str, Mapping[str, Any]]) -> bytes:
    figure, axes = _figure(1 + 0.3 * len(groups))
    means = [got["mean"] for got in groups.values()]
    below = [max(0.0, got["mean"] - got["low"]) for got in groups.values()]
    above = [max(0.0, got["high"] - got["mean"]) for got in groups.values()]
    axes.barh(list(groups), means, xerr=[below, above], color="#7aa6c2")
    axes.set(xlabel="accuracy", xlim=(0, 1))
    axes.invert_yaxis()
    return _png(figure)
