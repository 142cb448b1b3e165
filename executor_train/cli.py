"""`mia train executor`: reads a config, opens what it names, trains, saves.

Many GPUs: `accelerate launch --config_file FILE -m executor_train.cli CONFIG …` takes the same words.
"""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor_train.config import PolicyConfig, TrainConfig
from inference.cli import read_profile
from mia.cli import parse, parser
from mia.errors import ConfigError, DataError
from mia.types import Role, Sampling

if TYPE_CHECKING:
    from executor_train.game import ExecutorGame, Row
    from inference.datasets.config import DatasetConfig
    from mia.chat import ChatModel


def _parser() -> ArgumentParser:
    made = parser(
        "train executor",
        "Train the Executor by GRPO on questions with known answers: it plays them with real tools, as it is served.\n"
        "Any setting can be given as a dotted flag; those of [grpo] are TRL's own.",
        [
            "mia train executor train/executor_tiny --out runs/tiny",
            "mia train executor train/executor --dry-run --gpus 8 --sharded",
            "mia train executor train/executor_tiny --out runs/tiny --resume",
        ],
    )
    made.add_argument("config", help="TOML file, or name of a profile in configs/")
    made.add_argument("--out", type=Path, metavar="DIR", help="folder of checkpoints, rollouts and logs")
    made.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the folder")
    made.add_argument(
        "--dry-run", action="store_true", help="print memory for each GPU and tokens of a step; train not"
    )
    made.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs that --dry-run reckons with")
    made.add_argument("--sharded", action="store_true", help="--dry-run: ZeRO-3 or FSDP spreads the model over them")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Train; 0 when all steps were taken."""
    args, flags = parse(_parser(), sys.argv[1:] if argv is None else argv)
    config = read_profile(TrainConfig, args.config, flags)
    if args.out is None and not args.dry_run:
        raise ConfigError("no folder for what is trained", remedy="give --out DIR")
    settings = _settings(config, args)
    if args.dry_run:
        return _dry_run(config, settings, args)
    return _train(config, settings, args)


def _settings(config: TrainConfig, args: Namespace) -> Any:
    """TRL's settings; what it does not know is refused."""
    from trl.trainer.grpo_config import GRPOConfig

    given = {"output_dir": str(args.out or "."), **{name: read_value(value) for name, value in config.grpo.items()}}
    if args.dry_run:
        given |= {"report_to": [], "bf16": False, "use_cpu": True}
    try:
        return GRPOConfig(**given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"[grpo]: {error}", remedy="see TRL's GRPOConfig for the settings there are") from error


def read_value(value: Any) -> Any:
    """Flags come as text, since [grpo] has no types here: numbers, true and false, lists are read as JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _dry_run(config: TrainConfig, settings: Any, args: Namespace) -> int:
    from executor_train.estimate import estimate, shape_of

    rollout, size = config.rollout, 4 if config.policy.dtype == "float32" else 2
    shape = shape_of(_place(config.policy), config.policy.lora_rank)
    made = estimate(shape, settings, size, rollout, args.gpus, args.sharded)
    print("\n".join(made.lines()))
    return 0


def _train(config: TrainConfig, settings: Any, args: Namespace) -> int:
    from executor_train.grpo import WaveTrainer, check

    model, tokenizer, eyes = policy(config.policy)
    check(tokenizer, settings)  # before anything that takes long
    rows = rows_of(config, config.dataset, config.rollout.rows)
    checked = rows_of(config, config.validation, config.rollout.validation_rows) if config.validation else []
    with game(config, settings) as played:
        trainer = WaveTrainer(
            played, model, tokenizer, settings, rows, checked,
            context=config.rollout.context, limit=config.rollout.limit, batch=config.rollout.batch,
            backward=config.rollout.backward, peft_config=adapter(config.policy), eyes=eyes,
        )  # fmt: skip
        last = last_checkpoint(args.out) if args.resume else None
        try:
            trainer.train(resume_from_checkpoint=last)
            trainer.save_model(str(args.out / "final"))
        finally:
            trainer.close()
    print(args.out / "final")
    return 0


def last_checkpoint(out: Path) -> str | None:
    """The last checkpoint of TRL's in a folder."""
    from transformers.trainer_utils import get_last_checkpoint

    found: str | None = get_last_checkpoint(str(out)) if out.is_dir() else None
    return found


