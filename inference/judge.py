"""Judges: an answer against its reference, by exact match, by token F1, or by a model that grades A, B or C.

Only these functions and evaluation see a `Reference`. A grade that cannot be read is no verdict: the row is unjudged.
A run without an answer is wrong without asking anybody; a run that failed is never judged.
"""

from __future__ import annotations

import re
from typing import Literal

from inference.config import JudgeConfig
from inference.grammar import split_thinking
from inference.metrics import best_exact_match, best_f1
from mia.chat import ChatModel
from mia.errors import JudgeError, ParseError
from mia.examples import Reference
from mia.prompts import prompt
from mia.types import Judgement, Message, Question, Sampling

Grade = Literal["A", "B", "C"]
_BARE = re.compile(r"[\s*_(\[\"'`]*([ABC])[\s*_)\]\"'`.:]*")
_LED = re.compile(r"[*_(\[\"'`]*([ABC])[*_)\]\"'`]*[.:][ \t]+\S.*")
_SAMPLING = Sampling(temperature=0.0, max_tokens=512)


def read_grade(text: str) -> Grade:
    """The grade in a judge's reply: one letter A, B or C, alone or followed by `.` or `:` and a reason on the line.

    Raises:
        ParseError: anything else, however close.
    """
    thinking, visible = split_thinking(text)
    match = _BARE.fullmatch(visible.strip()) or _LED.fullmatch(visible.strip())
    if match is None:
        raise ParseError(f"not a grade: {visible.strip()[:80]!r}" if visible.strip() or not thinking else "no grade")
    grade: Grade = match.group(1)  # type: ignore[assignment]  # the pattern allows only these letters
    return grade


async def judge(
    config: JudgeConfig, question: Question, answer: str | None, reference: Reference, model: ChatModel | None = None
) -> Judgement:
    """Judge one answer.

    Args:
        config: the method.
        question: what was asked.
        answer: what the agent answered; None counts as wrong.
        reference: the gold answers.
        model: the judge model; needed for the method `model`.

    Raises:
        JudgeError: no readable grade came within the allowed tries; the answer stays unjudged.
        ModelError: the judge model did not answer.
    """
    if answer is None:
        return Judgement(correct=False, score=0.0, method=config.method)
    if config.method == "em":
        score = best_exact_match(answer, reference.answers)
        return Judgement(correct=score == 1.0, score=score, method="em")
    if config.method == "f1":
        score = best_f1(answer, reference.answers)
        return Judgement(correct=score >= config.f1_threshold, score=score, method="f1")
    if model is None:
        raise JudgeError("the method `model` needs a judge model", remedy="set [models.judge]")
    return await _grade(model, config.tries, question, answer, reference)


async def _grade(model: ChatModel, tries: int, question: Question, answer: str, reference: Reference) -> Judgement:
    template = prompt("judge/grade")
    references = "\n".join(f"- {text}" for text in reference.answers)
    text = template.render(question=question.text, references=references, answer=answer)
    fault = ""
    for _ in range(tries):
        reply = await model.generate((Message(role="user", text=text),), _SAMPLING)
        try:
            grade = read_grade(reply.text)
        except ParseError as error:
            fault = error.message
            continue
        return Judgement(
            correct=grade == "A",
            score=float(grade == "A"),
            method="model",
            judge=reply.model,
            prompt_hash=template.hash,
            raw=reply.text,
        )
    raise JudgeError(
        f"no readable grade in {tries} tries ({fault})", remedy="use a stronger judge model; the answer stays unjudged"
    )
