"""Metrics of single answers."""

from __future__ import annotations

import pytest

from inference.evaluation.scores import score
from inference.runs import Run
from mia.examples import Example, Reference
from mia.types import Question

QUESTION = Question(id="q", text="Which town is shown?")
OPEN = Example(question=QUESTION, reference=Reference(answers=("Larkton", "the town of Larkton")))
CHOICE = Example(
    question=QUESTION,
    reference=Reference(answers=("Larkton", "the town of Larkton", "Larkton (Orm)"), choice="B"),
    choices=("Orm", "Larkton (Orm)", "Fogham"),
)


def scored(answer: str | None, example: Example) -> dict[str, float]:
    stop = "answered" if answer else "no_answer"
    run = Run(id="r", question=QUESTION, answer=answer, stop_reason=stop, seconds=1.0)
    return score(("em", "accepted", "choice"), run, example)


@pytest.mark.parametrize(
    ("answer", "em", "accepted"),
    [("Larkton", 1.0, 1.0), ("The Town of Larkton!", 1.0, 1.0), ("Orm", 0.0, 0.0), ("B", 0.0, 0.0), (None, 0.0, 0.0)],
)
def test_an_open_answer_is_held_against_the_accepted_ones(answer: str | None, em: float, accepted: float) -> None:
    assert scored(answer, OPEN) == {"em": em, "accepted": accepted}


@pytest.mark.parametrize(
    ("answer", "accepted", "choice"),
    [
        ("B", 1.0, 1.0),
        ("(b)", 1.0, 1.0),
        ("Larkton (Orm)", 1.0, 1.0),
        ("the town of Larkton", 1.0, 0.0),  # accepted, but no option's text
        ("A", 0.0, 0.0),
        ("B or C", 0.0, 0.0),
        (None, 0.0, 0.0),
    ],
)
def test_a_letter_stands_for_the_text_of_its_option(answer: str | None, accepted: float, choice: float) -> None:
    found = scored(answer, CHOICE)
    assert (found["accepted"], found["choice"]) == (accepted, choice)
    assert found["em"] == accepted
