"""Who answers: agents in this process. `inference.evaluation.cluster` has the one that asks a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from inference.agent import Agent
from inference.evaluation.config import EvalConfig
from inference.evaluation.row import Item
from inference.methods.protocol import Method
from inference.runs import Run


class Answerer(Protocol):
    """Answers and judges. Safe to call from many tasks at once."""

    async def answer(self, item: Item) -> Run:
        """Work on a question; what fails is in the run."""
        ...

    async def judge(self, item: Item, run: Run) -> Run:
        """Judge a run that did not fail."""
        ...

    async def aclose(self) -> None:
        """Free what it holds."""
        ...


class Here:
    """One agent in this process. `agent.answer` is given the question only; the reference goes to `agent.judge`."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    @property
    def method(self) -> Method | None:
        """The agent's memory."""
        return self.agent.method

    async def answer(self, item: Item) -> Run:
        """See `Answerer`."""
        return await self.agent.answer(item.example.question, run_id=item.run)

    async def judge(self, item: Item, run: Run) -> Run:
        """See `Answerer`."""
        return await self.agent.judge(run, item.example.reference, choices=item.example.choices)

    async def aclose(self) -> None:
        """See `Answerer`."""
        await self.agent.aclose()


def placed(config: EvalConfig, folder: Path, repeat: int) -> EvalConfig:
    """The config of one repeat, with its memory in the run's folder unless the config names another."""
    suffix = f"-{repeat}" if config.eval.repeats > 1 else ""
    memory, method = config.memory, config.method
    if "path" not in memory.model_fields_set:
        memory = memory.model_copy(update={"path": folder / f"memory{suffix}.db"})
    if method.path is None:
        method = method.model_copy(update={"path": folder / f"notes{suffix}.db"})
    return config.model_copy(update={"memory": memory, "method": method, "runs": folder})
