"""`mia model merge`: an adapter and its base as one checkpoint."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from mia import embedded
from mia.cli import parser


def merge(argv: Sequence[str]) -> int:
    """`mia model merge`."""
    args = merge_words().parse_args(argv)
    adapter, out = embedded.adapter(args.adapter), args.out.absolute()
    from executor_train.merge import merge

    made = merge(adapter, out, args.base, args.dtype, args.force)
    if args.json:
        print(json.dumps(made.report(), ensure_ascii=False))
        return 0
    print(f"{made.folder}   ({made.parameters / 1e6:.1f}M parameters, {made.bytes / 1e9:.2f} GB in {made.dtype})")
    return 0


def merge_words() -> argparse.ArgumentParser:
    """The parser of the command."""
    made = parser(
        "model merge",
        "Add a LoRA adapter into its base: a whole checkpoint with the adapter's chat template and record, for vLLM\n"
        "or `local:DIR`. Its logits are checked against those of base and adapter before it is written.",
        [
            "mia model merge runs/grpo/final executor-merged",
            "mia model merge embedded:planner planner-merged --base embedded: --dtype bfloat16 --json",
        ],
    )
    made.add_argument("adapter", metavar="ADAPTER", help="folder of an adapter; or embedded:executor, embedded:planner")
    made.add_argument("out", type=Path, metavar="DIR", help="folder of the checkpoint")
    made.add_argument("--base", default="", help="base: folder, hub name, or embedded: (default: as the adapter says)")
    made.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights (float32)")
    made.add_argument("--force", action="store_true", help="replace a checkpoint that is there")
    made.add_argument("--json", action="store_true", help="print what was written as JSON")
    return made
