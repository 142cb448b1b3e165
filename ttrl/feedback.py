"""What becomes known of rollouts after their answers were recorded: verdicts, and the rewards that follow from them.

    truth   the reward of `mia train planner`: 0.7 final + 0.2 first + 0.05 decision + 0.05 format
    panel   0.9 verdict of the panel + 0.1 format; the panel never sees a gold answer
    none    no reward

Without ground truth the official answer is judged by its reference all the same, for the report: nothing is learned
from that. A verdict that cannot be had leaves its rollout without a reward, so that it leaves its group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from executor_train.game import Row
from executor_train.reward import planner_format
from inference.judge import judge
from inference.panel import judge_by_panel
from inference.runs import Run
from mia.chat import ChatModel
from mia.errors import MiaError
from mia.examples import Example
from mia.types import Failure, Judgement
from planner_train.game import Attempt, PlannerGame
from ttrl.config import TtrlConfig
from ttrl.records import Asked, Rolled, Scored, Verdict


class Scorer:
    """Judges batches.

    Args:
        config: what is learned from, rewards, judges; `eval.concurrency` bounds what is judged at once.
        game: gives the verdicts of the reference.
        model: plays the judge and the panel.
    """

    def __init__(self, config: TtrlConfig, game: PlannerGame, model: ChatModel) -> None:
        self._config = config
        self._game = game
        self._model = model

    async def score(self, asked: Sequence[Asked], examples: Sequence[Example]) -> list[Scored]:
        """The verdicts on all rollouts that something is learned from, and on the official ones."""
        gate = asyncio.Semaphore(self._config.eval.concurrency)

        async def one(example: Example, rolled: Rolled, official: bool) -> Verdict:
            async with gate:
                return await self._verdict(example, rolled, official)

        async def each(question: Asked, example: Example) -> Scored:
            verdicts = [one(example, rolled, place == question.chosen) for place, rolled in enumerate(question.rolled)]
            return Scored(id=question.id, verdicts=tuple(await asyncio.gather(*verdicts)))

        return await asyncio.gather(*map(each, asked, examples))

    async def _verdict(self, example: Example, rolled: Rolled, official: bool) -> Verdict:
        learn = self._config.learn
        wanted = official or (learn.learns and learn.feedback != "none")
        if rolled.run is None or not wanted:
            return Verdict()
        if learn.feedback == "truth":
            return await self._by_truth(example, rolled, rolled.run)
        failures: list[Failure] = []
        judgement = await self._reported(example, rolled.run, failures) if official else None
        if learn.feedback == "none":
            return Verdict(judgement=judgement, failures=tuple(failures))
        verdict = await self._by_panel(rolled.run)
        return verdict.model_copy(update={"judgement": judgement, "failures": (*failures, *verdict.failures)})

    async def _by_truth(self, example: Example, rolled: Rolled, run: Run) -> Verdict:
        try:
            outcome = await self._game.judged(Row(example=example), Attempt(run, {}, rolled.first))
        except MiaError as error:
            return Verdict(failures=(error.failure(),))
        reward = sum(weight * outcome.scores[name] for name, weight in self._game.weights.items())
        return Verdict(judgement=outcome.run.judgement, scores=outcome.scores, reward=reward)

    async def _by_panel(self, run: Run) -> Verdict:
        try:
            found = await judge_by_panel(self._config.panel, run, self._model)
        except MiaError as error:
            return Verdict(failures=(error.failure(),))
        weights = self._config.learn.panel_reward
        scores = {"verdict": float(bool(found.correct)), "format": planner_format(run)}
        reward = weights.verdict * scores["verdict"] + weights.format * scores["format"]
        return Verdict(feedback=found, scores=scores, reward=reward)

    async def _reported(self, example: Example, run: Run, failures: list[Failure]) -> Judgement | None:
        config = self._config.judge
        try:
            return await judge(config, example.question, run.answer, example.reference, self._model, example.choices)
        except MiaError as error:
            failures.append(error.failure())
            return None
