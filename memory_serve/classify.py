"""The category of a question as the Manager model names it, with a cache; the rules stand in where it does not.

A reply that is no category, or no reply at all, is recorded: it is logged, and what is stored says that the rules named
its category and why. It is not kept in the cache, so the next time the model is asked again.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from memory_serve.category import CATEGORIES, by_rules
from mia.chat import ChatModel
from mia.errors import ConfigError, MiaError, ParseError
from mia.prompts import prompt
from mia.types import Message, Question, Sampling

_log = logging.getLogger(__name__)
_CACHED = 10_000
_OBJECT = re.compile(r"\{[^{}]*\}")


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    category: Literal[
        "location", "human", "time", "career", "process", "definition", "event", "function", "property", "others"
    ]


@dataclass(frozen=True, slots=True)
class Classified:
    """A category, and why it is the rules' and not the model's, if so."""

    category: str
    degraded: str = ""


class ModelClassifier:
    """Asks a model.

    Args:
        model: the Manager.
    """

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self._cache: OrderedDict[str, str] = OrderedDict()
        self.failures = 0
        """How many questions the model could not be understood on."""

    async def classify(self, question: Question) -> Classified:
        """The category of a question; never an error, see the module."""
        known = self._cache.get(question.text)
        if known is not None:
            self._cache.move_to_end(question.text)
            return Classified(known)
        try:
            category = await self._ask(question)
        except MiaError as error:
            self.failures += 1
            _log.warning("the Manager model did not classify a question, the rules did: %s", error)
            return Classified(by_rules(question), error.code)
        self._cache[question.text] = category
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return Classified(category)

    async def _ask(self, question: Question) -> str:
        text = prompt("manager/classify").render(question=question.text, categories=", ".join(CATEGORIES))
        reply = await self._model.generate([Message(role="user", text=text)], Sampling(max_tokens=256))
        return read_category(reply.text)


def read_category(text: str) -> str:
    """The category in a reply: the last JSON object outside the thinking, nothing else.

    Raises:
        ParseError: there is none, or it is not one of `CATEGORIES`.
    """
    objects = _OBJECT.findall(text.rpartition("</think>")[2])
    try:
        return _Answer.model_validate_json(objects[-1]).category
    except (IndexError, ValidationError) as error:
        raise ParseError(
            f"no category: {text[:200]!r}",
            remedy='use a stronger Manager model, or set memory.classify = "rules"',
            code="no_category",
        ) from error


def model_classifier(wanted: bool, manager: ChatModel | None) -> ModelClassifier | None:
    """What names categories in the place of the rules, if that is wanted.

    Raises:
        ConfigError: it is wanted, and there is no Manager model.
    """
    if not wanted:
        return None
    if manager is None:
        raise ConfigError('memory.classify is "model", but there is no Manager model', remedy="set models.manager")
    return ModelClassifier(manager)
