"""The label-aware duplicate rule: every pair of labels, through a real store, and what counts as the same question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from memory_serve.config import MemoryConfig
from memory_serve.duplicates import decide, same_question
from memory_serve.hashing import HashEncoder
from memory_serve.protocol import Draft
from memory_serve.store import SqliteMemory
from mia.types import Memory, Outcome

QUESTION = "Which river flows through the capital of Austria?"
LONG, SHORT = "1. look up the capital\n2. look up the river", "1. look up"

# first label, second label: what happens to a longer and to a shorter second draft, and the labels afterwards
TABLE: list[tuple[Outcome, Outcome, str, str, list[Outcome]]] = [
    ("correct", "correct", "kept", "replaced", ["correct"]),
    ("correct", "incorrect", "stored", "stored", ["correct", "incorrect"]),
    ("correct", "unjudged", "kept", "kept", ["correct"]),
    ("incorrect", "correct", "stored", "stored", ["correct", "incorrect"]),
    ("incorrect", "incorrect", "replaced", "replaced", ["incorrect"]),
    ("incorrect", "unjudged", "kept", "kept", ["incorrect"]),
    ("unjudged", "correct", "replaced", "replaced", ["correct"]),
    ("unjudged", "incorrect", "replaced", "replaced", ["incorrect"]),
    ("unjudged", "unjudged", "replaced", "replaced", ["unjudged"]),
]


def draft(outcome: Outcome, workflow: str, **fields: str) -> Draft:
    return Draft.model_validate({"question": QUESTION, "outcome": outcome, "workflow": workflow, **fields})


async def both(path: Path, first: Draft, second: Draft, together: bool) -> tuple[str, Memory, Sequence[Memory]]:
    """What became of the second draft, the first memory as it was, and all memories afterwards."""
    store = SqliteMemory(MemoryConfig(path=path), HashEncoder())
    try:
        if together:
            added, after = await store.add([first, second])
        else:
            (added,) = await store.add([first])
        before = await store.get(added.id)
        if not together:
            await store.credit([added.id], success=True)
            (after,) = await store.add([second])
            assert (after.id == added.id) == (after.action != "stored")
        assert before is not None
        return after.action, before, await store.list()
    finally:
        await store.aclose()


@pytest.mark.parametrize(("first", "second", "longer", "shorter", "labels"), TABLE)
async def test_every_pair_of_labels(
    tmp_path: Path, first: Outcome, second: Outcome, longer: str, shorter: str, labels: list[Outcome]
) -> None:
    for number, (old, new, wanted) in enumerate([(SHORT, LONG, longer), (LONG, SHORT, shorter)]):
        older, newer = draft(first, old, source_id="q1"), draft(second, new, source_id="q2")
        action, before, memories = await both(tmp_path / f"{number}.db", older, newer, together=False)
        assert action == wanted
        assert sorted(m.outcome for m in memories) == labels
        (mine,) = [m for m in memories if m.id == before.id]
        # Counters and time of creation stay, whatever the content is now.
        assert (mine.uses, mine.successes, mine.created) == (1, 1, before.created)
        assert mine.workflow == (new if wanted == "replaced" else old)
        assert mine.source_id == ("q2" if wanted == "replaced" else "q1")
        assert all((m.uses, m.successes) == (0, 0) for m in memories if m.id != before.id)


@pytest.mark.parametrize(("first", "second", "longer", "shorter", "labels"), TABLE)
async def test_inside_one_batch_the_rule_is_the_same(
    tmp_path: Path, first: Outcome, second: Outcome, longer: str, shorter: str, labels: list[Outcome]
) -> None:
    for number, (old, new, wanted) in enumerate([(SHORT, LONG, longer), (LONG, SHORT, shorter)]):
        action, _, memories = await both(
            tmp_path / f"{number}.db", draft(first, old), draft(second, new), together=True
        )
        assert action == wanted
        assert sorted(m.outcome for m in memories) == labels


def no(_: str) -> bool:
    return False


def yes(_: str) -> bool:
    return True


@pytest.mark.parametrize("outcome", ["correct", "incorrect", "unjudged"])
def test_what_rests_on_less_replaces_nothing_of_its_own_label(outcome: Outcome) -> None:
    assert decide(outcome, {outcome: "a"}, yes, yes) == ("kept", "a")
    assert decide(outcome, {outcome: "a"}, yes, no) == ("replaced", "a")


def test_of_equal_length_the_first_success_stays() -> None:
    assert decide("correct", {"correct": "a"}, no, no) == ("kept", "a")


def test_a_twin_of_the_same_label_goes_before_an_unjudged_one() -> None:
    assert decide("incorrect", {"incorrect": "a", "unjudged": "b"}, no, no) == ("replaced", "a")
    assert decide("correct", {"incorrect": "a", "unjudged": "b"}, no, no) == ("replaced", "b")


async def count(path: Path, drafts: list[Draft], duplicate: float = 0.9999) -> int:
    store = SqliteMemory(MemoryConfig(path=path, duplicate=duplicate), HashEncoder())
    try:
        for one in drafts:
            await store.add([one])
        return (await store.stats()).memories
    finally:
        await store.aclose()


async def test_a_similar_question_is_no_duplicate(tmp_path: Path) -> None:
    other = Draft(question=QUESTION.replace("Austria", "Hungary"), outcome="correct", workflow=LONG)
    assert await count(tmp_path / "a.db", [draft("correct", LONG), other]) == 2
    assert await count(tmp_path / "b.db", [draft("correct", LONG), other], duplicate=0.8) == 1


async def test_one_question_about_two_pictures_is_two_questions(tmp_path: Path) -> None:
    def about(caption: str, source_id: str) -> Draft:
        return draft("correct", LONG, caption=caption, source_id=source_id, modality="text-image")

    assert await count(tmp_path / "a.db", [about("a red bridge", "q1"), about("an old man", "q2")]) == 2
    assert await count(tmp_path / "b.db", [about("a red bridge", "q1"), about("a red bridge", "q2")]) == 1
    # Without captions nothing tells the pictures apart but the question they belong to.
    assert await count(tmp_path / "c.db", [about("", "q1"), about("", "q2")]) == 2
    assert await count(tmp_path / "d.db", [about("", "q1"), about("", "q1")]) == 1
    assert await count(tmp_path / "e.db", [about("", ""), about("", "")]) == 2
    assert await count(tmp_path / "f.db", [about("a red bridge", "q1"), about("", "q1")]) == 2
    assert await count(tmp_path / "g.db", [draft("correct", LONG), about("", "q1")]) == 2


@pytest.mark.parametrize(
    ("text", "other", "same"),
    [
        ("Who wrote Ulysses?", "who wrote ulysses", True),
        ("Who wrote Ulysses?", "Who painted Guernica?", True),  # legible: what the vectors say is believed
        ("word " * 200 + "Who wrote Ulysses?", "word " * 200 + "Who painted Guernica?", False),
        ("word " * 200 + "Who wrote Ulysses?", "WORD " * 200 + "who wrote Ulysses", True),
        ("🦆🦆", "x" * 1000, False),
        ("🦆🦆", "🦆🦆", True),
        ("維也納 在 哪裡", "巴黎 在 哪裡", False),
        ("Danube?", "Rhine?", False),
    ],
)
def test_equal_vectors_are_believed_only_of_texts_the_encoder_reads_whole(text: str, other: str, same: bool) -> None:
    assert same_question(text, other) is same
    assert same_question(other, text) is same
