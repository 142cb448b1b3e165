"""Categories of questions by rules."""

from __future__ import annotations

import pytest

from memory_serve.category import CATEGORIES, by_rules
from mia.types import Question

EXAMPLES = {
    "location": [
        "Which river flows through the capital of Austria?",
        "Where was Marie Curie born?",
        "In which city is the Uffizi?",
        "The film was shot there. What country is it?",
    ],
    "human": ["Who directed 'When Harry Met Sally'?", "Which actor played Hamlet in 1948?", "Whose is it?"],
    "time": ["When did the war in that city end?", 'What year was "Where Eagles Dare" released?'],
    "career": ["What profession do Nicholas Ray and Elia Kazan have in common?", "What was his job?"],
    "process": ["How do bees make honey?", "What is the method of least squares good at?"],
    "definition": [
        "What is photosynthesis?",
        "What is a fjord?",
        "What does NASA stand for?",
        "What is New York City?",
    ],
    "event": ["What happened in 1066?", "Which battle ended the campaign of 1815?"],
    "function": ["What is a stethoscope used for?", "What is the purpose of a keel?"],
    "property": [
        "How many people live in Rome?",
        "What nationality was Ed Wood?",
        "Were Scott Derrickson and Ed Wood of the same nationality?",
        "What is New York City's population?",
    ],
    "others": ["", "???", "Tell me more", "Why is the sky blue?"],
}


@pytest.mark.parametrize(("category", "text"), [(c, text) for c, texts in EXAMPLES.items() for text in texts])
def test_examples(category: str, text: str) -> None:
    assert by_rules(Question(id="1", text=text)) == category


def test_every_category_has_an_example() -> None:
    assert set(EXAMPLES) == set(CATEGORIES)


@pytest.mark.parametrize(
    "pattern",
    [
        "Which river flows through the capital of {}?",
        "What is {}'s population?",
        "Who was the first king of {}?",
        "What is {} known for?",
        "What is {}?",
    ],
)
def test_the_same_question_of_another_thing_is_in_the_same_bucket(pattern: str) -> None:
    names = ["Austria", "Hungary", "New York City", "River Phoenix", "WAR CHILD"]
    found = {by_rules(Question(id="1", text=pattern.format(name))) for name in names}
    assert len(found) == 1


def test_capitals_and_the_caption_do_not_matter() -> None:
    loud = Question(id="1", text="WHICH RIVER FLOWS THROUGH ROME?", caption="When? Who?")
    assert by_rules(loud) == "location"
