"""Replays a dataset as a stream of users: asks, and says later and in another order what was right.

Predict, then learn: the answer to a question is there before anything is said about it. Ids are the run's name and the
place in the stream, so that a replay that was broken off asks and says nothing twice. Left out: judges other than EM.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inference.metrics import best_exact_match
from mia.errors import MiaError
from mia.examples import Example
from mia.types import Failure, Record, Text
from ttrl_streaming.protocol import Streaming
from ttrl_streaming.schema import AskRequest, FeedbackItem


class Replayed(Record):
    """One question: its answer and whether that was right, or what failed. `version` is that of the weights."""

    id: str
    question: Text
    answer: Text | None = None
    version: int = 0
    correct: bool | None = None
    seconds: float = 0.0
    failure: Failure | None = None


@dataclass
class Replay:
    """One replay.

    Attributes:
        core: the service.
        examples: what is asked.
        name: of the run; part of the ids.
        namespace: whose weights learn.
        users: who ask at once.
        late: answers that are given before something is said about the first of them.
        seed: of the order in which things are said.
        watch: called with each question that is done.
    """

    core: Streaming
    examples: Sequence[Example]
    name: str
    namespace: str = "default"
    users: int = 4
    late: int = 8
    seed: int = 0
    watch: Callable[[Replayed], None] = lambda _: None
    _said: list[FeedbackItem] = field(default_factory=list)

    async def run(self) -> list[Replayed]:
        """Ask everything, say everything, and have it learned.

        Raises:
            MiaError: the service cannot be reached, or refuses what is said.
        """
        room, order = asyncio.Semaphore(self.users), random.Random(self.seed)

        async def one(place: int, example: Example) -> Replayed:
            async with room:
                done = await self._asked(place, example)
            if done.failure is None:
                self._said.append(FeedbackItem(id=done.id, label=example.reference.answers[:16]))
            if len(self._said) >= self.late:
                await self._tell(order)
            self.watch(done)
            return done

        found = await asyncio.gather(*(one(place, example) for place, example in enumerate(self.examples)))
        await self._tell(order)
        await self.core.flush(self.namespace)
        return found

    async def _asked(self, place: int, example: Example) -> Replayed:
        question = example.question
        name = f"{self.name}-{place:06d}"
        request = AskRequest(
            question=question.text, caption=question.caption, namespace=self.namespace, id=name,
            images=tuple(image for image in question.images if image.startswith("data:")),
        )  # fmt: skip
        try:
            answer = await self.core.ask(request)
        except MiaError as error:
            if error.code in ("unreachable", "unauthorized"):
                raise
            return Replayed(id=name, question=question.text, failure=error.failure())
        right = None if answer.answer is None else best_exact_match(answer.answer, example.reference.answers) == 1.0
        return Replayed(
            id=name, question=question.text, answer=answer.answer, version=answer.version, correct=bool(right),
            seconds=answer.seconds,
        )  # fmt: skip

    async def _tell(self, order: random.Random) -> None:
        said, self._said = self._said, []
        order.shuffle(said)
        if said:
            await self.core.feedback(said)
