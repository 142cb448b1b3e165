"""For tests of test-time learning: a toy that the Planner plays in one turn, and learners over a tiny random model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from executor_train.game import Row
from inference.runs import Run
from mia.chat import ChatModel
from mia.config import load
from mia.errors import ToolError
from mia.types import Message, Plan, Question, Sampling, Step
from planner_train.game import Attempt
from ttrl.config import TtrlConfig
from ttrl.learner import Learner, learning_settings, open_learner, withheld
from ttrl.records import Rolled


class OneTurn:
    """The Planner writes once, and that is the answer too.

    Args:
        tokens: limit of what it writes.
        failing: rollouts of these questions fail where what was written begins so.
    """

    def __init__(self, tokens: int = 8, failing: str = "") -> None:
        self.sampling = Sampling(temperature=1.0, max_tokens=tokens)
        self.failing = failing

    async def attempt(self, row: Row, model: ChatModel) -> Attempt:
        """See `ttrl.learner.Attempting`."""
        question = row.example.question
        told = (Message(role="user", text=question.text),)
        reply = await model.generate(told, self.sampling)
        if self.failing and reply.text < self.failing:
            raise ToolError("the tool is down")
        step = Step(role="planner", purpose="plan", told=told, reply=reply)
        plan = Plan(text=reply.text or "-", memory_ids=(), revision=0, prompt_hash="")
        run = Run(id=question.id, question=question, plans=(plan,), steps=(step,), answer=reply.text,
                  stop_reason="answered")  # fmt: skip
        return Attempt(run, {}, reply.text)


def learner(
    place: Path, out: Path, game: Any = None, n: int = 4, batch: int = 2, steps: int = 10, **flags: Any
) -> Learner:
    """A learner over the checkpoint in a folder; flags are dotted names with `__` for the dots."""
    plain = {
        "policy.path": str(place), "policy.dtype": "float32", "policy.lora_rank": 0, "rollout.context": 1024,
        "rollout.limit": 1024, "grpo.learning_rate": 1e-2, "grpo.lr_scheduler_type": "constant", "grpo.use_cpu": True,
        "grpo.bf16": False, "grpo.gradient_checkpointing": False, "grpo.beta": 0.0, "grpo.disable_tqdm": True,
        "grpo.dataloader_pin_memory": False,
    }  # fmt: skip
    named = {name.replace("__", "."): value for name, value in flags.items()}
    config = load(TtrlConfig, None, {**plain, **named})
    return open_learner(config, learning_settings(config, batch, n, out), game or OneTurn(), steps)


def questions(count: int) -> list[Question]:
    """Questions of different lengths."""
    return [Question(id=f"q{n}", text=f"Where is the {'river ' * (n % 5 + 1)}now?") for n in range(count)]


def played(made: Learner, asked: Sequence[Question], n: int = 4, salt: int = 0) -> list[list[Rolled]]:
    """The rollouts of each question."""
    rows = [withheld(question) for question in asked for _ in range(n)]
    rolled = made.play(rows, [1000 * salt + index for index in range(len(rows))])
    return [rolled[start : start + n] for start in range(0, len(rolled), n)]
