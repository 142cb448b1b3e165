"""`mia ttrl`: reads a config, opens the Planner that learns and what it needs, runs the stream, sums up."""

from __future__ import annotations

import json
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console

from inference.cli import read_profile
from inference.evaluation.finish import finish
from inference.evaluation.folder import RunFolder
from inference.evaluation.progress import Tally
from inference.evaluation.report import metrics_table, print_table, write_report
from mia.cli import parse, parser, report
from mia.errors import ConfigError, DataError, MiaError
from mia.types import Role
from ttrl.config import TtrlConfig, settled

if TYPE_CHECKING:
    from ttrl.learner import Learner
    from ttrl.stream import Parts, Plan


def words() -> ArgumentParser:
    """The options of `mia ttrl`."""
    made = parser(
        "ttrl",
        "Answer a stream of questions and learn from it: the Planner's weights and the memory change between batches.\n"
        "All that is kept is in one folder; a run that was killed goes on with --resume, to the same predictions. Any\n"
        "setting can be given as a dotted flag; `mia ttrl report` compares runs.",
        [
            "mia ttrl ttrl/tiny --limit 8 --out runs/ttrl",
            "mia ttrl ttrl/tiny --limit 8 --out runs/ttrl --resume",
            "mia ttrl ttrl/tiny --learn.weights false --learn.memory off --learn.n 1 --out runs/frozen",
            "mia ttrl report runs/frozen runs/ttrl",
        ],
    )
    made.add_argument("config", help="TOML file, or name of a profile in configs/")
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the run")
    made.add_argument("--resume", action="store_true", help="go on with the run in the folder, if there is one")
    made.add_argument("--limit", type=int, metavar="N", help="first N questions, 0: all; short for --eval.limit")
    made.add_argument("--json", action="store_true", help="print the summaries as JSON")
    return made


def main(argv: Sequence[str]) -> int:
    """`mia ttrl`: 0 when the run is complete, 1 when it ended early or nothing was answered, 130 when interrupted."""
    args, flags = parse(words(), argv)
    if args.limit is not None:
        flags["eval.limit"] = args.limit
    config = settled(read_profile(TtrlConfig, args.config, flags))
    from inference.datasets import load_dataset
    from ttrl.stream import Plan

    plan = Plan(config, load_dataset(config.dataset), args.out)
    if not plan.batches:
        raise ConfigError("there are no questions", remedy="see dataset and eval.limit")
    folders = plan.open_folders(args.resume)
    ended = _run(plan, folders, f"mia ttrl {shlex.join(argv)}")
    summaries = sum_up(plan, ended)
    if args.json:
        print(json.dumps(summaries, ensure_ascii=False, indent=1))
    else:
        _print(plan, summaries)
    if ended is not None:
        usage = 2 if isinstance(ended, ConfigError) else 1
        return report(ended, 130 if ended.code == "interrupted" else usage)
    return 0 if any(summary["done"] > summary["failed"] for summary in summaries.values()) else 1


def _run(plan: Plan, folders: Sequence[RunFolder], command: str) -> MiaError | None:
    """Run to the end or to an error, which is given back; nothing is opened where nothing is left to do."""
    import asyncio

    async def close() -> None:
        for folder in folders:
            await folder.aclose()

    try:
        if plan.complete:
            return None
        from ttrl.stream import Stream

        total = sum(map(len, plan.epochs))
        with opened(plan, command) as parts, Tally(Console(stderr=True), total) as tally:
            try:
                Stream(plan, folders, parts, tally.watch).run()
            finally:
                parts.learner.run(close())
    except MiaError as error:
        return error
    except KeyboardInterrupt:
        return DataError("the run was interrupted", remedy="go on with --resume", code="interrupted")
    finally:
        asyncio.run(close())
    return None


@contextmanager
def opened(plan: Plan, command: str) -> Iterator[Parts]:
    """What a stream works with, opened by its config, and closed in the end.

    Raises:
        MiaError: something named there is missing or broken.
    """
    from local_search.encoder import MiniLM
    from mia.chat import ChatModel, open_chat
    from planner_train.cli import game
    from ttrl.learner import learning_settings, open_learner
    from ttrl.stream import Parts

    config = plan.config
    settings = learning_settings(config, config.eval.together, config.learn.n, plan.out)
    models: dict[Role, ChatModel] = {}
    with game(config, settings) as played:
        models = {role: open_chat(config.models.of(role)) for role in _roles(config)}
        learner = open_learner(config, settings, played, plan.steps)
        try:
            yield Parts(learner, played, models, MiniLM(), command)
        finally:
            _close(learner, models)


def _roles(config: TtrlConfig) -> list[Role]:
    """The roles that need a model beside the Planner and the game's partners."""
    needed = {
        "judge": config.learn.feedback == "panel" or config.judge.by_model,
        "router": config.learn.policy == "router",
        "manager": config.memory.enabled and "model" in (config.memory.summary, config.memory.classify),
    }
    return [cast(Role, role) for role, wanted in needed.items() if wanted]


def _close(learner: Learner, models: dict[Role, Any]) -> None:
    from executor_train.training import closed

    learner.run(closed(*models.values()))
    learner.close()


def sum_up(plan: Plan, ended: MiaError | None) -> dict[str, Any]:
    """Write what each epoch that was begun came to."""
    failure = None if ended is None else ended.failure()
    summaries: dict[str, Any] = {}
    for epoch, items in enumerate(plan.epochs):
        path = plan.folder(epoch)
        if epoch == 0 or (path / "rows.jsonl").stat().st_size:
            summaries[path.name] = finish(path, len(items), failure, plan.config.eval.keep_traces)
            write_report(path)
    return summaries


def _print(plan: Plan, summaries: dict[str, Any]) -> None:
    console = Console(highlight=False)
    for name, summary in summaries.items():
        print_table(metrics_table(summary), f"{plan.config.learn.arm}, {name}, in %", console)
    console.print(f"\nrun {plan.out}   (mia ttrl report {plan.out})", markup=False, soft_wrap=True)
