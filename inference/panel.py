"""The panel: judges a run without knowing the right answer. Three reviewers score it, a chair decides.

    logic      does each step follow?             question, what was done, answer    weight 0.5
    sourcing   was what is claimed also found?    question, what was done, answer           0.3
    validity   is it an answer to the question?   question, answer                          0.2
    chair      accept or reject                   question, answer, the three reviews

An answer counts as correct when the chair accepts it and the weighted score reaches the threshold: either alone can
refuse. Scores are read from strict JSON and used; the original asked for them and never read them, and took any reply
with the letter A in it for acceptance. A reply that cannot be read is asked for again, then the run is unjudged; a
call that fails is an error and becomes neither a score nor a text that the next model reads.

Gold answers cannot get here: `mia.examples` is not imported, not even by a module that this one imports, and a
trajectory has none. Models are shown its question, plans, steps and answer only; verdicts that a run may carry from
other judges are not looked at. Pictures are not shown, their caption is. (Paper, unsupervised judgement: reviewers
with evidence and a meta-decision.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from inference.config import PanelConfig
from inference.executor import label
from inference.grammar import split_thinking
from inference.verdicts import Form, ask, read_form
from mia.chat import ChatModel
from mia.errors import JudgeError, ParseError
from mia.prompts import JOINER, Prompt, Trusted, prompt
from mia.types import Judgement, Record, Reply, Step, Text, Trajectory

Reviewer = Literal["logic", "sourcing", "validity"]
REVIEWERS: tuple[Reviewer, ...] = ("logic", "sourcing", "validity")
_CUT = "\n[… left out …]\n"


class Opinion(Form):
    """What a reviewer replies."""

    quote: str
    reason: str
    score: int = Field(ge=1, le=10)


class Decision(Form):
    """What the chair replies."""

    reason: str
    verdict: Literal["accept", "reject"]


class Review(Record):
    """A reviewer's score of 1 to 10 with its evidence; `quoted`: the quote stands in what the reviewer was shown."""

    reviewer: Reviewer
    score: int = Field(ge=1, le=10)
    reason: Text
    quote: Text
    quoted: bool


class PanelReport(Record):
    """What the panel found: the reviews, their weighted score, and the chair's verdict."""

    reviews: tuple[Review, ...]
    score: float
    verdict: Literal["accept", "reject"]
    reason: Text


@dataclass(frozen=True, slots=True)
class _Case:
    """All of a run that the panel may know; both texts are shown as data."""

    question: str
    caption: Trusted
    answer: str
    trace: str


async def judge_by_panel(config: PanelConfig, trajectory: Trajectory, model: ChatModel) -> Judgement:
    """Judge a run by what is in it.

    Args:
        config: weights, threshold and tries.
        trajectory: the run; it must not have failed.
        model: plays the reviewers and the chair.

    Returns:
        The verdict; `score` is the weighted score of 1 to 10 and `raw` the `PanelReport` as JSON. A run without an
        answer is wrong without asking anybody.

    Raises:
        JudgeError: a reply could not be read in the allowed tries, or the run failed; the run stays unjudged.
        ModelError: the model did not answer.
    """
    if trajectory.failure is not None:
        raise JudgeError(f"run {trajectory.id} failed; there is nothing to judge", remedy="run it again")
    if trajectory.answer is None:
        return Judgement(correct=False, method="panel")
    case = _case(trajectory, trajectory.answer, config.trace_chars)
    reviews = [await _review(config, name, case, model) for name in REVIEWERS]
    score = sum(weight * review.score for weight, review in zip(config.weights, reviews, strict=True))
    template = prompt("judge/panel_chair")
    text = template.render(
        question=case.question,
        caption=case.caption,
        answer=case.answer,
        reviews=Trusted("\n\n".join(map(_shown, reviews, config.weights))),
        score=f"{score:.1f}",
    )
    decision, reply = await ask(model, text, _read_decision, config.sampling, config.tries, "verdict of the chair")
    report = PanelReport(reviews=tuple(reviews), score=score, verdict=decision.verdict, reason=decision.reason)
    return Judgement(
        # The sum of decimal weights may fall short of the threshold by a rounding error.
        correct=decision.verdict == "accept" and score >= config.threshold - 1e-9,
        score=score,
        method="panel",
        judge=reply.model,
        prompt_hash=template.hash,
        raw=report.model_dump_json(),
    )


def read_opinion(text: str) -> Opinion:
    """A review: one JSON object with exactly quote, reason and score.

    Raises:
        ParseError: anything else, a score that is no whole number of 1 to 10, or no quote.
    """
    opinion = read_form(text, Opinion)
    if not _plain(opinion.quote):
        raise ParseError("quote: there is none")
    return opinion


def _read_decision(text: str) -> Decision:
    return read_form(text, Decision)


async def _review(config: PanelConfig, name: Reviewer, case: _Case, model: ChatModel) -> Review:
    template = prompt(f"judge/panel_{name}")
    text = _fill(template, case)
    opinion, _ = await ask(model, text, read_opinion, config.sampling, config.tries, f"review of {name}")
    shown = (case.question, case.caption, case.answer, case.trace if "trace" in template.fields else "")
    return Review(
        reviewer=name,
        score=opinion.score,
        reason=opinion.reason,
        quote=opinion.quote,
        quoted=any(_plain(opinion.quote) in _plain(part) for part in shown),
    )


def _fill(template: Prompt, case: _Case) -> str:
    known = {"question": case.question, "caption": case.caption, "answer": case.answer, "trace": case.trace}
    return template.render(**{field: known[field] for field in template.fields})


def _shown(review: Review, weight: float) -> str:
    return prompt("judge/panel_review").render(
        reviewer=Trusted(review.reviewer.capitalize()),
        weight=f"{weight:g}",
        score=str(review.score),
        reason=review.reason,
        quote=review.quote,
        found=Trusted("found" if review.quoted else "not found in what the reviewer had read"),
    )


def _plain(text: str) -> str:
    """The text as quotes are compared: without case, differences of white space, and quotation marks around it."""
    return " ".join(text.replace(JOINER, "").casefold().split()).strip("\"'“”‘’… ")


def _case(trajectory: Trajectory, answer: str, limit: int) -> _Case:
    question = trajectory.question
    caption = Trusted("")
    if question.images or question.caption.strip():
        described = question.caption.strip() or "(nobody has described it)"
        caption = Trusted(prompt("planner/caption").render(caption=described))
    return _Case(question.text, caption, answer, _trace(trajectory, limit))


def _trace(trajectory: Trajectory, limit: int) -> str:
    """Plans, and what the Executor said, called and was shown, in order; the middle is left out beyond the limit."""
    parts = [f"{'Supplementary plan' if plan.revision else 'Plan'}: {plan.text}" for plan in trajectory.plans]
    parts += [part for step in trajectory.steps if step.role == "executor" for part in _told(step)]
    text = "\n\n".join(parts) or "(nothing: no plan, no search)"
    if len(text) <= limit:
        return text
    half = (limit - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]


def _told(step: Step) -> list[str]:
    said = _said(step.reply) if step.reply is not None else ""
    lines = [f"Executor: {said}"] if said else []
    for call, observation in zip(step.calls, step.observations, strict=False):
        found = observation.text if observation.failure is None else "(the call failed, nothing was found)"
        lines.append(f"Call {label(call)}\nResult: {found}")
    return lines


def _said(reply: Reply) -> str:
    """A reply with its thinking, without the markup of calls, which are shown apart."""
    thinking, rest = split_thinking(reply.text)
    return " ".join(part for part in (thinking, rest.partition("<tool_call>")[0].strip()) if part)
