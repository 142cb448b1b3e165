"""`mia quantize`: the FP8 checkpoint of an Executor, checked."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mia.cli import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Quantise, or check what was quantised; 0 when all is as it should be."""
    made = parser(
        "quantize",
        "Write a Qwen2.5-VL with its language layers in FP8 (blocks of 128 x 128, activations as they come), half\n"
        "the size, for vLLM; and check each tensor of it. Extra `fp8`.",
        [
            "mia quantize runs/executor/final --out executor-fp8",
            "mia quantize Qwen2.5-VL-7B-Instruct --out executor-fp8 --check --json   # only check what is there",
        ],
    )
    made.add_argument("model", type=Path, help="checkpoint folder, in safetensors")
    made.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder of the FP8 checkpoint")
    made.add_argument("--device", default="", help="torch device (default: all GPUs, or the CPU)")
    made.add_argument("--check", action="store_true", help="quantise nothing: check the folder against the model")
    made.add_argument("--json", action="store_true", help="print what was found as JSON")
    args = made.parse_args(sys.argv[1:] if argv is None else argv)
    from executor_train.quantize import check_kind, quantize, verify

    if args.check:
        check_kind(args.model)
        found = verify(args.model, args.out)
    else:
        found = quantize(args.model, args.out, args.device)
    if args.json:
        print(json.dumps({"folder": str(args.out), **found.report()}))
        return 0
    print(
        f"{args.out}: {found.quantized} matrices in FP8, {found.kept} tensors as they were\n"
        f"error of a block: {found.worst_block:.4f} at most, {found.mean_block:.4f} on average\n"
        f"{found.bytes_after / 1e9:.2f} of {found.bytes_before / 1e9:.2f} GB ({found.ratio:.0%})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
