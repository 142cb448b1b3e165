"""Which of a question's answers is the official one: by a rule that is fixed before the run, before any feedback.

A rule is shown what a `Candidate` holds, and no outcome of the question: there is none yet. Rollouts in which a call
failed are no candidates.

    first      the first plan
    shortest   the plan with the fewest numbered steps, then the fewest words
    majority   the answer that most plans led to (compared as EM compares), of equals the one that came first
    router     the plan that the router model picks, with pairs of a right and a wrong plan of earlier questions in view
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inference.metrics import normalise
from inference.verdicts import ask, visible
from memory_serve.protocol import PlanPair
from mia.chat import ChatModel
from mia.errors import ConfigError, JudgeError, MiaError, ParseError
from mia.prompts import Trusted, prompt
from mia.types import Failure, Question, Sampling
from ttrl.config import ChoiceRule
from ttrl.records import Rolled

_STEP = re.compile(r"^\s*\d+[.)]\s", re.MULTILINE)
_NUMBER = re.compile(r"(?:plan\s*)?(\d{1,3})[.!]?", re.IGNORECASE)
_TRIES = 3
_SAMPLING = Sampling(temperature=0.0, max_tokens=512)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a rule may know of a rollout: its first plan and its answer."""

    plan: str
    answer: str | None


def candidates(rolled: Sequence[Rolled]) -> dict[int, Candidate]:
    """The rollouts that did not fail, by their places."""
    return {
        place: Candidate(each.run.plans[0].text if each.run.plans else "", each.run.answer)
        for place, each in enumerate(rolled)
        if each.run is not None
    }


async def choose(
    rule: ChoiceRule,
    question: Question,
    found: Mapping[int, Candidate],
    pairs: Sequence[PlanPair] = (),
    router: ChatModel | None = None,
) -> tuple[int | None, Failure | None]:
    """The place of the official one; None if there is no candidate.

    Args:
        rule: see the module.
        question: what was asked.
        found: the candidates by their places.
        pairs: what the router is shown, most similar question first.
        router: the model that picks.

    Returns:
        The place; and why the router picked none, in which case the first one stands.
    """
    if not found:
        return None, None
    if rule == "shortest":
        return min(found, key=lambda place: (*_length(found[place].plan), place)), None
    if rule == "majority":
        return _majority(found), None
    if rule == "router" and len(found) > 1:
        if router is None:
            raise ConfigError("the rule `router` needs a router model", remedy="set [models.router]")
        try:
            return await _routed(question, found, pairs, router), None
        except MiaError as error:  # the answers are there: the first stands for them, and the row says so
            return min(found), error.failure().model_copy(update={"code": "router"})
    return min(found), None


def _length(plan: str) -> tuple[float, int]:
    """Steps and words; no plan is no short plan."""
    steps = len(_STEP.findall(plan))
    return (steps or 1 if plan.strip() else float("inf")), len(plan.split())


def _majority(found: Mapping[int, Candidate]) -> int:
    answers = {place: normalise(one.answer) for place, one in found.items() if one.answer is not None}
    if not answers:
        return min(found)
    votes = Counter(answers.values())
    return min(answers, key=lambda place: (-votes[answers[place]], place))


async def _routed(
    question: Question, found: Mapping[int, Candidate], pairs: Sequence[PlanPair], router: ChatModel
) -> int:
    places = sorted(found)
    text = router_prompt(question, [found[place].plan for place in places], pairs)

    def read(reply: str) -> int:
        match = _NUMBER.fullmatch(visible(reply))
        if match is None or not 1 <= int(match.group(1)) <= len(places):
            raise ParseError(f"not the number of a plan: {visible(reply)[:80]!r}")
        return places[int(match.group(1)) - 1]

    try:
        picked, _ = await ask(router, text, read, _SAMPLING, _TRIES, "choice of a plan")
    except JudgeError as error:
        raise JudgeError(error.message, remedy="use a stronger router model; the first plan stands") from error
    return picked


def router_prompt(question: Question, plans: Sequence[str], pairs: Sequence[PlanPair]) -> str:
    """What the router is asked."""
    items = [
        prompt("router/pair").render(question=pair.question, correct=pair.correct, incorrect=pair.incorrect)
        for pair in pairs
    ]
    shown = prompt("router/pairs").render(items=Trusted("\n\n".join(items))) if items else ""
    listed = [
        prompt("router/plan").render(number=str(number), text=plan or "(no plan)")
        for number, plan in enumerate(plans, 1)
    ]
    return prompt("router/choose").render(
        pairs=Trusted(f"\n{shown}\n" if shown else ""),
        question=question.text,
        plans=Trusted("\n\n".join(listed)),
        count=str(len(plans)),
    )
