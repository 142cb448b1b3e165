"""Judges: an answer against its reference, by rule or by a model.

    em, f1      official HotpotQA rules                        inference/metrics.py
    accepted    one of the accepted answers, forms forgiven    inference/matching.py
    choice      the letter of a multiple choice question       inference/matching.py
    gaia        GAIA's numbers, strings and lists              inference/matching.py
    model       a model grades A, B or C, as in SimpleQA
    browse      a model extracts the answer and says yes or no, as in BrowseComp; stricter than `model`

Only these functions and evaluation see a `Reference`. A grade that cannot be read is no verdict: the row is unjudged.
A run without an answer is wrong without asking anybody; a run that failed is never judged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from inference.config import JudgeConfig
from inference.matching import accepted, gaia_match, read_choice
from inference.metrics import best_exact_match, best_f1
from inference.verdicts import Form, ask, read_form, visible
from mia.chat import ChatModel
from mia.errors import JudgeError, ParseError
from mia.examples import Reference
from mia.prompts import prompt
from mia.types import Judgement, Question

Grade = Literal["A", "B", "C"]
_BARE = re.compile(r"[\s*_(\[\"'`]*([ABC])[\s*_)\]\"'`.:]*")
_LED = re.compile(r"[*_(\[\"'`]*([ABC])[*_)\]\"'`]*[.:][ \t]+\S.*")


class BrowseVerdict(Form):
    """What the browse judge replies; `confidence` in percent is the one that the response itself states."""

    extracted: str = Field(min_length=1)
    reason: str
    correct: Literal["yes", "no"]
    confidence: int = Field(ge=0, le=100)


def read_grade(text: str) -> Grade:
    """The grade in a judge's reply: one letter A, B or C, alone or followed by `.` or `:` and a reason on the line.

    Raises:
        ParseError: anything else, however close.
    """
    shown = visible(text)
    match = _BARE.fullmatch(shown) or _LED.fullmatch(shown)
    if match is None:
        raise ParseError(f"not a grade: {shown[:80]!r}")
    grade: Grade = match.group(1)  # type: ignore[assignment]  # the pattern allows only these letters
    return grade


def read_browse(text: str) -> BrowseVerdict:
    """The browse judge's verdict: one JSON object with exactly its four fields.

    Raises:
        ParseError: anything else, or a verdict that calls no answer a right one.
    """
    verdict = read_form(text, BrowseVerdict)
    if verdict.correct == "yes" and verdict.extracted.strip().strip(".\"'").lower() == "none":
        raise ParseError('"correct" is "yes", but "extracted" is "none"')
    return verdict


async def judge(
    config: JudgeConfig,
    question: Question,
    answer: str | None,
    reference: Reference,
    model: ChatModel | None = None,
    choices: Sequence[str] = (),
) -> Judgement:
    """Judge one answer.

    Args:
        config: the method.
        question: what was asked.
        answer: what the agent answered; None counts as wrong.
        reference: the gold answers.
        model: the judge model; needed for the methods `model` and `browse`.
        choices: texts of the options, for the method `choice`; without them only letters can be read.

    Raises:
        JudgeError: no readable grade came within the allowed tries, or the answer cannot be read as a choice (code
            `unreadable_choice`); the answer stays unjudged. Or the method does not fit the question.
        ModelError: the judge model did not answer.
    """
    if answer is None:
        return Judgement(correct=False, score=0.0, method=config.method)
    if config.by_model:
        if model is None:
            raise JudgeError(f"the method `{config.method}` needs a judge model", remedy="set [models.judge]")
        return await _ask(config, model, question, answer, reference)
    if config.method == "choice":
        return _choice(answer, reference, choices)
    if config.method == "f1":
        score = best_f1(answer, reference.answers)
        return Judgement(correct=score >= config.f1_threshold, score=score, method="f1")
    if config.method == "em":
        right = best_exact_match(answer, reference.answers) == 1.0
    elif config.method == "accepted":
        right = accepted(answer, reference.answers)
    else:
        right = any(gaia_match(answer, gold) for gold in reference.answers)
    return Judgement(correct=right, score=float(right), method=config.method)


def _choice(answer: str, reference: Reference, choices: Sequence[str]) -> Judgement:
    if not reference.choice:
        raise JudgeError(
            "the question is an open one, it has no letter", remedy='set judge.method to "accepted" or "model"'
        )
    letter = read_choice(answer, choices)
    if letter is None:
        raise JudgeError(
            f"no option can be read from the answer {answer[:80]!r}",
            remedy="the answer stays unjudged and is counted apart",
            code="unreadable_choice",
        )
    right = letter == reference.choice
    return Judgement(correct=right, score=float(right), method="choice", raw=letter)


async def _ask(
    config: JudgeConfig, model: ChatModel, question: Question, answer: str, reference: Reference
) -> Judgement:
    """Let the model grade."""
    template = prompt("judge/grade" if config.method == "model" else "judge/browse")
    references = "\n".join(f"- {text}" for text in reference.answers)
    text = template.render(question=question.text, references=references, answer=answer)
    right, reply = await ask(
        model, text, _graded if config.method == "model" else _browsed, config.sampling, config.tries, "grade"
    )
    return Judgement(
        correct=right,
        score=float(right),
        method=config.method,
        judge=reply.model,
        prompt_hash=template.hash,
        raw=reply.text,
    )


def _graded(text: str) -> bool:
    return read_grade(text) == "A"


def _browsed(text: str) -> bool:
    return read_browse(text).correct == "yes"
