"""Accepted lists, letters of multiple choice and GAIA's rules, on values reckoned by hand."""

from __future__ import annotations

from string import ascii_uppercase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.matching import accepted, gaia_match, read_choice

SCHOOLS = (
    "Emory University",
    "Harvard Medical School",
    "Morehouse School of Medicine",
    "Tulane School of Medicine",
    "Columbia University",
)
COUNTS = ("4", "2", "6", "10")


@pytest.mark.parametrize(
    ("answer", "listed", "right"),
    [
        ("morehouse SOM.", ["Morehouse School of Medicine", "Morehouse SOM"], True),
        ("Morehouse", ["Morehouse School of Medicine", "Morehouse SOM"], False),
        ("It is Morehouse SOM", ["Morehouse SOM"], False),  # nothing is searched for inside a longer answer
        ("the Yellow-Vest protests", ["Yellow Vest Protests"], True),
        ("Removal of Article 370 in Kashmir", ["Removal of Article 371 in Kashmir"], False),
        ("Café Zürich", ["Cafe Zurich"], True),
        ("Cafe\u0301", ["café"], True),
        ("１２", ["12"], True),
        ("O’Neill", ["O'Neill"], True),
        ("1878–1954", ["1878-1954"], True),
        ("2", ["2"], True),
        ("two", ["2"], True),
        ("Two", ["2.0"], True),
        ("2 of 10", ["2"], False),
        ("12", ["2"], False),
        ("1,000", ["1000"], True),
        ("1,5", ["15"], False),
        ("1,5", ["1.5"], True),
        ("1.0", ["10"], False),  # unlike exact match
        ("3.5 million", ["35 million"], False),
        ("$168 million", ["$168 Million"], True),
        ("$29.00", ["29"], True),
        ("50 %", ["50%"], True),
        ("-5", ["5"], False),
        ("1234567890123", ["1234567890124"], False),
        ("C++", ["C"], False),
        ("が", ["か"], False),
        ("維也納", ["維也納"], True),
        ("The", ["A"], False),
        ("", ["", "x"], False),
        ("...", ["!"], False),
        ("yes", ["Yes."], True),
        ("x", [], False),
    ],
)
def test_accepted(answer: str, listed: list[str], right: bool) -> None:
    assert accepted(answer, listed) is right


@pytest.mark.parametrize(
    "answer",
    [
        "B", "b", " B\n", "B.", "B:", "(B)", "[B]", "(b).", "**B**", "`B`", '"B"',
        "B. Harvard Medical School", "B) Harvard Medical School", "(B) Harvard Medical School",
        "B: harvard medical school",
        "B, Harvard Medical School", "B - Harvard Medical School", "B\nHarvard Medical School",
        "B Harvard Medical School",
        "**B.** Harvard Medical School", "B. Harvard Medical School, as the search shows", "B. A school in Boston",
        "Harvard Medical School", "harvard medical school.", "the Harvard Medical School",
        "The answer is B", "The answer is (B).", "Answer: B", "Final answer: **B**", "Option B",
        "the correct option is B",
        "The correct answer is option B.", "Answer: B. Harvard Medical School", "The answer is Harvard Medical School.",
        "So the answer is: B",
    ],
)  # fmt: skip
def test_choices_that_can_be_read(answer: str) -> None:
    assert read_choice(answer, SCHOOLS) == "B"


@pytest.mark.parametrize(
    "answer",
    [
        "", "  ", "?", "F", "(Z)", "AB", "A B", "A or B", "A/B", "A, B", "A and B", "A\nB", "B. or C.",
        "B. No, it is C.",
        "B. Emory University", "F. Emory University", "B. Not Emory University but Harvard", "(B) Emory University",
        "Emory University or Harvard Medical School", "School of Medicine", "Harvard", "Stanford University",
        "I think it is B", "Because of Boston", "None of them", "I do not know", "A school", "The answer", "Β",
    ],
)  # fmt: skip
def test_choices_that_are_not_clear(answer: str) -> None:
    assert read_choice(answer, SCHOOLS) is None


