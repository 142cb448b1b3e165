"""One question answered: the episode of serving, with the Planner's tokens kept for learning.

Prompts, tools and order are those of `mia ask` and of training. What failed on the way without ending the run is in the
record; nothing is learned from the rollout of such a run. Left out: the queue, feedback, and which weights serve.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from executor_train.waves import Seat
from inference.driver import Driver
from inference.episode import mia_episode
from inference.events import Answered, Event
from inference.runs import Run
from inference.transcript import Transcript
from memory_serve.protocol import MemoryStore
from mia import __version__
from mia.errors import MiaError
from mia.types import Failure, Question
from planner_train.game import PlannerGame
from ttrl.records import Rolled
from ttrl_streaming.serving import Weights

Watch = Callable[[Event], None]


@dataclass
class Answerer:
    """Answers questions with the game's partners.

    Attributes:
        game: its tools, limits and partners.
        weights: plays the Planner.
        memory: what is recalled from, by namespace; None: nothing is.
        k: memories of each outcome.
        limit: tokens of a conversation that are learned from.
    """

    game: PlannerGame
    weights: Weights
    memory: Callable[[str], MemoryStore] | None
    k: int
    limit: int

    async def answer(self, question: Question, namespace: str, seat: Seat, version: int, watch: Watch) -> Rolled:
        """Work on a question; the run says what came of it, `failure` if nothing did.

        Args:
            question: what is asked.
            namespace: whose memory is recalled.
            seat: plays the Planner.
            version: of its weights.
            watch: called with each event.
        """
        game, answers = self.game, []

        def seen(event: Event) -> None:
            if isinstance(event, Answered):
                answers.append(event.answer)
            watch(event)

        store = self.memory(namespace) if self.memory is not None else None
        driver = Driver({**game.partners, "planner": seat}, game.toolbox, store, self.k)
        transcript, started = Transcript(), time.monotonic()
        tools = game.toolbox.offered(question)
        context = game.partners["executor"].context
        episode = mia_episode(transcript, question, tools, game.agent, context, time.monotonic, store is not None)
        try:
            execution = await driver.run(episode, seen)
        except MiaError as error:
            return Rolled(failure=error.failure(), version=version)
        run = Run(
            id=question.id, version=__version__, question=question, recalled=transcript.recalled,
            recalled_again=transcript.recalled_again, plans=tuple(transcript.plans),
            reflections=tuple(transcript.reflections), steps=tuple(transcript.steps), answer=execution.answer,
            stop_reason=execution.stop_reason, degraded=tuple(transcript.degraded), seconds=time.monotonic() - started,
        )  # fmt: skip
        broken = _broken(transcript.degraded)
        tokens: Any = None
        if broken is None:
            tokens = self.weights.finished(seat, self.limit)
            tokens = tokens if any(tokens.sampled) else None
        return Rolled(run=run, first=answers[0] if answers else None, tokens=tokens, failure=broken, version=version)


def _broken(degraded: list[Failure]) -> Failure | None:
    """A call that failed: the run says nothing about the Planner then."""
    return next((failure for failure in degraded if failure.boundary != "parse"), None)
