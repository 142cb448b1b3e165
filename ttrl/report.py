"""`mia ttrl report`: what each part of learning adds, over several runs of the same questions.

Runs with the same settings but the order seed are one arm. A question counts once in an arm, with the mean over its
seeds; arms are compared over the questions and seeds that both have, by a paired bootstrap over questions (see
`inference.statistics`). Failed and unjudged rows are in no mean; each run's own report counts them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from inference.evaluation.compare import Evaluated
from inference.evaluation.folder import flat, write_file
from inference.evaluation.plots import NO_PLOTS, learning_curves
from inference.evaluation.report import Table, interval, markdown, percent, print_table
from inference.evaluation.row import Row
from inference.statistics import Agreement, Comparison, Interval, agreement, compare, mean_interval
from mia.cli import parser
from mia.errors import ConfigError, DataError
from ttrl.config import LearnSection

_APART = ("eval.seed", "dataset.path", "runs", "memory.path", "eval.concurrency", "eval.keep_traces", "eval.failures")
"""Settings that do not make another arm."""
Key = tuple[int, str]
"""An order seed and a question."""


@dataclass
class Arm:
    """Runs that differ by their order seed."""

    name: str
    runs: dict[int, Evaluated] = field(default_factory=dict)

    @property
    def correct(self) -> dict[Key, float | None]:
        """The verdict on each question under each seed; None if there is none."""
        return {
            (seed, row.id): None if row.correct is None else float(row.correct)
            for seed, run in self.runs.items()
            for row in run.rows
        }

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return [row for run in self.runs.values() for row in run.rows]


def main(argv: Sequence[str]) -> int:
    """`mia ttrl report`."""
    made = parser(
        "ttrl report",
        "Compare runs of `mia ttrl` on the same questions: accuracy of each arm over its order seeds, what it adds to\n"
        "the base with a paired 95% interval, the learning curve, and how often the panel was right.",
        [
            "mia ttrl report runs/frozen runs/full",
            "mia ttrl report runs/* --base frozen --plot curve.png --out report.md",
            "mia ttrl report runs/* --json",
        ],
    )
    made.add_argument("runs", nargs="+", type=Path, metavar="DIR", help="folders of `mia ttrl`")
    made.add_argument(
        "--base", metavar="ARM", help="arm that the others are held against (default: frozen, or the first)"
    )
    made.add_argument("--plot", type=Path, metavar="FILE", help="write the learning curve as PNG (extra `eval`)")
    made.add_argument("--out", type=Path, metavar="FILE", help="also write the tables as Markdown")
    made.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default 0)")
    made.add_argument("--json", action="store_true", help="print JSON")
    args = made.parse_args(argv)
    arms = arms_of([run for path in args.runs for run in epochs_of(path)])
    found = numbers(arms, args.base, args.seed)
    if args.plot is not None:
        _plot(args.plot, found)
    tables = [arms_table(found), curve_table(found), panel_table(found)]
    if args.out is not None:
        write_file(args.out, markdown("Test-time learning", found["notes"], tables))
    if args.json:
        print(json.dumps(found, ensure_ascii=False, indent=1))
        return 0
    console = Console(highlight=False)
    for heading, columns, lines in tables:
        if lines:
            print_table((heading, columns, lines), heading, console)
    for note in found["notes"]:
        console.print(note, markup=False, style="yellow", soft_wrap=True)
    return 0


def epochs_of(path: Path) -> list[Evaluated]:
    """The runs of a folder, one for each epoch that was begun.

    Raises:
        DataError: there is none.
    """
    found = sorted(path.glob("epoch-*"), key=lambda folder: int(folder.name.removeprefix("epoch-")))
    begun = [folder for folder in found if (folder / "summary.json").is_file()]
    if not begun:
        raise DataError(f"{path} holds no run that came to an end", remedy="give the folder of `mia ttrl`")
    return [Evaluated.read(folder) for folder in begun]


def arms_of(runs: Sequence[Evaluated]) -> list[Arm]:
    """Runs by arm, in the order in which they were given.

    Raises:
        ConfigError: they read different files, or two runs of an arm have one seed.
    """
    arms: dict[str, Arm] = {}
    for run in runs:
        if run.dataset["sha256"] != runs[0].dataset["sha256"]:
            raise ConfigError(f"{runs[0].path} and {run.path} read different files", remedy="leave one out")
        same = {name: value for name, value in flat(run.settings).items() if name not in _APART}
        key = json.dumps([same, run.path.name], sort_keys=True)
        arm = arms.setdefault(key, Arm(_name(run)))
        seed = run.settings["eval"]["seed"]
        if seed in arm.runs:
            raise ConfigError(
                f"{arm.runs[seed].path} and {run.path} are the same arm with the same seed",
                remedy="leave one out, or give it another eval.seed",
            )
        arm.runs[seed] = run
    named = [arm.name for arm in arms.values()]
    for arm in arms.values():
        if named.count(arm.name) > 1:  # other settings differ; the folder tells them apart
            arm.name = f"{arm.name} ({next(iter(arm.runs.values())).path.parent.name})"
    return list(arms.values())


def _name(run: Evaluated) -> str:
    learn = LearnSection.model_validate(run.settings["learn"])
    return learn.arm if learn.epochs == 1 else f"{learn.arm}, {run.path.name.replace('-', ' ')}"


def numbers(arms: Sequence[Arm], base: str | None, seed: int) -> dict[str, Any]:
    """All that the report says, as JSON.

    Raises:
        ConfigError: there is no arm of the base's name.
    """
    names = [arm.name for arm in arms]
    first = base or ("frozen" if "frozen" in names else names[0])
    if first not in names:
        raise ConfigError(f"no arm is called {first!r}", remedy=f"there are: {', '.join(names)}")
    held = arms[names.index(first)]
    return {
        "base": first,
        "arms": [
            {
                "name": arm.name,
                "seeds": sorted(arm.runs),
                "runs": [str(run.path) for run in arm.runs.values()],
                "questions": len(arm.rows),
                "failed": sum(row.failure is not None for row in arm.rows),
                "unjudged": sum(row.failure is None and row.correct is None for row in arm.rows),
                "accuracy": accuracy(arm, seed).model_dump(),
                "against_base": None if arm is held else _without_ids(against(held, arm, seed)),
                "curve": curve(arm),
                "panel": None if (told := panel(arm)) is None else told.model_dump(),
            }
            for arm in arms
        ],
        "notes": [f"{run.path} is not complete" for arm in arms for run in arm.runs.values()
                  if not run.summary["complete"]],
    }  # fmt: skip


def accuracy(arm: Arm, seed: int = 0) -> Interval:
    """The arm's accuracy by the judge, each question with the mean over its seeds."""
    return mean_interval(list(_by_question(arm.correct, arm.correct).values()), seed)


