"""What a rollout plays: a row of the training data, with one role trained and the others frozen partners.

The episode, prompts, tools and judge are those of serving. What failed (a model, a tool, memory, a judge) ends the
rollout with its error; the trainer drops and counts it. Left out: the Planner's game (`planner_train.game`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from executor_train.reward import executor_scores
from inference.config import AgentConfig, JudgeConfig
from inference.driver import Driver
from inference.effects import Announce, Episode, Generate
from inference.episode import mia_episode
from inference.executor import Budget, Execution, executor_episode, user
from inference.judge import judge
from inference.planner import plan_turn, reflect_turn, replan_turn
from inference.runs import Run
from inference.tools import ToolBox
from inference.transcript import Transcript
from mia.chat import ChatModel
from mia.errors import JudgeError, as_error
from mia.examples import Example
from mia.prompts import prompt
from mia.types import Judgement, Recalled, Record, Reply, Role, Text

T = TypeVar("T")


class Row(Record):
    """A row of the training data: a question with its reference, and what was prepared for it.

    `plan` was written by a Planner before; `recalled` is what memory had to say to it then, and `recalled_again` what
    came next in rank, for a second plan.
    """

    example: Example
    plan: Text | None = None
    recalled: Recalled = Recalled()
    recalled_again: Recalled = Recalled()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a rollout ended: its run, and the parts of its reward."""

    run: Run
    scores: dict[str, float]


class Game(Protocol):
    """What one role is trained on."""

    role: Role
    weights: Mapping[str, float]
    """The weight of each part of the reward."""

    async def play(self, row: Row, model: ChatModel, training: bool) -> Outcome:
        """Play one row.

        Args:
            row: what to play.
            model: plays the trained role.
            training: False in validation: helps that need the reference are off.

        Raises:
            MiaError: a call failed; the rollout has no reward.
        """
        ...


@dataclass
class ExecutorGame:
    """The Executor answers a question by a plan, if there is one.

    Attributes:
        toolbox: the tools.
        agent: limits and sampling; `plan` lets the frozen Planner write plans for rows that have none.
        judging: how answers are judged.
        partners: frozen models; `planner` for plans and replans, `judge` if a model judges.
        weights: of the parts of the reward.
        bonus: see `executor_scores`.
        oracle: replan once where the answer is wrong by the reference; never in validation.
    """

    toolbox: ToolBox
    agent: AgentConfig
    judging: JudgeConfig = field(default_factory=JudgeConfig)
    partners: Mapping[Role, ChatModel] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=lambda: {"correct": 0.7, "tool": 0.2, "format": 0.1})
    bonus: float = 0.0
    oracle: bool = False
    role: Role = "executor"

    async def play(self, row: Row, model: ChatModel, training: bool) -> Outcome:
        """See `Game.play`."""
        question = row.example.question
        tools = self.toolbox.offered(question)
        driver = Driver({**self.partners, "executor": model}, self.toolbox)
        transcript = Transcript(recalled=row.recalled)
        agent = self.agent
        if row.plan is not None:
            transcript.plans.append(recited(plan_turn(transcript, question, tools, agent), row.plan))
            agent = agent.model_copy(update={"plan": False})
        episode = mia_episode(transcript, question, tools, agent, model.context, no_clock, recall=False)
        execution = await driver.run(episode)
        verdict = await self._judged(row, execution)
        if self.oracle and training and not verdict.correct:
            execution = await self._again(row, transcript, execution, model, driver)
            verdict = await self._judged(row, execution)
        run = recorded(row, transcript, execution, verdict)
        return Outcome(run, executor_scores(run, verdict, tools, self.bonus))

    async def _judged(self, row: Row, execution: Execution) -> Judgement:
        example = row.example
        return await judged(self.judging, example, execution.answer, self.partners.get("judge"))

    async def _again(
        self, row: Row, transcript: Transcript, execution: Execution, model: ChatModel, driver: Driver
    ) -> Execution:
        """The round after a wrong answer: the frozen Planner is made to say yes, and plans again."""
        question, agent = row.example.question, self.agent
        recited(reflect_turn(transcript, execution.answer, agent), "yes")
        plan = await driver.run(replan_turn(transcript, agent))
        transcript.plans.append(plan)
        last = next(step.reply for step in reversed(transcript.steps) if step.role == "executor" and step.reply)
        made = sum(len(step.observations) for step in transcript.steps)
        budget = Budget(
            max(0, agent.max_calls - made), float("inf"), no_clock, model.context, agent.executor.max_tokens
        )
        budget.account(last, transcript.conversations["executor"])
        told = (user(prompt("executor/replan").render(plan=plan.text)),)
        tools = self.toolbox.offered(question)
        second = await driver.run(executor_episode(transcript, question, told, tools, agent, budget))
        return second if second.answer is not None else execution


def recited(episode: Episode[T], text: str) -> T:
    """Play an episode in which a model only has to say a text that is known already."""
    answer: Any = None
    try:
        while True:
            effect = episode.send(answer)
            if not isinstance(effect, Generate | Announce):
                raise TypeError(f"no answer to {effect!r}")
            answer = Reply(text=text) if isinstance(effect, Generate) else None
    except StopIteration as stop:
        result: T = stop.value
        return result


async def judged(config: JudgeConfig, example: Example, answer: str | None, model: ChatModel | None) -> Judgement:
    """A verdict on an answer.

    Raises:
        JudgeError: there is none.
        ModelError: the judge model did not answer.
    """
    verdict = await judge(config, example.question, answer, example.reference, model, example.choices)
    if verdict.correct is None:
        raise JudgeError(f"no verdict on the answer to {example.question.id}")
    return verdict


def recorded(row: Row, transcript: Transcript, execution: Execution, verdict: Judgement | None = None) -> Run:
    """The record of a rollout.

    Raises:
        MiaError: a call failed on the way, so that the run says nothing about the trained model.
    """
    failed = [failure for failure in transcript.degraded if failure.boundary != "parse"]
    if failed:
        raise as_error(failed[0])
    return Run(
        id=row.example.question.id,
        question=row.example.question,
        recalled=transcript.recalled,
        recalled_again=transcript.recalled_again,
        plans=tuple(transcript.plans),
        reflections=tuple(transcript.reflections),
        steps=tuple(transcript.steps),
        answer=execution.answer,
        stop_reason=execution.stop_reason,
        degraded=tuple(transcript.degraded),
        judgement=verdict,
    )


def no_clock() -> float:
    """Waves are slow for reasons that no rollout can help, so time does not pass."""
    return 0.0
