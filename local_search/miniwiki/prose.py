"""Passages: one short text per record, made from the sentences in `tables/sentences.csv`.

Which of several wordings a passage uses follows from a hash of its title, so texts vary and never change between
runs. Lists such as "people born in Ulm" are read backwards from the references of other tables.
Left out: grammar beyond articles. Sentences are written so that no pronoun or ending depends on the record.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local_search.miniwiki.facts import PERSONS, SCHEMA, TABLES, Entity, FactError, World, read_rows
from local_search.miniwiki.splits import pick

SLOT = re.compile(r"\{(\w+)\}")
NOUNS = {table.kind: table.noun for table in SCHEMA}

# slot of a kind: the (kind, column) pairs that point back at it, and how many names to list at most
LISTS: dict[tuple[str, str], tuple[tuple[tuple[str, str], ...], int]] = {
    ("city", "capital_of"): ((("country", "capital"),), 1),
    ("city", "natives"): (tuple((person, "birthplace") for person in PERSONS), 3),
    ("river", "cities"): ((("city", "river"),), 3),
    ("scientist", "finds"): ((("element", "discoverer"), ("moon", "discoverer"), ("invention", "inventor")), 3),
    ("writer", "works"): ((("novel", "author"),), 3),
    ("composer", "works"): ((("composition", "composer"),), 3),
    ("painter", "works"): ((("painting", "painter"),), 3),
    ("director", "works"): ((("film", "director"),), 3),
    ("architect", "works"): ((("landmark", "architect"),), 3),
    ("museum", "works"): ((("painting", "museum"),), 3),
    ("planet", "moons"): ((("moon", "planet"),), 3),
}


@dataclass(frozen=True)
class Passage:
    """One passage: a stable id, the title and the body."""

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title in quotes, a line break, the body: the form in which Search-R1 corpora store a passage."""
        return f'"{self.title}"\n{self.text}'


def slug(text: str) -> str:
    """Lower-case ASCII letters and digits joined by hyphens ("Kraków" gives "krakow")."""
    plain = unicodedata.normalize("NFKD", text.replace("ł", "l").replace("Ł", "L").replace("đ", "d").replace("ø", "o"))
    plain = plain.encode("ascii", "ignore").decode("ascii").lower()
    return "-".join(re.findall(r"[a-z0-9]+", plain))


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def slots(world: World, entity: Entity) -> dict[str, str]:
    """Everything a sentence or question may say about a record, by slot name."""
    noun = entity.get("field") or entity.get("form") or NOUNS[entity.kind]
    filled = {"name": entity.title, "the_name": entity.the, "noun": noun}
    for column, value in entity.cells.items():
        filled[column] = value
        filled[f"the_{column}"] = entity.prose[column]
    if "born" in filled:
        filled["birth"] = f"on {filled['birthdate']}" if "birthdate" in filled else f"in {filled['born']}"
    for (kind, slot), (sources, most) in LISTS.items():
        if kind == entity.kind:
            found = [f for source, column in sources for f in world.referrers(source, column, entity.title)][:most]
            if found:
                filled[slot] = _listed([f.title for f in found])
                filled[f"the_{slot}"] = _listed([f.the for f in found])
    return filled


def read_sentences(folder: Path = TABLES) -> dict[str, dict[str, list[str]]]:
    """The wordings by kind and group, in file order; an unknown kind raises `FactError`."""
    sentences: dict[str, dict[str, list[str]]] = {}
    for line, (kind, group, wording) in read_rows(folder / "sentences.csv", ("kind", "group", "wording")):
        if kind not in NOUNS:
            raise FactError("sentences.csv", line, "kind", f"no table lists the kind {kind!r}")
        sentences.setdefault(kind, {}).setdefault(group, []).append(wording)
    return sentences


def substitute(wording: str, filled: Mapping[str, str]) -> str:
    """Puts the slots into a wording, nothing else."""
    return SLOT.sub(lambda match: filled[match.group(1)], wording)


def fill(wording: str, filled: Mapping[str, str]) -> str:
    """Puts the slots into a wording and mends articles and the first letter."""
    text = substitute(wording, filled)
    text = re.sub(r"\b([Aa]) (?=[aeioAEIO])", r"\1n ", text)
    return text[0].upper() + text[1:]


def choose(wordings: list[str], filled: Mapping[str, str], *key: str) -> str | None:
    """Among the wordings whose slots are all filled and most in number, the one the hash of `key` picks."""
    needs = {wording: set(SLOT.findall(wording)) for wording in wordings}
    usable = [wording for wording in wordings if needs[wording] <= filled.keys()]
    if not usable:
        return None
    most = max(len(needs[wording]) for wording in usable)
    best = [wording for wording in usable if len(needs[wording]) == most]
    return best[pick(len(best), *key)]


def build_passages(world: World, folder: Path = TABLES) -> tuple[Passage, ...]:
    """One passage per record, in table order."""
    sentences = read_sentences(folder)
    built: dict[str, Passage] = {}
    for entity in world.entities:
        filled = slots(world, entity)
        chosen = [
            choose(wordings, filled, "sentence", entity.title, group)
            for group, wordings in sentences[entity.kind].items()
        ]
        text = " ".join(fill(wording, filled) for wording in chosen if wording)
        passage = Passage(f"mw-{slug(entity.title)}", entity.title, text)
        twin = built.setdefault(passage.id, passage)
        if twin is not passage:
            problem = f"{entity.title!r} and {twin.title!r} share the id {passage.id}; rename one"
            raise FactError(entity.file, entity.line, "name", problem)
    return tuple(built.values())
