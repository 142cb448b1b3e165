"""What a rollout of the Planner plays: plan, frozen Executor, verdict, at most one more plan and execution.

The episode is that of serving, and so are prompts, tools and judge. Nothing is kept between rollouts: each has its own
transcript, so that several samples of one question cannot mix. Left out: memory (rows bring what it had to say).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from executor_train.game import Outcome, Row, judged, no_clock, recorded
from executor_train.reward import planner_scores
from inference.config import AgentConfig, JudgeConfig
from inference.driver import Driver
from inference.episode import mia_episode
from inference.events import Answered, Event
from inference.tools import ToolBox
from inference.transcript import Transcript
from mia.chat import ChatModel
from mia.types import Role
from planner_train.rows import Prepared


@dataclass(frozen=True, slots=True)
class Attempt(Outcome):
    """How a rollout ended before anybody judged it, with the answer that stood before the verdict."""

    first: str | None = None


@dataclass
class PlannerGame:
    """The Planner leads a frozen Executor to the answer of a question.

    Attributes:
        toolbox: the Executor's tools.
        agent: limits and sampling of both; it plans and reflects.
        partners: frozen models: `executor`, and `judge` if a model judges.
        judging: how answers are judged.
        weights: of the parts of the reward, see `planner_scores`.
    """

    toolbox: ToolBox
    agent: AgentConfig
    partners: Mapping[Role, ChatModel]
    judging: JudgeConfig = field(default_factory=JudgeConfig)
    weights: Mapping[str, float] = field(
        default_factory=lambda: {"final": 0.7, "first": 0.2, "decision": 0.05, "format": 0.05}
    )
    role: Role = "planner"

    async def play(self, row: Row, model: ChatModel, training: bool) -> Outcome:
        """See `executor_train.game.Game.play`."""
        return await self.judged(row, await self.attempt(row, model))

    async def attempt(self, row: Row, model: ChatModel) -> Attempt:
        """Play a row; its reference is not looked at.

        Raises:
            MiaError: a call failed.
        """
        question = row.example.question
        tools = self.toolbox.offered(question)
        answers: list[str | None] = []

        def watch(event: Event) -> None:
            if isinstance(event, Answered):
                answers.append(event.answer)

        driver = Driver({**self.partners, "planner": model}, self.toolbox, Prepared(row))
        transcript = Transcript()
        context = self.partners["executor"].context
        episode = mia_episode(transcript, question, tools, self.agent, context, no_clock)
        execution = await driver.run(episode, watch)
        return Attempt(recorded(row, transcript, execution), {}, answers[0])

    async def judged(self, row: Row, attempt: Attempt) -> Outcome:
        """Judge what was played by the reference.

        Raises:
            MiaError: there is no verdict.
        """
        run, judge = attempt.run, self.partners.get("judge")
        first = final = await judged(self.judging, row.example, attempt.first, judge)
        if run.answer != attempt.first:
            final = await judged(self.judging, row.example, run.answer, judge)
        run = run.model_copy(update={"judgement": final})
        return Outcome(run, planner_scores(run, first, final))
