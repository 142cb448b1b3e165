"""The learner: a Planner that is played with its weights as they are, and improved by explicit steps.

It is the trainer of `executor_train.grpo` without its loop. Rollouts come back without rewards; these may be given
much later, when other steps have been taken: the loss holds the weights now against the log-probabilities that were
recorded when the rollouts were sampled. One process; sampling by the model itself or by TRL's vLLM. Left out: what is
asked and in which order (`ttrl.stream`), and how rewards come about (`ttrl.feedback`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from executor_train.game import Outcome, Row
from executor_train.rollout import Rollout
from mia.chat import ChatModel
from mia.errors import ConfigError, DataError
from mia.examples import Example, Reference
from mia.types import Failure, Question, Record, Role
from planner_train.config import PlannerConfig
from planner_train.game import Attempt
from ttrl.records import Rolled

if TYPE_CHECKING:
    from executor_train.grpo import WaveTrainer

_WITHHELD = Reference(answers=("(withheld)",))


class Update(Record):
    """What a step did.

    `version` is that of the weights after it. `trained` counts rollouts that moved the weights: those with a reward
    that differs from others of their group; where there are none, no step is taken and the version stays. `oldest` is
    the lowest version that sampled one of them. `metrics` are TRL's.
    """

    version: int
    trained: int
    dropped: int
    oldest: int
    reward: float | None = None
    loss: float = 0.0
    gradient: float = 0.0
    metrics: dict[str, float] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the reward of a rollout without a group is held against: mean and deviation of earlier rewards."""

    mean: float
    deviation: float

    def advantage(self, reward: float) -> float:
        """(reward - mean) / (deviation + 1e-4): GRPO's, with earlier rewards in the place of the group's."""
        return (reward - self.mean) / (self.deviation + 1e-4)


class Attempting(Protocol):
    """What is played; `planner_train.game.PlannerGame` is one."""

    async def attempt(self, row: Row, model: ChatModel) -> Attempt:
        """Play a row up to the answer. Raises MiaError when a call failed."""
        ...


@dataclass
class Asking:
    """A game for the trainer whose one reward is given later; rows hold no reference (see `withheld`)."""

    game: Attempting
    role: Role = "planner"
    weights: Mapping[str, float] = field(default_factory=lambda: {"reward": 1.0})

    async def play(self, row: Row, model: ChatModel, training: bool) -> Outcome:
        """See `executor_train.game.Game.play`."""
        return await self.game.attempt(row, model)


def withheld(question: Question, **recalled: Any) -> Row:
    """A row to ask a question by; whoever plays it cannot look at its reference, for it has none."""
    return Row(example=Example(question=question, reference=_WITHHELD), **recalled)


