"""Which split an entity and a question belong to: train, dev or test.

The rule. Every entity is anchored, through one reference of its own row, to another entity: a novel to its author,
an author to the birthplace, a city to its country, and so on (`ANCHORS`). The split is drawn from a stable hash of
the end of that chain, mostly a country. So whole neighbourhoods fall on one side: everything that hangs on a test
country is unseen in training. Planets are the only hubs: they have no split of their own.

A question belongs to a split only if all entities whose passages its gold chain reads (those asked about and those
bridged) lie in that split; mixed questions are dropped. Test-only forms are asked of test entities alone. Adding a
row never moves another entity or question, because nothing here counts, sorts or balances.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from local_search.miniwiki.facts import PERSONS, Entity, World

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")

HUBS = frozenset({"planet"})

ANCHORS: dict[str, str] = {
    "city": "country",
    "river": "country",
    "mountain": "country",
    "lake": "country",
    "island": "country",
    **dict.fromkeys(PERSONS, "birthplace"),
    "novel": "author",
    "composition": "composer",
    "painting": "painter",
    "museum": "city",
    "film": "director",
    "element": "discoverer",
    "moon": "discoverer",
    "invention": "inventor",
    "university": "city",
    "landmark": "city",
    "olympics": "city",
}

# Drawn once so that the big countries do not all fall on one side; changing it redraws every split.
SALT = "miniwiki-931"
DEV_SHARE, TEST_SHARE = 0.12, 0.26


def fraction(*parts: str) -> float:
    """A stable pseudo-random number in [0, 1) from some text; the same on every machine and run."""
    digest = hashlib.sha256("\x1f".join(parts).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def pick(count: int, *parts: str) -> int:
    """A stable index below `count` from some text."""
    return int(fraction(*parts) * count)


def root_of(world: World, entity: Entity) -> Entity:
    """The end of the entity's chain of anchors."""
    while True:
        anchor = entity.get(ANCHORS.get(entity.kind, ""))
        if anchor is None:
            return entity
        entity = world.by_title[anchor]


def split_of(world: World, entity: Entity) -> Split | None:
    """The entity's split, or None for a hub."""
    if entity.kind in HUBS:
        return None
    draw = fraction(SALT, root_of(world, entity).title)
    if draw < TEST_SHARE:
        return "test"
    return "dev" if draw < TEST_SHARE + DEV_SHARE else "train"


def common_split(world: World, entities: tuple[Entity, ...]) -> Split | None:
    """The split that all entities share, hubs aside; None if they are mixed or all hubs."""
    found = {split_of(world, entity) for entity in entities} - {None}
    return found.pop() if len(found) == 1 else None
