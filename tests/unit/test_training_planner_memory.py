"""What memory has to say to the Planner's rows: read before, once for each of its two plans, never the row's own."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from executor_train.game import Row
from inference.config import AgentConfig
from inference.tools import SearchTool, ToolBox
from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.store import SqliteMemory
from mia.chat.scripted import ScriptedChat
from mia.examples import Example, Reference
from mia.types import Memory, Question, Recalled, ScoredMemory
from planner_train.game import PlannerGame
from planner_train.rows import recalled_rows
from tests.doubles import FixedSearch
from tests.memories import drafts

EXAMPLE = Example(
    question=Question(id="1", text="Which river flows through the capital of Austria?"),
    reference=Reference(answers=("Danube",)),
)


def memory(name: str) -> Recalled:
    made = Memory(id=name, question=f"Which river flows through {name}?", workflow=f"1. {name}.", outcome="correct")
    return Recalled(successes=(ScoredMemory(memory=made, score=1.0, similarity=1.0),))


def test_each_plan_is_shown_its_own_memories_as_in_serving() -> None:
    planner = ScriptedChat(["1. Search.", "yes, look again.", "1. Search again."])
    executor = ScriptedChat(["<answer>Rhine</answer>", "<answer>Danube</answer>"])
    game = PlannerGame(ToolBox([SearchTool(FixedSearch(), 3)]), AgentConfig(), {"executor": executor})
    row = Row(example=EXAMPLE, recalled=memory("Rome"), recalled_again=memory("Paris"))
    outcome = asyncio.run(game.play(row, planner, training=True))
    planned = [message.text for message in outcome.run.conversation("planner") if message.role == "user"]
    assert [re.findall(r"1\. (Rome|Paris)\.", text) for text in planned] == [["Rome"], [], ["Paris"]]
    assert [plan.memory_ids for plan in outcome.run.plans] == [("Rome",), ("Paris",)]
    assert (outcome.run.recalled, outcome.run.recalled_again) == (row.recalled, row.recalled_again)
    assert outcome.run.degraded == ()


async def test_rows_bring_two_pages_and_nothing_of_their_own(tmp_path: Path) -> None:
    """Memories stem from questions q0 to q11, the outcomes take turns; the row is one of these questions."""
    store = SqliteMemory(MemoryConfig(path=tmp_path / "memory.db"), HashEncoder())
    try:
        await store.add(drafts(12))
        question = Question(id="q3", text="Which river flows through town3 of region3?")
        row = Row(example=Example(question=question, reference=Reference(answers=("x",))))
        made, plain = await recalled_rows([row, Row(example=EXAMPLE)], store, 2)
    finally:
        await store.aclose()
    first, second = set(made.recalled.ids), set(made.recalled_again.ids)
    assert len(first) == 6  # two of each outcome
    assert len(second) == 5  # of three further successes one is its own, two are left; one page of the rest
    assert not first & second
    shown = (*made.recalled.successes, *made.recalled_again.successes)
    assert "Which river flows through town3 of region3?" not in {scored.memory.question for scored in shown}
    assert len(plain.recalled.ids) == 6
    assert made.example == row.example


@pytest.mark.parametrize("name", ["recalled", "recalled_again"])
def test_a_row_survives_its_json(name: str) -> None:
    row = Row(example=EXAMPLE).model_copy(update={name: memory("Rome")})
    assert Row.model_validate_json(row.model_dump_json()) == row