def against(base: Arm, arm: Arm, seed: int = 0) -> Comparison:
    """The arm against the base over the questions and seeds for which both have a verdict."""
    left, right = base.correct, arm.correct
    both = {key: None for key in left if left[key] is not None and right.get(key) is not None}
    return compare(_by_question(left, both), _by_question(right, both), seed)


def _by_question(correct: Mapping[Key, float | None], keys: Mapping[Key, Any]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for key in keys:
        value = correct[key]
        if value is not None:
            found.setdefault(key[1], []).append(value)
    return {id: sum(values) / len(values) for id, values in found.items()}


def _without_ids(one: Comparison) -> dict[str, Any]:
    return one.model_dump(include={"n", "mean_a", "mean_b", "difference", "low", "high", "p_value", "test"})


def curve(arm: Arm) -> list[dict[str, Any]]:
    """By batch, over all seeds: questions asked of each run so far, accuracy of the batch and of all so far."""
    size = next(iter(arm.runs.values())).settings["eval"]["batch"]
    batches: dict[int, list[Row]] = {}
    for run in arm.runs.values():
        begin = min((row.place for row in run.rows), default=0)
        for row in run.rows:
            batches.setdefault((row.place - begin) // size, []).append(row)
    made, so_far = [], []
    for number, rows in sorted(batches.items()):
        verdicts = [float(row.correct) for row in rows if row.correct is not None]
        so_far += verdicts
        made.append(
            {"batch": number, "upto": number * size + len(rows) // len(arm.runs), "n": len(verdicts),
             "accuracy": _mean(verdicts), "running": _mean(so_far)}
        )  # fmt: skip
    return made


def panel(arm: Arm) -> Agreement | None:
    """How the panel agrees with the reference on official answers; None where no panel judged."""
    if next(iter(arm.runs.values())).settings["learn"]["feedback"] != "panel":
        return None
    rows = [row for row in arm.rows if row.correct is not None]
    verdicts = [None if row.feedback is None else _word(row.feedback.correct) for row in rows]
    labels = [str(_word(row.correct)) for row in rows]
    return agreement(verdicts, labels)


def _word(correct: bool | None) -> str | None:
    return None if correct is None else "right" if correct else "wrong"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def arms_table(found: Mapping[str, Any]) -> Table:
    """Accuracy of each arm, and what it adds to the base."""
    columns = (
        "arm",
        "seeds",
        "accuracy",
        "95% interval",
        f"− {found['base']} (95%)",
        "p",
        "rows",
        "unjudged",
        "failed",
    )
    return "Accuracy by the judge, in %", columns, [_arm_line(arm) for arm in found["arms"]]


def _arm_line(arm: Mapping[str, Any]) -> tuple[str, ...]:
    one, told, p = arm["against_base"], "–", "–"
    if one is not None and one["low"] is not None:
        told = f"{100 * one['difference']:+.1f} ({100 * one['low']:+.1f} to {100 * one['high']:+.1f})"
        p = f"{one['p_value']:.4f}"
    counts = (str(arm["questions"]), str(arm["unjudged"]), str(arm["failed"]))
    mean = percent(arm["accuracy"]["mean"])
    return arm["name"], str(len(arm["seeds"])), mean, interval(arm["accuracy"]), told, p, *counts


def curve_table(found: Mapping[str, Any]) -> Table:
    """Running accuracy after each batch; of many batches, some."""
    longest = max((arm["curve"] for arm in found["arms"]), key=len)
    stride = -(-len(longest) // 10)
    shown = [longest[min(n + stride, len(longest)) - 1] for n in range(0, len(longest), stride)]
    running = {arm["name"]: {c["upto"]: c["running"] for c in arm["curve"]} for arm in found["arms"]}
    lines = [(name, *(percent(by.get(at["upto"])) for at in shown)) for name, by in running.items()]
    return "Running accuracy after so many questions, in %", ("arm", *(str(at["upto"]) for at in shown)), lines


def panel_table(found: Mapping[str, Any]) -> Table:
    """How often the panel was right."""
    lines = [
        (arm["name"], percent(told["accuracy"]), "–" if told["kappa"] is None else f"{told['kappa']:.2f}",
         str(told["n"]), str(told["unreadable"]))
        for arm in found["arms"] if (told := arm["panel"]) is not None
    ]  # fmt: skip
    return "How often the panel was right, in %", ("arm", "right", "kappa", "answers", "no verdict"), lines


def _plot(path: Path, found: Mapping[str, Any]) -> None:
    series = {a["name"]: ([c["upto"] for c in a["curve"]], [c["running"] for c in a["curve"]]) for a in found["arms"]}
    png = learning_curves(series)
    if png is None:
        raise ConfigError(NO_PLOTS, remedy="install the extra `eval`", code="missing_extra")
    try:
        path.write_bytes(png)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}", remedy="give another --plot") from error
