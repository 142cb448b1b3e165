"""For tests of test-time learning: a toy that the Planner plays in one turn, and learners over a tiny random model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from executor_train.game import Row
from executor_train.training import own_sampling
from inference.datasets import load_dataset
from inference.runs import Run
from inference.tools import SearchTool, ToolBox
from memory_serve.hashing import HashEncoder
from mia.chat import ChatModel
from mia.chat.scripted import ScriptedChat
from mia.config import load
from mia.errors import MiaError, ToolError
from mia.types import Message, Question, Role, Sampling, Step
from mia.types import Plan as Planned
from planner_train.game import Attempt, PlannerGame
from tests.doubles import FixedSearch
from tests.evaluating import Brain, chat, oracle
from ttrl.cli import sum_up
from ttrl.config import TtrlConfig, settled
from ttrl.learner import Learner, learning_settings, open_learner, withheld
from ttrl.records import Rolled
from ttrl.stream import Parts, Plan, Stream

PLAIN: dict[str, Any] = {
    "policy.dtype": "float32", "grpo.learning_rate": 1e-2, "grpo.lr_scheduler_type": "constant", "grpo.use_cpu": True,
    "grpo.bf16": False, "grpo.gradient_checkpointing": False, "grpo.beta": 0.0, "grpo.disable_tqdm": True,
    "grpo.dataloader_pin_memory": False,
}  # fmt: skip


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
        plan = Planned(text=reply.text or "-", memory_ids=(), revision=0, prompt_hash="")
        run = Run(id=question.id, question=question, plans=(plan,), steps=(step,), answer=reply.text,
                  stop_reason="answered")  # fmt: skip
        return Attempt(run, {}, reply.text)


def learner(
    place: Path, out: Path, game: Any = None, n: int = 4, batch: int = 2, steps: int = 10, **flags: Any
) -> Learner:
    """A learner over the checkpoint in a folder; flags are dotted names with `__` for the dots."""
    plain = {**PLAIN, "policy.path": str(place), "policy.lora_rank": 0, "rollout.context": 1024, "rollout.limit": 1024}
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


def config_of(place: Path, asked: Path, **flags: Any) -> TtrlConfig:
    """A settled config over a file of questions, for a tiny Planner whose every update shows."""
    plain = {
        **PLAIN, "policy.path": str(place), "policy.lora_rank": 4, "rollout.context": 8192, "rollout.limit": 8192,
        "grpo.learning_rate": 0.05, "dataset.name": "jsonl", "dataset.path": str(asked), "eval.batch": 4,
        "learn.n": 3, "agent.planner.max_tokens": 8, "agent.reflector.max_tokens": 4, "memory.k": 1,
    }  # fmt: skip
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return settled(load(TtrlConfig, None, {**plain, **named}))


class Stage:
    """Runs streams over a tiny Planner and scripted partners.

    Args:
        place: the Planner's checkpoint.
        executor: the Executor's brain, see `tests.evaluating`.
        search: what is searched.
        judge, router: the brains of these models.
    """

    def __init__(
        self,
        place: Path,
        executor: Brain = oracle,
        search: FixedSearch | None = None,
        judge: Brain | None = None,
        router: Brain | None = None,
    ) -> None:
        self.place = place
        self.executor = chat(executor)
        self.search = search or FixedSearch()
        self.models: dict[Role, ScriptedChat] = {
            "judge": chat(judge) if judge else ScriptedChat(),
            "router": chat(router) if router else ScriptedChat(),
        }

    def run(self, asked: Path, out: Path, resume: bool = False, **flags: Any) -> tuple[dict[str, Any], MiaError | None]:
        """Run to the end or to an error; gives the summaries of the epochs and the error."""
        config = config_of(self.place, asked, **flags)
        plan = Plan(config, load_dataset(config.dataset), out)
        folders = plan.open_folders(resume)
        settings = learning_settings(config, config.eval.together, config.learn.n, out)
        agent = config.agent.model_copy(
            update={role: own_sampling(getattr(config.agent, role), settings) for role in ("planner", "reflector")}
        )
        partners: dict[Role, ChatModel] = {
            "executor": self.executor,
            **({"judge": self.models["judge"]} if config.judge.method == "model" else {}),
        }
        game = PlannerGame(ToolBox([SearchTool(self.search, 2)]), agent, partners, config.judge)
        made = open_learner(config, settings, game, plan.steps)
        ended = None
        try:
            Stream(plan, folders, Parts(made, game, self.models, HashEncoder())).run()
        except MiaError as error:
            ended = error
        finally:
            for folder in folders:
                made.run(folder.aclose())
            made.close()
        return sum_up(plan, ended), ended
