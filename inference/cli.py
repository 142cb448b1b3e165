"""`mia ask` and `mia show`: one question answered before your eyes, and one run read again."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text as RichText

from inference.config import RunConfig
from inference.display import Display, shorten
from inference.pictures import read_image
from inference.runs import Run, RunStore
from mia.cli import parse, parser
from mia.config import C, load
from mia.errors import ConfigError, DataError
from mia.examples import Reference
from mia.paths import home
from mia.types import Question

SHOWN = 60
"""Characters of a question or an answer in a list of runs."""


def read_config(name: str | None, flags: Mapping[str, object]) -> RunConfig:
    """The config of a run.

    Args:
        name: a TOML file, or the name of a profile in `configs/`; None: `quickstart` with the embedded model,
            `laptop` when another model is named by flags or environment.
        flags: dotted overrides.

    Raises:
        ConfigError: see `mia.config.load`.
    """
    if name is None:
        embedded = load(RunConfig, None, flags).models.default.url == "embedded:"
        name = "quickstart" if embedded else "laptop"
    return read_profile(RunConfig, name, flags)


def read_profile(kind: type[C], name: str, flags: Mapping[str, object]) -> C:
    """The config in a TOML file, or in the profile of that name in `configs/`.

    Raises:
        ConfigError: see `mia.config.load`.
    """
    path = Path(name)
    if path.is_dir():
        raise ConfigError(f"{name!r} is a folder", remedy="give a TOML file, or a name from configs/")
    if path.suffix != ".toml" and not path.is_file():
        profile = resources.files("configs") / f"{name}.toml"
        with resources.as_file(profile) as found:
            if not found.is_file():
                raise ConfigError(f"no profile {name!r}", remedy="give a TOML file, or a name from configs/")
            return load(kind, found, flags)
    return load(kind, path, flags)


def _ask_parser() -> ArgumentParser:
    made = parser(
        "ask",
        "Answer one question: recall, plan, search, answer, remember. Any setting of the config can be given as a\n"
        "dotted flag, e.g. --search.index DIR, --agent.max_turns 5 (see `configs/` and the README).",
        [
            'mia ask "Which river flows through the capital of Austria?"',
            'mia ask --url http://127.0.0.1:11434/v1 --model qwen2.5:7b --search.index my-index "Who wrote Ulysses?"',
        ],
    )
    made.add_argument("question", help="what is asked")
    made.add_argument("--config", help="TOML file or profile name (quickstart, laptop)")
    made.add_argument("--url", help="OpenAI-compatible endpoint for all roles; short for --models.default.url")
    made.add_argument("--model", help="model name there; short for --models.default.model")
    made.add_argument("--image", type=Path, action="append", default=[], help="picture that belongs to the question")
    made.add_argument("--reference", action="append", default=[], help="right answer, to judge by (may be repeated)")
    made.add_argument("--runs", help="folder to keep the run in (default: `runs` in $MIA_HOME)")
    made.add_argument("--json", action="store_true", help="print the whole trajectory as JSON; events go to stderr")
    return made


def ask(argv: Sequence[str]) -> int:
    """`mia ask`: exit code 0 when the run went through, 1 when it failed."""
    args, flags = parse(_ask_parser(), argv)
    if not args.question.strip():
        raise ConfigError("the question is blank", remedy='write it in quotes: mia ask "Who …?"')
    if not all(reference.strip() for reference in args.reference):
        raise ConfigError("--reference is blank", remedy="leave it out, or give the right answer")
    for short, dotted in (("url", "models.default.url"), ("model", "models.default.model"), ("runs", "runs")):
        if getattr(args, short):
            flags[dotted] = getattr(args, short)
    config = read_config(args.config, flags)
    if args.image and config.models.of("executor").text_only:
        raise ConfigError("the Executor's model reads text only", remedy="name a model that sees: --url, --model")
    question = Question(id=uuid.uuid4().hex, text=args.question, images=_pictures(args.image))
    try:
        return asyncio.run(_ask(config, question, args))
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM


async def _ask(config: RunConfig, question: Question, args: Namespace) -> int:
    from inference.agent import Agent

    display = Display(Console(stderr=args.json, highlight=False, soft_wrap=True))
    agent = Agent.open(config)
    task = asyncio.current_task()
    if task is not None:  # a polite end keeps what was done, as Ctrl-C does
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        reference = Reference(answers=tuple(args.reference)) if args.reference else None
        run = await agent.ask(question, reference, display.watch)
    finally:
        await agent.aclose()
    if run.failure is not None:
        Display(Console(stderr=True, highlight=False, soft_wrap=True)).failure(run.failure)
    else:
        display.sources(run)
    if args.json:
        print(run.model_dump_json(indent=1))
    else:
        print(f"\nrun {run.id}   (mia show {run.id})")
    return 1 if run.failure is not None else 0


def _pictures(paths: Sequence[Path]) -> tuple[str, ...]:
    try:
        return tuple(map(read_image, paths))
    except DataError as error:  # here the file was named by a flag
        raise ConfigError(error.message, remedy=error.remedy) from error


def show(argv: Sequence[str]) -> int:
    """`mia show`: print one run, or list the last ones."""
    made = parser(
        "show",
        "Print one run readably: memories, plan, every search with its titles, reflection, answer, sources.\n"
        "Without RUN, list the last runs. Of the folder of an evaluation, print the summary or one question's run.",
        ["mia show last", "mia show 20261130-184512-3f9a1c --json", "mia show runs/one", "mia show runs/one 5a807ca5"],
    )
    made.add_argument("run", nargs="?", help="id of a run, path of its file, `last`, or the folder of an evaluation")
    made.add_argument("question", nargs="?", help="id of a question of that evaluation")
    made.add_argument("--json", action="store_true", help="print JSON")
    made.add_argument("--limit", type=int, default=10, help="how many runs to list (default 10)")
    made.add_argument("--runs", type=Path, help="folder of the runs (default: `runs` in $MIA_HOME)")
    args = made.parse_args(argv)
    if args.run is not None and Path(args.run).is_dir():
        from inference.evaluation.cli import load_run, show_summary

        if args.question is None:
            return show_summary(Path(args.run), args.json)
        run = load_run(Path(args.run), args.question)
    else:
        store = RunStore(args.runs or home() / "runs")
        if args.run is None:
            return _list(store, args.limit, args.json)
        run = store.load(args.run)
    if args.json:
        print(run.model_dump_json(indent=1))
    else:
        Display(Console(highlight=False, soft_wrap=True)).run(run)
    return 0


def _list(store: RunStore, limit: int, as_json: bool) -> int:
    if limit < 1:
        raise ConfigError(f"--limit {limit} is less than 1", remedy="give how many runs to list")
    runs = []
    for run_id in store.ids()[:limit]:
        try:
            runs.append(store.load(run_id))
        except DataError as error:  # one broken file hides no other run
            print(f"left out: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps([_summary(run) for run in runs], ensure_ascii=False, indent=1))
        return 0
    table = Table(Column("run", no_wrap=True), "question", "answer", "judged", "seconds")
    for run in runs:
        outcome = run.judgement.outcome if run.judgement else "unjudged"
        answer = shorten(run.answer or f"({run.stop_reason})", SHOWN)
        cells = (run.id, shorten(run.question.text, SHOWN), answer, outcome, f"{run.seconds:.1f}")
        table.add_row(*map(RichText, cells))  # as plain text: square brackets are no markup here
    Console(highlight=False).print(table)
    return 0


def _summary(run: Run) -> dict[str, object]:
    return {
        "id": run.id,
        "question": run.question.text,
        "answer": run.answer,
        "stop_reason": run.stop_reason,
        "seconds": run.seconds,
    }
