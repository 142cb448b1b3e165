"""What only judges, rewards and evaluation see: gold answers. No episode, tool, method or panel imports this module."""

from __future__ import annotations

from pydantic import Field, field_validator

from mia.types import Question, Record, Text


class Reference(Record):
    """Gold answers of one question, any of which is right. Only judges, rewards and evaluation see it."""

    answers: tuple[Text, ...] = Field(min_length=1)

    @field_validator("answers")
    @classmethod
    def _not_blank(cls, answers: tuple[str, ...]) -> tuple[str, ...]:
        if not all(answer.strip() for answer in answers):
            raise ValueError("a reference answer is blank")
        return answers


class Example(Record):
    """A question with its reference, as read from a dataset."""

    question: Question
    reference: Reference
    source: str = ""
    type: str = ""
    level: str = ""
    supporting_titles: tuple[Text, ...] = ()
