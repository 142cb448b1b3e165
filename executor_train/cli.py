"""`mia train executor`: reads a config, opens what it names, trains, saves.

Many GPUs: `accelerate launch --config_file FILE -m executor_train.cli CONFIG …` takes the same words.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor_train.config import TrainConfig
from executor_train.training import closed, examples_of, own_sampling, run, words
from mia.errors import ConfigError, DataError
from mia.types import Role

if TYPE_CHECKING:
    from executor_train.game import ExecutorGame, Row
    from inference.datasets.config import DatasetConfig
    from mia.chat import ChatModel


def main(argv: Sequence[str] | None = None) -> int:
    """Train; 0 when all steps were taken."""
    made = words(
        "train executor",
        "Train the Executor by GRPO on questions with known answers: it plays them with real tools, as it is served.",
        [
            "mia train executor train/executor_tiny --out runs/tiny",
            "mia train executor train/executor --dry-run --gpus 8 --sharded",
            "mia train executor train/executor_tiny --out runs/tiny --resume",
        ],
    )
    return run(made, "executor", TrainConfig, argv, rows_of, game)


def rows_of(config: TrainConfig, dataset: DatasetConfig, first: int) -> list[Row]:
    """Rows of a dataset, with their plans if these are wanted.

    Raises:
        DataError: a row has no plan, though the rows' plans are wanted.
    """
    from executor_train.game import Row

    examples = examples_of(dataset, first)
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
    roles += ["judge"] if config.judge.by_model else []
    partners: dict[Role, ChatModel] = {role: open_chat(config.models.of(role)) for role in roles}
    reader = partners.get("judge") or open_chat(config.models.of("executor"))
    search = open_tools(config, MiniLM(), reader)
    reward = config.reward
    weights = {"correct": reward.correct, "tool": reward.tool, "format": reward.format}
    try:
        yield ExecutorGame(
            ToolBox(search.tools), agent_of(config, settings), config.judge, partners, weights,
            reward.first_try, config.rollout.oracle,
        )  # fmt: skip
    finally:
        asyncio.run(closed(search, reader, *partners.values()))


def agent_of(config: TrainConfig, settings: Any) -> Any:
    """The agent's settings; the trained role samples as [grpo] says."""
    agent = config.agent
    return agent.model_copy(
        update={
            "executor": own_sampling(agent.executor, settings),
            "answer": own_sampling(agent.answer, settings),
            "plan": config.rollout.plans == "planner",
            "reflect": False,
            "tool_format": "grammar",
        }
    )


if __name__ == "__main__":
    sys.exit(main())
