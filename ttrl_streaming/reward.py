"""What an answer is worth, told from feedback: our own rule, a Python function, or a service.

A function is named `module:function`. It takes a `Case` and gives a number, or None where it has nothing to say; a
coroutine function will do. A service gets the case as JSON by POST and answers `{"reward": 0.5}` or `{"reward": null}`.
Higher is better; all numbers of a run should have one scale. What fails is no reward: the feedback stays in the queue.

Our own rule, `judge`: (1 - f) * score + f * format, where f is `streaming.format` and score is

    reward       the number itself
    label        1 for right, 0 for wrong; else the verdict of the judge by the reference ([judge])
    correction   what the judge model reads from it: 1 right, 0 wrong, nothing where it does not tell
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Awaitable, Callable
from typing import Literal

from pydantic import Field, StrictFloat, ValidationError

from inference.config import JudgeConfig
from inference.judge import judge
from inference.verdicts import Form, ask, read_form
from mia.chat import ChatModel
from mia.errors import ConfigError, JudgeError
from mia.examples import Reference
from mia.prompts import prompt
from mia.types import Question, Record, Text
from ttrl_streaming.schema import FeedbackItem


class Case(Record):
    """An answer, and what was said of it, or of another answer to the question.

    `official` is False for rollouts that nobody saw: what was said is then about another answer, and only a reference
    tells something of this one. `format` is 1 if plans and verdict could be read, else 0.
    """

    id: str
    namespace: str
    question: Question
    answer: Text | None
    plan: Text = ""
    official: bool = True
    reward: float | None = None
    label: Literal["right", "wrong"] | None = None
    reference: tuple[Text, ...] = ()
    correction: Text = ""
    format: float = 1.0


Reward = Callable[[Case], Awaitable[float | None]]
"""Gives the reward of a case. Raises MiaError when it cannot be told now."""


def case_of(item: FeedbackItem, namespace: str, question: Question, **about: object) -> Case:
    """The case of an answer and what was said."""
    said = {
        "reward": item.reward,
        "label": None if item.verdict is None else "right" if item.verdict else "wrong",
        "reference": item.reference.answers if item.reference is not None else (),
        "correction": item.correction or "",
    }
    return Case.model_validate({"id": item.id, "namespace": namespace, "question": question, **said, **about})


class Reading(Form):
    """What a judge reads from a user's words about an answer; `answer` is the right one, if the user states it."""

    reason: str
    verdict: Literal["right", "wrong", "unclear"]
    answer: str = Field(max_length=2_000)


async def read_words(model: ChatModel, config: JudgeConfig, question: str, answer: str, said: str) -> Reading:
    """What a user's words say about an answer.

    Raises:
        JudgeError: the model's reply could not be read.
        ModelError: it did not answer.
    """
    text = prompt("judge/words").render(question=question, answer=answer, said=said)
    found, _ = await ask(model, text, _read, config.sampling, config.tries, "reading of what the user said")
    return found


def _read(text: str) -> Reading:
    return read_form(text, Reading)


class Judged:
    """Our own rule, see the module.

    Args:
        config: how answers are judged by a reference.
        model: the judge; needed for corrections, and where a model judges.
        part: of the reward that is for the format.
    """

    def __init__(self, config: JudgeConfig, model: ChatModel, part: float) -> None:
        self._config = config
        self._model = model
        self._part = part

    async def __call__(self, case: Case) -> float | None:
        """See `Reward`."""
        score = await self._score(case)
        return None if score is None else (1 - self._part) * score + self._part * case.format

    async def _score(self, case: Case) -> float | None:
        if case.reference:
            reference = Reference(answers=case.reference)
            verdict = await judge(self._config, case.question, case.answer, reference, self._model)
            return None if verdict.correct is None else float(verdict.correct)
        if not case.official:
            return None
        if case.reward is not None:
            return case.reward
        if case.label is not None:
            return float(case.label == "right")
        words = await read_words(self._model, self._config, case.question.text, case.answer or "", case.correction)
        return {"right": 1.0, "wrong": 0.0, "unclear": None}[words.verdict]


class _Told(Record):
    reward: StrictFloat | None = Field(allow_inf_nan=False)


class AtUrl:
    """A service that gives rewards.

    Args:
        url: where cases are posted.
        timeout_s: limit of one call, in seconds.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        import httpx

        self._url = url
        self._client = httpx.AsyncClient(timeout=timeout_s)

    async def __call__(self, case: Case) -> float | None:
        """See `Reward`."""
        import httpx

        try:
            headers = {"content-type": "application/json"}
            answer = await self._client.post(self._url, content=case.model_dump_json(), headers=headers)
            answer.raise_for_status()
            return _Told.model_validate_json(answer.content).reward
        except (httpx.HTTPError, ValidationError) as error:
            why = 'its answer is not {"reward": number or null}' if isinstance(error, ValidationError) else str(error)
            raise JudgeError(
                f"{self._url} gave no reward: {why or type(error).__name__}",
                remedy="mend the service; the feedback stays in the queue", code="no_reward", retryable=True,
            ) from error  # fmt: skip

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()


class Own:
    """A function of the user's.

    Args:
        name: `module:function`.

    Raises:
        ConfigError: there is none.
    """

    def __init__(self, name: str) -> None:
        module, _, function = name.partition(":")
        try:
            self._function = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"streaming.reward: {error}", remedy="name a function as module:function") from error
        self._name = name

    async def __call__(self, case: Case) -> float | None:
        """See `Reward`."""
        try:
            found = self._function(case)
            found = await found if inspect.isawaitable(found) else found
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, OSError) as error:
            raise JudgeError(
                f"{self._name} failed: {type(error).__name__}: {error}",
                remedy="mend the function; the feedback stays in the queue", code="no_reward", retryable=True,
            ) from error  # fmt: skip
        if found is None or (isinstance(found, int | float) and math.isfinite(found)):
            return None if found is None else float(found)
        raise JudgeError(f"{self._name} gave {found!r}", remedy="give a finite number, or None", code="no_reward")


def open_reward(name: str, timeout_s: float, config: JudgeConfig, model: ChatModel, part: float) -> Reward:
    """The reward that `streaming.reward` names.

    Raises:
        ConfigError: there is no such function.
    """
    if name == "judge":
        return Judged(config, model, part)
    return AtUrl(name, timeout_s) if name.startswith("http") else Own(name)
