"""What only judges, rewards and evaluation see: gold answers. No episode, tool, method or panel imports this module."""

from __future__ import annotations

from string import ascii_uppercase

from pydantic import Field, field_validator, model_validator

from mia.types import Modality, Question, Record, Text


class Reference(Record):
    """Gold answers of one question, any of which is right. Only judges, rewards and evaluation see it.

    `choice` is the letter of the right option of a multiple choice question, empty for an open one.
    """

    answers: tuple[Text, ...] = Field(min_length=1)
    choice: str = Field("", pattern=r"^[A-Z]?$")

    @field_validator("answers")
    @classmethod
    def _not_blank(cls, answers: tuple[str, ...]) -> tuple[str, ...]:
        if not all(answer.strip() for answer in answers):
            raise ValueError("a reference answer is blank")
        return answers


class Example(Record):
    """A question with its reference, as read from a dataset.

    Attributes:
        question: what is asked; the options of a multiple choice question stand in its text.
        reference: what is right.
        source: name of the dataset.
        part: part of the dataset it comes from (LiveVQA: News, Paper, Video).
        type: kind of question as the dataset names it (HotpotQA: bridge, comparison).
        category: topic as the dataset names it (SimpleQA: Geography, …).
        level: difficulty as the dataset names it (GAIA: 1 to 3; HotpotQA: easy, medium, hard).
        choices: texts of the options without their letters, in the order of the letters; empty for an open question.
        supporting_titles: titles of the passages that state the answer, for recall.
    """

    question: Question
    reference: Reference
    source: str = ""
    part: str = ""
    type: str = ""
    category: str = ""
    level: str = ""
    choices: tuple[Text, ...] = ()
    supporting_titles: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _choice_is_an_option(self) -> Example:
        if bool(self.choices) != bool(self.reference.choice):
            raise ValueError("choices and the letter of the right one come together")
        if self.choices and self.reference.choice not in ascii_uppercase[: len(self.choices)]:
            raise ValueError(f"{self.reference.choice} is the letter of none of {len(self.choices)} choices")
        return self

    @property
    def modality(self) -> Modality:
        """That of the question."""
        return self.question.modality