def policy(config: PolicyConfig) -> tuple[Any, Any, Any]:
    """Model, tokenizer, and eyes if it reads pictures."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    from mia.chat.vision import MODEL_TYPES, Eyes
    from mia.embedded import TEMPLATE

    place = _place(config)
    tokenizer = AutoTokenizer.from_pretrained(place)
    sees = AutoConfig.from_pretrained(place).model_type in MODEL_TYPES
    if config.template == "chatml":
        if sees:
            raise ConfigError("plain ChatML has no pictures", remedy='set policy.template = "own"')
        tokenizer.chat_template = TEMPLATE
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    model = kind.from_pretrained(place, dtype=config.dtype, attn_implementation=config.attention)
    if config.adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, config.adapter).merge_and_unload()
    return model, tokenizer, Eyes(place, model, config.min_pixels, config.max_pixels) if sees else None


def _place(config: PolicyConfig) -> str:
    from mia import embedded

    return str(embedded.ensure()) if config.path == "embedded:" else config.path


def adapter(config: PolicyConfig) -> Any:
    """PEFT's config of a new adapter; None if all weights are trained."""
    if not config.lora_rank:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=config.lora_rank, lora_alpha=config.lora_alpha, lora_dropout=0.0, target_modules="all-linear",
        task_type="CAUSAL_LM",
    )  # fmt: skip


def rows_of(config: TrainConfig, dataset: DatasetConfig, first: int) -> list[Row]:
    """Rows of a dataset, with their plans if these are wanted.

    Raises:
        DataError: a row has no plan, though the rows' plans are wanted.
    """
    from executor_train.game import Row
    from inference.datasets import load_dataset

    examples = load_dataset(dataset).examples
    examples = examples[:first] if first else examples
    if config.rollout.plans != "rows":
        return [Row(example=example) for example in examples]
    if dataset.path is None:
        raise ConfigError(f"{dataset.name} has no plans", remedy='set rollout.plans to "planner" or "none"')
    plans = plans_of(dataset.path, config.rollout.plan_column)
    missing = [example.question.id for example in examples if not plans.get(example.question.id)]
    if missing:
        raise DataError(
            f"{len(missing)} rows of {dataset.path} have no {config.rollout.plan_column}, the first is {missing[0]}",
            remedy='set rollout.plans to "planner" or "none"',
        )
    return [Row(example=example, plan=plans[example.question.id]) for example in examples]


def plans_of(path: Path, column: str) -> dict[str, str]:
    """Plans by question id, from the original's Parquet files (columns `data_id` and `plan`)."""
    import pyarrow.parquet as parquet

    files = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path]
    plans: dict[str, str] = {}
    for file in files:
        try:
            table = parquet.read_table(file, columns=["data_id", column])
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{file}: no columns data_id and {column} can be read: {error}") from error
        for row in table.to_pylist():
            plans[str(row["data_id"])] = (row[column] or "").replace("<image>", "").strip()
    return plans


@contextmanager
def game(config: TrainConfig, settings: Any) -> Iterator[ExecutorGame]:
    """The Executor's game, with what it needs opened, and closed in the end."""
    from executor_train.game import ExecutorGame
    from inference.search import open_tools
    from inference.tools import ToolBox
    from local_search.encoder import MiniLM
    from mia.chat import open_chat

    planned = config.rollout.plans == "planner" or config.rollout.oracle
    roles: list[Role] = ["planner"] if planned else []
    roles += ["judge"] if config.judge.method in ("model", "browse") else []
    partners: dict[Role, ChatModel] = {role: open_chat(config.models.of(role)) for role in roles}
    search = open_tools(config, MiniLM(), partners.get("judge") or open_chat(config.models.of("executor")))
    reward = config.reward
    weights = {"correct": reward.correct, "tool": reward.tool, "format": reward.format}
    try:
        yield ExecutorGame(
            ToolBox(search.tools), agent_of(config, settings), config.judge, partners, weights,
            reward.first_try, config.rollout.oracle,
        )  # fmt: skip
    finally:
        asyncio.run(_closed(search, partners))


async def _closed(search: Any, partners: Mapping[Role, ChatModel]) -> None:
    await asyncio.gather(search.aclose(), *(model.aclose() for model in partners.values()))


def agent_of(config: TrainConfig, settings: Any) -> Any:
    """The agent's settings; the trained role samples as [grpo] says, without penalties."""

    def sampling(own: Sampling) -> Sampling:
        free = {"presence_penalty": 0.0, "repetition_penalty": None, "seed": None}
        return own.model_copy(update={"temperature": settings.temperature, "top_p": settings.top_p, **free})

    agent = config.agent
    return agent.model_copy(
        update={
            "executor": sampling(agent.executor),
            "answer": sampling(agent.answer),
            "plan": config.rollout.plans == "planner",
            "reflect": False,
            "tool_format": "grammar",
        }
    )


if __name__ == "__main__":
    sys.exit(main())
