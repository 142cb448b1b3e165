"""Questions with one answer each, their gold passages and their gold chain of searches, drawn from the tables.

Bridge questions follow references from the record asked about to a value; comparison questions look up a value on
each of two sides. A question is kept when every step's passage states its finding, when no record occurs twice in
its chain, and when its answer does not stand in the question already (comparisons aside).
Left out: calculated answers, and questions that read passages of more than one split.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from local_search.miniwiki.facts import TABLES, Entity, FactError, World, read_rows
from local_search.miniwiki.forms import BRIDGES, COMPARISONS, PAIR_BOOST, Bridge, Comparison
from local_search.miniwiki.prose import Passage, choose, fill, slots, slug, substitute
from local_search.miniwiki.splits import SPLITS, Split, common_split, fraction


@dataclass(frozen=True)
class Step:
    """One search of the gold chain: what to look for, the passage it should find, the span to carry on."""

    query: str
    title: str
    finding: str


@dataclass(frozen=True)
class Question:
    """One question in HotpotQA form; `answers` holds all accepted spellings, the answer first."""

    id: str
    question: str
    answer: str
    answers: tuple[str, ...]
    type: str
    hops: int
    form: str
    split: Split
    supporting_titles: tuple[str, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Wording:
    """One wording of a form; `test_only` wordings are never used in train or dev."""

    text: str
    test_only: bool


@dataclass(frozen=True)
class Book:
    """What a build needs: the records, their passages, the wordings and the search strings."""

    world: World
    passages: dict[str, Passage]
    wordings: dict[str, list[Wording]]
    queries: dict[tuple[str, str], str]


def open_book(world: World, passages: tuple[Passage, ...], folder: Path = TABLES) -> Book:
    """Reads wordings and search strings; a form without wording raises `FactError`."""
    wordings: dict[str, list[Wording]] = {bridge.id: [] for bridge in BRIDGES}
    wordings |= {comparison.id: [] for comparison in COMPARISONS}
    line = 0
    for line, (form, split, text) in read_rows(folder / "wordings.csv", ("form", "split", "wording")):
        if form not in wordings:
            raise FactError("wordings.csv", line, "form", f"no form has the id {form!r}")
        if split not in ("any", "test"):
            raise FactError("wordings.csv", line, "split", f"{split!r} is neither any nor test")
        wordings[form].append(Wording(text, split == "test"))
    for form, known in wordings.items():
        if all(wording.test_only for wording in known):
            raise FactError("wordings.csv", line, "form", f"the form {form!r} has no wording for every split")
    rows = read_rows(folder / "queries.csv", ("kind", "column", "query"))
    queries = {(kind, column): query for _, (kind, column, query) in rows}
    return Book(world, {passage.title: passage for passage in passages}, wordings, queries)


def spellings(world: World, answer: str) -> tuple[str, ...]:
    """The accepted forms of an answer: itself, its listed aliases, and each of them without diacritics."""
    found = [answer, *world.aliases.get(answer, ())]
    plain = [unicodedata.normalize("NFKD", form).encode("ascii", "ignore").decode("ascii") for form in found]
    kept = [form for form, original in zip(plain, found, strict=True) if len(form) == len(original)]
    return tuple(dict.fromkeys([*found, *kept]))


def _follow(book: Book, start: Entity, path: tuple[str, ...], by: str | None = None) -> tuple[Step, ...] | None:
    """The chain of searches along a path; None where a cell is empty, unstated, or a record comes up twice."""
    steps: list[Step] = []
    here = start
    for place, column in enumerate(path):
        value = here.get(column)
        if value is None or value not in book.passages[here.title].text:
            return None
        if place == 0 and by is not None:
            query = substitute(book.queries[here.kind, f"by {by}"], {"value": here.cells[by]})
        else:
            query = substitute(book.queries[here.kind, column], {"name": here.title})
        steps.append(Step(query, here.title, value))
        if place < len(path) - 1:
            here = book.world.by_title[value]
    titles = [step.title for step in steps]
    if len(set(titles)) < len(titles) or steps[-1].finding in titles:
        return None
    return tuple(steps)


def _split(book: Book, steps: tuple[Step, ...], unseen: bool) -> Split | None:
    """The split of a chain; None if its passages are of several splits, or the form is test-only and they are not."""
    split = common_split(book.world, tuple(book.world.by_title[step.title] for step in steps))
    return None if unseen and split != "test" else split


def _worded(book: Book, form: str, split: Split, filled: dict[str, str], key: str) -> str:
    texts = [wording.text for wording in book.wordings[form] if split == "test" or not wording.test_only]
    text = choose(texts, filled, "question", form, key)
    if text is None:
        raise FactError("wordings.csv", 0, "wording", f"no wording of {form!r} fits {key!r}")
    return fill(text, filled)


def _named_once(book: Book, kind: str, column: str) -> set[str]:
    """The values of a column that one record alone has."""
    values = [value for entity in book.world.kind(kind) if (value := entity.get(column)) is not None]
    return {value for value in values if values.count(value) == 1}


def _bridge_questions(book: Book, form: Bridge) -> Iterator[Question]:
    for kind in form.starts:
        usable = _named_once(book, kind, form.by) if form.by else set()
        for start in book.world.kind(kind):
            value = start.get(form.by) if form.by else None
            if (form.by and value not in usable) or fraction("keep", form.id, start.title) >= form.keep:
                continue
            steps = _follow(book, start, form.path, form.by)
            split = _split(book, steps, form.unseen) if steps else None
            if steps is None or split is None:
                continue
            filled = slots(book.world, start) | ({"value": value} if value else {})
            text = _worded(book, form.id, split, filled, start.title)
            answer = steps[-1].finding
            if answer.lower() in text.lower():
                continue
            yield Question(
                id=f"mw-{slug(form.id)}--{slug(start.title)}",
                question=text,
                answer=answer,
                answers=spellings(book.world, answer),
                type="bridge",
                hops=len(steps),
                form=form.id,
                split=split,
                supporting_titles=tuple(step.title for step in steps),
                steps=steps,
            )


@dataclass(frozen=True)
class _Side:
    """One side of a possible comparison: its chain, the value at the end, and a stable draw for pairing."""

    start: Entity
    steps: tuple[Step, ...]
    value: str
    name: str
    draw: int


def _sides(book: Book, form: Comparison, kinds: tuple[str, ...], path: tuple[str, ...], split: Split) -> list[_Side]:
    """All records that can stand on one side of a comparison within a split."""
    sides = []
    for kind in kinds:
        for start in book.world.kind(kind):
            steps = _follow(book, start, path)
            if steps is None or _split(book, steps, form.unseen) != split:
                continue
            name = steps[-1].title
            sides.append(_Side(start, steps, steps[-1].finding, name, int(fraction(form.id, start.title) * 2**53)))
    return sides


def _drawn_pairs(lefts: list[_Side], rights: list[_Side], keep: float) -> Iterator[tuple[_Side, _Side]]:
    """About a share `keep` of all pairs; whether one is drawn depends on its two draws alone, so pairs never move."""
    modulus = max(1, round(1 / keep))
    buckets: dict[int, list[_Side]] = {}
    for right in rights:
        buckets.setdefault(right.draw % modulus, []).append(right)
    for left in lefts:
        for right in buckets.get(-left.draw % modulus, ()):
            if left.start.title != right.start.title and left.name != right.name:
                yield left, right


def _verdict(form: Comparison, left: _Side, right: _Side) -> str | None:
    """The answer of a comparison, or None for a tie."""
    if form.compare == "same":
        return "yes" if left.value == right.value else "no"
    if left.value == right.value:
        return None
    left_first = int(left.value) < int(right.value)
    if form.compare == "before":
        return "yes" if left_first else "no"
    return left.name if left_first == (form.compare == "earlier") else right.name


def _candidates(
    form: Comparison, split: Split, lefts: list[_Side], rights: list[_Side]
) -> Iterator[tuple[_Side, _Side]]:
    """The pairs that are asked: one share of those answered yes, another of all others, each pair once."""
    boost = PAIR_BOOST[split]
    mirrored = form.left == form.right and form.left_path == form.right_path
    shares = ((form.keep, False), (form.keep_yes, True)) if form.compare in ("same", "before") else ((form.keep, None),)
    for keep, yes in shares:
        for left, right in _drawn_pairs(lefts, rights, min(1.0, keep * boost)):
            if mirrored and (left.draw, left.name) > (right.draw, right.name):
                continue
            if yes is None or (_verdict(form, left, right) == "yes") is yes:
                yield left, right


def _comparison_questions(book: Book, form: Comparison, split: Split) -> Iterator[Question]:
    lefts = _sides(book, form, form.left, form.left_path, split)
    rights = _sides(book, form, form.right, form.right_path, split)
    for left, right in _candidates(form, split, lefts, rights):
        answer = _verdict(form, left, right)
        steps = left.steps + right.steps
        titles = tuple(step.title for step in steps)
        if answer is None or len(set(titles)) < len(titles):
            continue
        key = f"{left.start.title}|{right.start.title}"
        filled = {
            "a": left.start.title,
            "the_a": left.start.the,
            "b": right.start.title,
            "the_b": right.start.the,
        }
        yield Question(
            id=f"mw-{slug(form.id)}--{slug(left.start.title)}--{slug(right.start.title)}",
            question=_worded(book, form.id, split, filled, key),
            answer=answer,
            answers=(answer,) if answer in ("yes", "no") else spellings(book.world, answer),
            type="comparison",
            hops=len(steps),
            form=form.id,
            split=split,
            supporting_titles=titles,
            steps=steps,
        )


def build_questions(book: Book) -> tuple[Question, ...]:
    """All questions of all splits, in the order of forms and tables."""
    built: list[Question] = []
    for bridge in BRIDGES:
        built.extend(_bridge_questions(book, bridge))
    for comparison in COMPARISONS:
        for split in SPLITS:
            built.extend(_comparison_questions(book, comparison, split))
    return tuple(built)
