"""`mia train planner`: reads a config, opens the frozen Executor and what it needs, trains, saves.

Many GPUs: `accelerate launch --config_file FILE -m planner_train.cli CONFIG …` takes the same words.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from executor_train.training import closed, examples_of, own_sampling, run, words
from mia.errors import ConfigError
from mia.types import Role
from planner_train.config import PlannerConfig

if TYPE_CHECKING:
    from executor_train.game import Row
    from inference.datasets.config import DatasetConfig
    from mia.chat import ChatModel
    from planner_train.game import PlannerGame


def main(argv: Sequence[str] | None = None) -> int:
    """Train; 0 when all steps were taken."""
    made = words(
        "train planner",
        "Train the Planner by GRPO: it plans, a frozen Executor works with tools, it judges and may plan once more.",
        [
            "mia train planner train/planner_tiny --out runs/planner",
            "mia train planner train/planner --dry-run --gpus 8 --sharded",
            "mia train planner train/planner --models.executor.url http://gpu:8001/v1 --out runs/planner",
        ],
    )
    return run(made, "planner", PlannerConfig, argv, rows_of, game)


def rows_of(config: PlannerConfig, dataset: DatasetConfig, first: int) -> list[Row]:
    """Rows of a dataset, with what memory has to say to each if that is wanted; never what stems from itself.

    Raises:
        ConfigError: memories are wanted, and there is no memory.
    """
    from executor_train.game import Row

    examples = examples_of(dataset, first)
    if not config.rollout.recall:
        return [Row(example=example) for example in examples]
    if not config.memory.enabled:
        raise ConfigError("rollout.recall without a memory", remedy="set memory.enabled, or leave rollout.recall out")
    return asyncio.run(_recalled(config, [Row(example=example) for example in examples]))


async def _recalled(config: PlannerConfig, rows: Sequence[Row]) -> list[Row]:
    from memory_serve.open import open_memory
    from planner_train.rows import recalled_rows

    memory = open_memory(config.memory)
    try:
        return await recalled_rows(rows, memory, config.memory.k)
    finally:
        await memory.aclose()


@contextmanager
def game(config: PlannerConfig, settings: Any) -> Iterator[PlannerGame]:
    """The Planner's game, with what it needs opened, and closed in the end."""
    from inference.search import open_tools
    from inference.tools import ToolBox
    from local_search.encoder import MiniLM
    from mia.chat import open_chat
    from planner_train.game import PlannerGame

    roles: list[Role] = ["executor", *(["judge"] if config.judge.by_model else [])]  # type: ignore[list-item]
    partners: dict[Role, ChatModel] = {role: open_chat(config.models.of(role)) for role in roles}
    search = open_tools(config, MiniLM(), partners["executor"])
    agent = config.agent.model_copy(
        update={
            "planner": own_sampling(config.agent.planner, settings),
            "reflector": own_sampling(config.agent.reflector, settings),
            "plan": True,
            "reflect": True,
        }
    )
    try:
        yield PlannerGame(ToolBox(search.tools), agent, partners, config.judge, config.reward.model_dump())
    finally:
        asyncio.run(closed(search, *partners.values()))


if __name__ == "__main__":
    sys.exit(main())