class Learner:
    """Plays and learns; see the module. For one thread at a time.

    Args:
        trainer: over the game `Asking`.
        steps: updates that the schedule of the learning rate reckons with; 0: weights are never changed.
    """

    def __init__(self, trainer: WaveTrainer, steps: int) -> None:
        if trainer.accelerator.num_processes > 1:
            raise ConfigError("test-time learning runs in one process", remedy="sample by vLLM (grpo.use_vllm)")
        from transformers import PrinterCallback, ProgressCallback

        for kind in (PrinterCallback, ProgressCallback):  # they print to stdout
            trainer.remove_callback(kind)
        self._trainer = trainer
        self._learns = steps > 0
        if self._learns:
            trainer._prepare_for_training(steps, None, None)

    @property
    def trainer(self) -> WaveTrainer:
        """The trainer, for what is saved of it in the end."""
        return self._trainer

    @property
    def version(self) -> int:
        """How many updates the weights have behind them."""
        return int(self._trainer.state.global_step)

    def run(self, work: Any) -> Any:
        """Wait for a coroutine on the loop that rollouts are played on, where the partners' connections live."""
        return self._trainer.runner.run(work)

    def play(self, rows: Sequence[Row], seeds: Sequence[int]) -> list[Rolled]:
        """Play rows, all at once, with the weights as they are now.

        Args:
            rows: what is asked, see `withheld`; a row that stands there n times is played n times.
            seeds: of each rollout, from 0 to 2^63; the same weights and seeds give the same rollouts.
        """
        played = self._trainer.play(rows, seeds)
        return [self._rolled(ended) for ended in played]

    def _rolled(self, ended: tuple[Outcome, Rollout] | Failure) -> Rolled:
        if isinstance(ended, Failure):
            return Rolled(failure=ended, version=self.version)
        attempt, tokens = ended
        assert isinstance(attempt, Attempt)
        return Rolled(run=attempt.run, first=attempt.first, tokens=tokens, version=self.version)

    def update(
        self,
        groups: Sequence[Sequence[Rolled]],
        rewards: Sequence[Sequence[float | None]],
        baselines: Sequence[Baseline | None] = (),
    ) -> Update:
        """Take one step of the optimiser.

        Args:
            groups: the rollouts of each question, at most n of each.
            rewards: of each; None leaves the rollout out of its group, as does a rollout that failed.
            baselines: of each question whose rollouts are not compared with each other; none at all: all are.

        Raises:
            DataError: a group is larger than n, or rewards and rollouts do not match.
            ConfigError: the weights are not to be changed.
        """
        if not self._learns:
            raise ConfigError("these weights are frozen", remedy="set learn.weights = true")
        pairs = [self._group(*group) for group in zip(groups, rewards, strict=True)]
        given = [reward for group in pairs for _, reward in group if not math.isnan(reward)]
        against = list(baselines) or [None] * len(pairs)
        known = [[_advantage(reward, base) for _, reward in group] for group, base in zip(pairs, against, strict=True)]
        moving = [
            rolled
            for group, own in zip(pairs, known, strict=True)
            for (rolled, reward), advantage in zip(group, own, strict=True)
            if (_tells(reward, group) if advantage is None else abs(advantage) > 1e-9)
        ]
        about = {
            "trained": len(moving),
            "dropped": sum(map(len, groups)) - len(given),
            "oldest": min((rolled.version for rolled in moving), default=self.version),
            "reward": sum(given) / len(given) if given else None,
        }
        if not moving:
            return Update(version=self.version, **about)
        nothing = Rollout((self._trainer._tokenizer.eos_token_id,), (), (), ())
        flat = [pair for group in pairs for pair in group]
        loss, norm = self._trainer.step_on(
            [nothing if math.isnan(reward) or rolled.tokens is None else rolled.tokens for rolled, reward in flat],
            [reward for _, reward in flat],
            [advantage for own in known for advantage in own],
        )
        return Update(version=self.version, loss=loss, gradient=norm, metrics=self._told(loss, norm), **about)

    def _group(self, rolled: Sequence[Rolled], rewards: Sequence[float | None]) -> list[tuple[Rolled, float]]:
        """A group with its rewards, filled up to n with rollouts that do not count."""
        n = self._trainer.num_generations
        if len(rolled) > n or len(rolled) != len(rewards):
            raise DataError(f"{len(rolled)} rollouts with {len(rewards)} rewards; a group has {n} at most")
        made = []
        for each, reward in zip(rolled, rewards, strict=True):
            if reward is not None and not math.isfinite(reward):
                raise DataError(f"a reward is {reward}", remedy="give a finite number, or None where there is none")
            made.append((each, math.nan if reward is None or each.tokens is None else reward))
        return made + [(Rolled(version=self.version), math.nan)] * (n - len(made))

    def _told(self, loss: float, norm: float) -> dict[str, float]:
        """TRL's metrics of the step; trackers are told too."""
        trainer = self._trainer
        trainer.log({"loss": loss, "grad_norm": norm, "learning_rate": trainer.lr_scheduler.get_last_lr()[0]})
        told = trainer.state.log_history[-1]
        return {name: float(value) for name, value in told.items() if isinstance(value, int | float) and name != "step"}

    # ------------------------------------------------------------------------------------------ checkpoints

    def save(self, folder: Path) -> None:
        """Write weights (or the adapter), optimiser, schedule, random state and version into a folder."""
        trainer = self._trainer
        trainer.save_model(str(folder))
        if self._learns:
            trainer._save_optimizer_and_scheduler(str(folder))
        trainer._save_rng_state(str(folder))
        trainer.state.save_to_json(str(folder / "trainer_state.json"))

    def load(self, folder: Path) -> None:
        """Take back all that `save` wrote; what was sampled by other weights is not reused."""
        from transformers import TrainerState

        trainer = self._trainer
        trainer._load_from_checkpoint(str(folder))
        if self._learns:
            trainer._load_optimizer_and_scheduler(str(folder))
        trainer._load_rng_state(str(folder))
        trainer.state = TrainerState.load_from_json(str(folder / "trainer_state.json"))
        trainer._last_loaded_step = -1  # vLLM has other weights, though perhaps of this number

    def close(self) -> None:
        """End what rollouts left running."""
        self._trainer.close()


def _advantage(reward: float, baseline: Baseline | None) -> float | None:
    """The advantage over a baseline; 0 without a reward; None without a baseline."""
    return None if baseline is None else 0.0 if math.isnan(reward) else baseline.advantage(reward)


def _tells(reward: float, group: Sequence[tuple[Rolled, float]]) -> bool:
    """Whether a rollout counts, and its group has rewards that differ."""
    return not math.isnan(reward) and any(
        not math.isnan(other) and not math.isclose(other, reward, abs_tol=1e-9) for _, other in group
    )


def open_learner(config: PlannerConfig, settings: Any, game: Attempting, steps: int) -> Learner:
    """The learner of a config.

    Args:
        config: `policy` and `rollout`.
        settings: TRL's, see `learning_settings`.
        game: what is played.
        steps: see `Learner`.

    Raises:
        ConfigError: a setting that is not kept to here, or a chat template that rewrites earlier turns.
    """
    from transformers import set_seed

    from executor_train.grpo import WaveTrainer, check
    from executor_train.training import adapter, policy

    set_seed(settings.seed)  # a new adapter starts from random numbers
    model, tokenizer, eyes = policy(config.policy)
    check(tokenizer, settings)
    rollout = config.rollout
    trainer = WaveTrainer(
        Asking(game), model, tokenizer, settings, [withheld(Question(id="none", text="Nothing is asked."))],
        context=rollout.context, limit=rollout.limit, batch=rollout.batch, backward=rollout.backward,
        peft_config=adapter(config.policy), eyes=eyes,
    )  # fmt: skip
    return Learner(trainer, steps)


def learning_settings(config: PlannerConfig, batch: int, n: int, out: Path) -> Any:
    """TRL's settings for steps of so many questions with n rollouts each.

    Raises:
        ConfigError: a setting that TRL does not have.
    """
    from argparse import Namespace

    from executor_train.training import grpo_settings

    group = max(2, n)  # TRL knows no group of one; nothing is learned from it anyway
    fixed = {
        "num_generations": group,
        "per_device_train_batch_size": batch * group,
        "gradient_accumulation_steps": 1,
        "vllm_importance_sampling_correction": False,
        "save_strategy": "no",
    }
    given = config.model_copy(update={"grpo": {"report_to": "none", **config.grpo, **fixed}})
    return grpo_settings(given, Namespace(out=out, dry_run=False))
