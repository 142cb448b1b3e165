"""The configs of `accelerate launch`: its own reader and launcher take them, as written for so many processes."""

from __future__ import annotations

from pathlib import Path

import pytest

config_args = pytest.importorskip("accelerate.commands.config.config_args")
launch = pytest.importorskip("accelerate.commands.launch")

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "accelerate"


@pytest.mark.parametrize(
    ("name", "kind", "machines", "processes"),
    [
        ("one_gpu", "NO", 1, 1),
        ("eight_gpus_zero3", "DEEPSPEED", 1, 8),
        ("eight_gpus_fsdp2", "FSDP", 1, 8),
        ("two_nodes", "DEEPSPEED", 2, 16),
    ],
)
def test_accelerate_takes_each_config(name: str, kind: str, machines: int, processes: int) -> None:
    path = FOLDER / f"{name}.yaml"
    read = config_args.load_config_from_file(str(path))  # refuses keys that it does not know
    assert (read.distributed_type, read.num_machines, read.num_processes) == (kind, machines, processes)
    assert read.mixed_precision == "bf16"
    words = ["--config_file", str(path), "-m", "executor_train.cli", "train/executor"]
    args = launch.launch_command_parser().parse_args(words)
    args, defaults, _ = launch._validate_launch_command(args)
    assert defaults is not None
    assert args.num_processes == processes
    assert args.use_deepspeed == (kind == "DEEPSPEED")
    assert args.use_fsdp == (kind == "FSDP")
    if args.use_deepspeed:
        assert int(args.zero_stage) == 3
    if args.use_fsdp:
        assert int(args.fsdp_version) == 2


def test_every_config_is_listed_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {
        "one_gpu", "eight_gpus_zero3", "eight_gpus_fsdp2", "two_nodes",
    }  # fmt: skip
