"""The forms of question, as data: where a chain starts, which columns it follows, how often it is asked.

A bridge form starts at a record and follows references; the last column gives the answer. Its id is its path
("novel-author-birthplace"), so a reader sees what it asks. A comparison form looks up a value on two sides and
compares the two. The wordings stand in `tables/wordings.csv`, the search strings in `tables/queries.csv`.
Left out: forms whose answer would have to be calculated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from local_search.miniwiki.facts import PERSONS

Compare = Literal["earlier", "later", "larger", "same", "before"]


@dataclass(frozen=True)
class Bridge:
    """A chain from a record of one of `starts` along `path`; `by` names the record by another column's value.

    `keep` is the share of the possible questions that is asked, drawn by a stable hash; `unseen` forms are test-only.
    """

    id: str
    starts: tuple[str, ...]
    path: tuple[str, ...]
    unseen: bool = False
    keep: float = 1.0
    by: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Two chains, one value each, and the relation asked about.

    earlier, later and larger answer with the name of a side, same and before with yes or no ("before" asks
    whether the left value is the smaller number). `keep` and `keep_yes` are the shares of unequal (or no) and of
    equal (or yes) pairs that are asked.
    """

    id: str
    left: tuple[str, ...]
    left_path: tuple[str, ...]
    right: tuple[str, ...]
    right_path: tuple[str, ...]
    compare: Compare
    unseen: bool = False
    keep: float = 1.0
    keep_yes: float = 1.0


def _bridges(unseen: bool, *specs: str) -> tuple[Bridge, ...]:
    """Reads "novel-author-born 0.5" or, by a column, "novel(character)-author-birthplace"; person = all persons."""
    forms = []
    for spec in specs:
        id_, _, keep = spec.partition(" ")
        head, *path = id_.split("-")
        kind, _, by = head.rstrip(")").partition("(")
        starts = PERSONS if kind == "person" else (kind,)
        forms.append(Bridge(id_, starts, tuple(path), unseen, float(keep or 1), by or None))
    return tuple(forms)


def _pair(
    kinds: tuple[str, ...], column: str, compare: Compare, keep: float, keep_yes: float = 1.0, unseen: bool = False
) -> Comparison:
    """A comparison of one column between two records of the same kind."""
    name = "person" if kinds == PERSONS else kinds[0]
    return Comparison(f"{name}-{column}-{compare}", kinds, (column,), kinds, (column,), compare, unseen, keep, keep_yes)


BRIDGES: tuple[Bridge, ...] = (
    *_bridges(
        False,
        "country-capital-river",
        "novel-author-birthplace",
        "novel-author-born",
        "novel(character)-author-birthplace",
        "film-director-birthplace",
        "composition-composer-birthplace",
        "composition-composer-born",
        "painting-painter-birthplace",
        "painting-museum-city",
        "person-birthplace-country 0.5",
        "element-discoverer-birthplace",
        "element(number)-discoverer-birthplace",
        "element-discoverer-born",
        "moon-discoverer-birthplace",
        "moon-discoverer-born",
        "invention-inventor-birthplace",
        "university-city-country",
        "landmark-city-country",
        "landmark-city-river",
        "olympics-city-country",
        "mountain-country-capital",
        "mountain-country-currency",
        "lake-country-capital",
        "island-country-capital",
        "city-country-capital 0.5",
        "city-country-currency 0.4",
        "city-river-mouth",
        "city(landmark)-river-mouth",
        "city(landmark)-country-currency 0.6",
        "river-country-capital",
        "museum-city-country",
        "novel-author-birthplace-country",
        "film-director-birthplace-country",
        "composition-composer-birthplace-country",
        "element-discoverer-birthplace-country",
        "painting-museum-city-country",
        "country-capital-river-mouth",
        "person-birthplace-country-capital 0.4",
        "olympics-city-country-currency",
        "novel-author-birthplace-river",
    ),
    *_bridges(
        True,
        "novel-author-died",
        "novel-author-nobel",
        "novel(character)-author-born",
        "film-director-born",
        "city(landmark)-country-capital",
        "composition-premiere-river",
        "composition-premiere-country",
        "composition-composer-died",
        "painting-painter-died",
        "person-birthplace-river",
        "invention-inventor-born",
        "invention-inventor-died",
        "university-city-river",
        "city-country-language 0.5",
        "city-country-calling_code 0.3",
        "river-country-currency",
        "lake-outflow-mouth",
        "landmark-architect-birthplace",
        "film-director-birthplace-river",
        "painting-painter-birthplace-country",
        "painting-museum-city-river",
        "mountain-country-capital-river",
        "composition-premiere-country-currency",
        "university-city-country-capital",
        "invention-inventor-birthplace-country",
        "person-birthplace-country-currency 0.3",
    ),
)

COMPARISONS: tuple[Comparison, ...] = (
    _pair(PERSONS, "born", "earlier", 0.003),
    _pair(("novel",), "year", "earlier", 0.012),
    _pair(("film",), "year", "earlier", 0.02),
    _pair(("film",), "year", "later", 0.02),
    _pair(("university",), "founded", "earlier", 0.08),
    _pair(("element",), "number", "larger", 0.05),
    _pair(("landmark",), "opened", "earlier", 0.08),
    _pair(("city",), "country", "same", 0.001, 0.012),
    _pair(("novel",), "author", "same", 0.002, 1.0),
    _pair(("film",), "director", "same", 0.004, 1.0),
    _pair(("river",), "mouth", "same", 0.008, 1.0),
    _pair(("country",), "currency", "same", 0.015, 0.7),
    _pair(("novel",), "language", "same", 0.004, 0.01),
    Comparison("born-before-died", PERSONS, ("died",), PERSONS, ("born",), "before", False, 0.001, 0.002),
    Comparison(
        "novel-author-born-earlier", ("novel",), ("author", "born"), ("writer",), ("born",), "earlier", False, 0.006
    ),
    _pair(PERSONS, "died", "later", 0.003, unseen=True),
    _pair(("composition",), "year", "earlier", 0.02, unseen=True),
    _pair(("mountain",), "first_ascent", "earlier", 0.5, unseen=True),
    _pair(("element",), "year", "later", 0.5, unseen=True),
    _pair(("painting",), "museum", "same", 0.02, 1.0, unseen=True),
    _pair(("composition",), "composer", "same", 0.008, 0.25, unseen=True),
    _pair(("country",), "continent", "same", 0.02, 0.04, unseen=True),
    Comparison(
        "film-director-born-earlier", ("film",), ("director", "born"), ("director",), ("born",), "earlier", True, 0.015
    ),
)

# Pairs grow with the square of a split's size; the smaller splits keep a larger share of theirs.
PAIR_BOOST = {"train": 1.0, "dev": 4.0, "test": 2.0}
