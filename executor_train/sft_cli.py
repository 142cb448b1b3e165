"""`mia train sft`: makes or reads traces, trains one role on them, saves an adapter."""

from __future__ import annotations

import asyncio
import random
import shlex
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from executor_train.config import WarmConfig
from inference.cli import read_profile
from mia.cli import parse, parser
from mia.errors import DataError


def _parser() -> ArgumentParser:
    made = parser(
        "train sft",
        "Warm start: train the Executor or the Planner to write what it wrote in recorded runs: scripted ones of the\n"
        "bundled questions, or the right ones of `mia eval` with a stronger model.\n"
        "Any setting can be given as a dotted flag; those of [sft] are TRL's own.",
        [
            "mia train sft train/sft_tiny --out runs/sft-executor",
            "mia train sft train/sft_tiny --traces.role planner --out runs/sft-planner --resume",
            "mia train sft train/sft_tiny --traces.runs runs/strong --out runs/sft-executor",
        ],
    )
    made.add_argument("config", help="TOML file, or name of a profile in configs/")
    made.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder of traces, checkpoints and logs")
    made.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the folder")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Train; 0 when all steps were taken."""
    given = sys.argv[1:] if argv is None else argv
    args, flags = parse(_parser(), given)
    config = read_profile(WarmConfig, args.config, flags)
    from executor_train.grpo import check_template
    from executor_train.record import TrainingRecord, base_of
    from executor_train.sft import first_reply, sequences, train
    from executor_train.training import adapter, last_checkpoint, policy
    from mia.chat.template import Template

    settings = _settings(config, args.out)
    args.out.mkdir(parents=True, exist_ok=True)
    traces = _traces(config, args.out / "traces.jsonl", args.resume)
    model, tokenizer, _ = policy(config.policy)
    template = Template(tokenizer, "the model")
    check_template(template)
    rng = random.Random(config.traces.seed)
    conversations = [
        first_reply(messages) if rng.random() < config.traces.short else messages
        for messages in (getattr(trace, config.traces.role) for trace in traces)
    ]
    rows, longer = sequences(template, conversations, tokenizer.eos_token_id, config.traces.limit)
    learned = sum(label >= 0 for row in rows for label in row["labels"])
    tokens = sum(len(row["input_ids"]) for row in rows)
    print(f"{len(rows)} conversations, {tokens} tokens, {learned} of them learned; {longer} were too long")
    if not rows:
        raise DataError("no conversation fits", remedy="raise traces.limit")
    record = TrainingRecord(
        command=f"mia train sft {shlex.join(given)}", role=config.traces.role, method="SFT",
        base=base_of(config.policy), seed=settings.seed,
        dataset=f"right runs of {config.traces.runs}" if config.traces.runs else "miniwiki, train, scripted runs",
    )  # fmt: skip
    last = last_checkpoint(args.out) if args.resume else None
    final = train(rows, model, tokenizer, settings, adapter(config.policy), last, record)
    print(final)
    return 0


def _settings(config: WarmConfig, out: Path) -> Any:
    """TRL's settings; what it does not know is refused."""
    from trl.trainer.sft_config import SFTConfig

    from executor_train.training import read_value, trl_refuses

    with trl_refuses("sft", "SFTConfig"):
        return SFTConfig(output_dir=str(out), max_length=None, **{k: read_value(v) for k, v in config.sft.items()})


def _traces(config: WarmConfig, path: Path, resume: bool) -> list[Any]:
    """The traces, which are kept in a file: a run that goes on learns from the same ones."""
    from executor_train.traces import Trace, right_runs

    if resume and path.is_file():
        return [Trace.model_validate_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
    traces = right_runs(config.traces.runs) if config.traces.runs else asyncio.run(scripted(config))
    part = path.with_suffix(".part")
    part.write_text("".join(trace.model_dump_json() + "\n" for trace in traces), encoding="utf-8")
    part.replace(path)
    return traces


async def scripted(config: WarmConfig) -> list[Any]:
    """Scripted runs of miniwiki's train split, with a memory of their own that learns as they go."""
    from executor_train.traces import record
    from executor_train.training import closed
    from inference.search import open_tools
    from inference.tools import ToolBox
    from local_search import miniwiki
    from local_search.encoder import MiniLM
    from local_search.progress import bar
    from memory_serve.config import MemoryConfig
    from memory_serve.open import open_memory
    from mia.chat.scripted import ScriptedChat

    golds = list(miniwiki.questions("train"))
    random.Random(config.traces.seed).shuffle(golds)
    golds = golds[: config.traces.questions or None]
    encoder = MiniLM()
    traces = []
    with tempfile.TemporaryDirectory() as folder:
        search = open_tools(config, encoder, ScriptedChat([]))
        memory = open_memory(MemoryConfig(path=Path(folder) / "memory.db", synchronous="normal"), encoder)
        try:
            recorded = record(
                golds, ToolBox(search.tools), config.agent, memory,
                config.traces.early, config.traces.seed, config.traces.notes, config.memory.k,
            )  # fmt: skip
            with bar() as step:
                async for trace in recorded:
                    traces.append(trace)
                    step("traces", len(traces), len(golds))
        finally:
            await closed(search, memory)
    return traces


if __name__ == "__main__":
    sys.exit(main())
