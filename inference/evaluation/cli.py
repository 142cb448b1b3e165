"""`mia eval`, `mia compare`, and what `mia show` prints of the folder of an evaluation."""

from __future__ import annotations

import asyncio
import json
import signal
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from inference.cli import read_profile
from inference.evaluation.answering import Answerer
from inference.evaluation.config import EvalConfig, with_own_judge
from inference.evaluation.finish import finish
from inference.evaluation.folder import RunFolder, open_folder, read_rows, read_runs, read_summary
from inference.evaluation.progress import Tally
from inference.evaluation.report import metrics_table, notices, print_table, write_report
from inference.evaluation.runner import Runner, open_here
from inference.evaluation.stream import stream
from inference.runs import Run
from mia.cli import parse, parser, report
from mia.errors import ConfigError, DataError, MiaError
from mia.paths import home


def eval_parser() -> ArgumentParser:
    """The options of `mia eval`."""
    made = parser(
        "eval",
        "Answer the questions of a dataset by one method and sum up. Everything is kept in one folder; a run that was\n"
        "killed goes on with --resume. Any setting can be given as a dotted flag, e.g. --method.name react.",
        [
            "mia eval eval/miniwiki --limit 5",
            "mia eval configs/eval/hotpotqa.toml --dataset.path questions.jsonl --search.index my-index --out runs/one",
            "mia eval eval/miniwiki --limit 5 --resume",
        ],
    )
    made.add_argument("config", help="TOML file, or name of a profile in configs/")
    made.add_argument("--limit", type=int, metavar="N", help="first N questions, 0: all; short for --eval.limit")
    made.add_argument("--out", type=Path, metavar="DIR", help="folder of the run (default: in `evals` of $MIA_HOME)")
    made.add_argument("--resume", action="store_true", help="go on with the run in the folder, if there is one")
    made.add_argument("--engine", choices=("local", "ray"), help="short for --eval.engine")
    made.add_argument("--json", action="store_true", help="print the summary as JSON")
    return made


def evaluate(argv: Sequence[str]) -> int:
    """`mia eval`: 0 when the run is complete, 1 when it ended early or nothing was answered, 128 + signal."""
    from inference.datasets import load_dataset

    args, flags = parse(eval_parser(), argv)
    for name in ("limit", "engine"):
        if getattr(args, name) is not None:
            flags[f"eval.{name}"] = getattr(args, name)
    config = with_own_judge(read_profile(EvalConfig, args.config, flags))
    dataset = load_dataset(config.dataset)
    path = args.out or home() / "evals" / f"{Path(args.config).stem}-{config.method.name}"
    folder = open_folder(path, config, dataset, args.resume)
    items = stream(dataset, config.eval)
    expected = sum(map(len, items))
    console = Console(stderr=True)
    with Tally(console, expected) as tally:
        ended, code = asyncio.run(_run(Runner(config, items, folder, opener(config), tally.watch), folder))
    try:
        summary = finish(path, expected, None if ended is None else ended.failure(), config.eval.keep_traces)
        write_report(path)
    except DataError as error:
        raise (ended or error) from error
    if args.json:
        print(json.dumps(summary, ensure_ascii=False, indent=1))
    else:
        print_summary(summary, path)
    if ended is not None:
        return report(ended, code)
    return 0 if summary["done"] > summary["failed"] else 1


async def _run(runner: Runner, folder: RunFolder) -> tuple[MiaError | None, int]:
    """Run to the end, to an error or to a signal; gives why it ended early and the exit code for that."""
    task = asyncio.ensure_future(runner.run())
    caught: list[int] = []

    def stop(number: int) -> None:
        caught.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except MiaError as error:
        return error, 2 if isinstance(error, ConfigError) else 1
    except asyncio.CancelledError:
        if not caught:
            raise
        return DataError("the run was interrupted", remedy="go on with --resume", code="interrupted"), 128 + caught[0]
    finally:
        await folder.aclose()
    return None, 0


def opener(config: EvalConfig) -> Callable[[EvalConfig], Answerer]:
    """What opens who answers: an agent here, or agents on a Ray cluster."""
    if config.eval.engine == "local":
        return open_here
    from inference.evaluation.cluster import OnRay

    return OnRay


def show_summary(path: Path, as_json: bool) -> int:
    """`mia show FOLDER`: the summary of an evaluation; its report is made anew."""
    summary = read_summary(path)
    if as_json:
        print(json.dumps(summary, ensure_ascii=False, indent=1))
        return 0
    write_report(path)
    print_summary(summary, path)
    return 0


def load_run(path: Path, question: str) -> Run:
    """The run of a question in the folder of an evaluation, with its verdict; of repeats, the first.

    Raises:
        DataError: there is none, or trajectories were not kept.
    """
    rows = [row for row in read_rows(path) if row.id == question]
    if not rows:
        raise DataError(f"{path} has no question {question!r}", remedy="rows.jsonl lists them")
    found = [run for run in read_runs(path) if run.id == rows[0].run]
    if not found:
        raise DataError(f"{path} has no trajectory of {question!r}", remedy="set eval.keep_traces = true")
    return found[-1].model_copy(update={"judgement": rows[0].judgement, "feedback": rows[0].feedback})


def print_summary(summary: dict[str, Any], path: Path) -> None:
    """Print the metrics of a run with what must be known before them."""
    console = Console(highlight=False)
    dataset = json.loads((path / "dataset.json").read_bytes())
    for notice in notices(summary, dataset):
        console.print(notice, markup=False, style="yellow")
    print_table(metrics_table(summary), f"{summary['dataset']}, {summary['method']}, in %", console)
    console.print(
        f"\nrun {path}   (report.md, report.html, summary.json; mia show {path})", markup=False, soft_wrap=True
    )