@pytest.mark.parametrize(
    ("answer", "letter"),
    [("2", "B"), ("2.0", "B"), ("two", "B"), ("B. 2", "B"), ("B (2)", "B"), ("10", "D"),
     ("B. 4", None), ("1", None), ("4 or 6", None)],
)  # fmt: skip
def test_choices_that_are_numbers(answer: str, letter: str | None) -> None:
    assert read_choice(answer, COUNTS) == letter


def test_options_may_carry_their_letters() -> None:
    led = [f"{letter}. {text}" for letter, text in zip(ascii_uppercase, SCHOOLS, strict=False)]
    assert read_choice("Tulane School of Medicine", led) == "D"
    assert read_choice("D. Tulane School of Medicine", led) == "D"
    # Initials are no letters of options: not every option has its own.
    assert read_choice("A. Einstein", ["A. Einstein", "N. Bohr"]) == "A"
    assert read_choice("N. Bohr", ["A. Einstein", "N. Bohr"]) == "B"
    assert read_choice("B. Bohr", ["A. Einstein", "N. Bohr"]) == "B"


def test_options_that_look_like_letters_or_each_other() -> None:
    types = ("O", "A", "AB", "B")  # blood groups: the letter A and the text of option B
    assert [read_choice(answer, types) for answer in ("O", "A", "AB", "B", "C. AB", "C")] == [
        "A",
        None,
        "C",
        None,
        "C",
        "C",
    ]
    assert read_choice("Vienna", ("Vienna", "vienna.", "Graz")) is None
    assert read_choice("A", ("Vienna", "vienna.", "Graz")) == "A"
    longer = ("York", "New York", "New York City")
    assert [read_choice(answer, longer) for answer in longer] == ["A", "B", "C"]
    assert read_choice("C. New York City", longer) == "C"
    assert read_choice("A. New York", longer) is None


def test_without_options_only_letters_can_be_read() -> None:
    assert [read_choice(answer) for answer in ("B", "(e)", "B. Vienna", "Vienna", "A or B")] == [
        "B",
        "E",
        "B",
        None,
        None,
    ]


TEXTS = st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=8)


@given(TEXTS, st.data())
def test_what_is_read_is_always_an_option(options: list[str], data: st.DataObject) -> None:
    answer = data.draw(st.sampled_from(options) | st.text(max_size=20))
    assert read_choice(answer, options) in (None, *ascii_uppercase[: len(options)])


@given(
    st.lists(st.from_regex(r"[a-z]{3,9} [a-z]{3,9}", fullmatch=True), min_size=2, max_size=8, unique=True), st.data()
)
def test_an_options_own_text_is_never_read_as_another(options: list[str], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(options) - 1))
    assert read_choice(options[index], options) in (ascii_uppercase[index], None)
    assert read_choice(f"{ascii_uppercase[index]}. {options[index]}", options) in (ascii_uppercase[index], None)


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        # numbers
        ("17", "17", True),
        ("17.0", "17", True),
        ("$1,234.50", "1234.5", True),
        ("89706.00", "89706.00", True),
        ("50%", "50", True),
        ("17 eggs", "17", False),
        ("seventeen", "17", False),
        ("", "17", False),
        ("-3", "3", False),
        # texts: white space, case and ASCII punctuation do not count
        ("Sea Gull", "seagull", True),
        ("St. Petersburg", "Saint Petersburg", False),
        ("St Petersburg", "St. Petersburg", True),
        ("the castle", "castle", False),
        ("INT. THE CASTLE – DAY", "int the castle – day", True),
        ("Vienna", "Wien", False),
        ("$17", "17 dollars", False),
        # lists: order and length count, punctuation inside an element does too
        ("b, e", "b,e", True),
        ("B;E", "b, e", True),
        ("e, b", "b, e", False),
        ("b, e, f", "b, e", False),
        ("b", "b, e", False),
        ("3, $4.0", "3, 4", True),
        ("132, 133, 134", "132,133,134", True),
        ("St. John, Rome", "St John, Rome", False),
        # as in the original: a number with a comma is a list of two
        ("1,000", "1,000", True),
        ("1000", "1,000", False),
        # unlike the original, where an answer that is no number counts as infinite
        ("unknown", "inf", False),
        ("Infinity", "infinity", True),
        ("NaN", "nan", True),
    ],
)
def test_gaia(answer: str, reference: str, right: bool) -> None:
    assert gaia_match(answer, reference) is right
