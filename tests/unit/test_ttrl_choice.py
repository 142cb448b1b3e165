"""The rules that choose the official answer, what the router is shown, and what memory learns of a question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference.runs import Run
from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from memory_serve.protocol import Draft, PlanPair
from memory_serve.store import SqliteMemory
from mia.chat.scripted import ScriptedChat
from mia.config import load
from mia.errors import ConfigError, ModelError
from mia.types import Failure, Judgement, Memory, Plan, Question, Recalled, Reply, ScoredMemory, Step
from ttrl.choice import Candidate, candidates, choose, router_prompt
from ttrl.config import ChoiceRule, TtrlConfig, settled
from ttrl.consolidate import lessons
from ttrl.records import Asked, Rolled, Verdict

ASKED = Question(id="q", text="Which river flows through Vienna?")
DOWN = Failure(boundary="tool", code="down", message="down")


def made(*given: tuple[str, str | None] | None) -> dict[int, Candidate]:
    return {place: Candidate(*each) for place, each in enumerate(given) if each is not None}


@pytest.mark.parametrize(
    ("rule", "found", "place"),
    [
        ("first", made(("1. a b c", "x"), ("1. a", "y")), 0),
        ("first", made(None, ("1. a", "y"), ("1. b", "x")), 1),  # the first that did not fail
        ("shortest", made(("1. a\n2. b", "x"), ("1. a b c d", "y"), ("1. a b", "z")), 2),
        ("shortest", made(("1. a b", "x"), ("1. c d", "y")), 0),
        ("shortest", made(("", "x"), ("1. a\n2. b\n3. c", "y")), 1),  # no plan is no short plan
        ("shortest", made(("look at the year 1. then", "x"), ("1. a\n2. b", "y")), 0),  # not at the start: no step
        ("majority", made(("a", "The Danube"), ("a", "Rhine"), ("a", "danube."), ("a", "rhine"), ("a", "danube")), 0),
        ("majority", made(("a", "Po"), ("a", "Rhine"), ("a", "rhine")), 1),
        ("majority", made(("a", None), ("a", None), ("a", "Po")), 2),
        ("majority", made(("a", None), ("a", None)), 0),
    ],
)
async def test_rules(rule: ChoiceRule, found: dict[int, Candidate], place: int) -> None:
    assert await choose(rule, ASKED, found) == (place, None)


@pytest.mark.parametrize("rule", ["first", "shortest", "majority", "router"])
async def test_nothing_can_be_chosen_where_all_failed(rule: ChoiceRule) -> None:
    assert await choose(rule, ASKED, candidates([Rolled(failure=DOWN)] * 3)) == (None, None)


def test_candidates_hold_no_outcome() -> None:
    """A verdict on a run does not reach the rules, even if the run had one."""
    run = Run(id="r", question=ASKED, answer="Danube", stop_reason="answered",
              judgement=Judgement(correct=True, method="em"), plans=(Plan(text="1. a", prompt_hash=""),))  # fmt: skip
    found = candidates([Rolled(failure=DOWN), Rolled(run=run)])
    assert found == {1: Candidate(plan="1. a", answer="Danube")}
    assert set(Candidate.__slots__) == {"plan", "answer"}


FOUND = made(("1. a", "x"), None, ("1. b", "y"), ("1. c", "z"))


@pytest.mark.parametrize(
    ("replies", "place"),
    [(["2"], 2), (["<think>1? 3?</think> Plan 3."], 3), (["plan 1"], 0), (["4", "0", "3"], 3), (["two", "2", "1"], 2)],
)
async def test_the_router_picks_by_number_among_those_that_did_not_fail(replies: list[str], place: int) -> None:
    assert await choose("router", ASKED, FOUND, (), ScriptedChat(replies)) == (place, None)


@pytest.mark.parametrize("replies", [["a", "b", "c"], ["12", "2 or 3", "none"], [ModelError("down", retryable=True)]])
async def test_a_router_that_cannot_choose_is_recorded(replies: list[Any]) -> None:
    place, why = await choose("router", ASKED, FOUND, (), ScriptedChat(replies))
    assert place == 0
    assert why is not None
    assert why.code == "router"


async def test_no_router_is_an_error() -> None:
    with pytest.raises(ConfigError, match="router model"):
        await choose("router", ASKED, FOUND)


def draft(town: str, outcome: Any, plan: str) -> Draft:
    return Draft(
        question=f"Which river flows through {town}?", workflow=f"1. Look for {town}, {outcome}.", plan=plan,
        outcome=outcome, source_id=town, trajectory_id=f"{town}{outcome}", trust="reference",
    )  # fmt: skip


async def test_the_router_sees_pairs_of_other_questions_the_most_similar_first(tmp_path: Path) -> None:
    """They are sorted by similarity, not by when they were stored; the question's own pair is left out."""
    store = SqliteMemory(MemoryConfig(path=tmp_path / "memory.db"), HashEncoder())
    towns = ["Vienna in the north", "Rome", "Vienna", "old Paris by the sea", "Vienna in the south of Austria"]
    try:
        for town in towns:
            await store.add([draft(town, "correct", f"good {town}"), draft(town, "incorrect", f"bad {town}")])
        await store.add([draft("Vienna today", "correct", "alone")])
        pairs = await store.pairs(Question(id="Vienna", text="Which river flows through Vienna?"), 3)
    finally:
        await store.aclose()
    similar = [pair.similarity for pair in pairs]
    assert similar == sorted(similar, reverse=True)
    assert len(pairs) == 3
    assert pairs[0].question == "Which river flows through Vienna in the north?"
    router = ScriptedChat(["1"])
    await choose("router", ASKED, FOUND, pairs, router)
    text = router.history[0][0].text
    places = [text.index(f"good {pair.question[26:-1]}\n") for pair in pairs]
    assert places == sorted(places)
    assert "good Vienna\n" not in text
    assert "alone" not in text


def test_plans_cannot_forge_the_routers_prompt() -> None:
    text = router_prompt(ASKED, ["1. a <|im_end|>", ""], [PlanPair(question="</answer>", correct="x", incorrect="y",
                                                                  similarity=1.0)])  # fmt: skip
    assert "<|im_end|>" not in text
    assert "</answer>" not in text
    assert "Plan 2:\n(no plan)" in text


# ---------------------------------------------------------------------------------------------- memory


MEMORY = Memory(id="m", question="x?", workflow="1. x.", outcome="correct")
SHOWN = Recalled(successes=(ScoredMemory(memory=MEMORY, score=1.0, similarity=1.0),))


def rolled(name: str, turns: int) -> Rolled:
    steps = tuple(Step(role="executor", purpose="act", told=(), reply=Reply(text="x")) for _ in range(turns))
    return Rolled(run=Run(id=name, question=ASKED, steps=steps, recalled=SHOWN, answer="x", stop_reason="answered"))


def verdict(correct: bool | None) -> Verdict:
    return Verdict() if correct is None else Verdict(judgement=Judgement(correct=correct, method="em"))


def learned(outcomes: list[bool | None], turns: list[int]) -> list[tuple[str, bool | None, int]]:
    """Which run is stored, with which outcome, and how many memories it credits."""
    asked = Asked(id="q", rolled=tuple(rolled(f"r{n}", turn) for n, turn in enumerate(turns)), chosen=1)
    found = lessons(asked, [verdict(outcome) for outcome in outcomes], "truth")
    return [(run.id, judgement.correct, len(run.recalled_ids)) for run, judgement in found]


def test_the_shortest_right_run_and_one_wrong_run_are_kept_and_the_majority_credits() -> None:
    assert learned([True, True, True, False], [3, 2, 2, 1]) == [("r1", True, 1), ("r3", False, 0)]
    assert learned([True, False, False, None], [1, 1, 1, 1])[0][1:] == (False, 1)
    assert learned([True, False], [1, 1]) == [("r1", False, 1), ("r0", True, 0)]  # a draw is no success
    assert learned([False, False], [1, 1])[0][1:] == (False, 1)
    assert learned([None, None], [1, 1]) == [("r1", None, 1)]
    assert learned([True, None], [1, 1]) == [("r0", True, 1)]


def test_the_wrong_run_is_drawn_and_drawn_again_alike() -> None:
    drawn = {learned([False] * n, [1] * n)[0][0] for n in range(1, 9)}
    assert len(drawn) > 1
    assert learned([False] * 5, [1] * 5) == learned([False] * 5, [1] * 5)


def test_what_failed_teaches_nothing() -> None:
    asked = Asked(id="q", rolled=(Rolled(failure=DOWN), Rolled(failure=DOWN)))
    assert lessons(asked, [Verdict(), Verdict()], "truth") == []


# ---------------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"eval.memory": "read-only"}, r"set learn\.memory"),
        ({"eval.repeats": 2}, r"set learn\.epochs"),
        ({"memory.enabled": False}, r"set learn\.memory"),
        ({"memory.url": "http://127.0.0.1:5000"}, r"memory\.path"),
        ({"method.name": "react"}, r"learn\.memory"),
        ({"grpo.num_generations": 8}, r"learn\.n"),
        ({"grpo.gradient_accumulation_steps": 8}, r"eval\.batch"),
        ({"rollout.rows": 8}, r"eval\.limit"),
        ({"learn.n": 1}, "n to 2 or more"),
        ({"learn.feedback": "none"}, "cannot learn from nothing"),
        ({"learn.polcy": "first"}, "policy"),
        ({"learn.memory": "frozen"}, r"memory\.path"),
    ],
)
def test_what_would_be_set_twice_is_refused(flags: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        settled(load(TtrlConfig, None, flags))
    assert raised.value.code == "bad_config"


@pytest.mark.parametrize(
    ("flags", "arm"),
    [
        ({}, "full"),
        ({"learn.feedback": "panel"}, "full, panel"),
        ({"learn.memory": "off"}, "weights only"),
        ({"learn.weights": False}, "memory only"),
        ({"learn.weights": False, "learn.memory": "frozen", "memory.path": "m.db"}, "best of 4"),
        ({"learn.weights": False, "learn.memory": "off", "learn.policy": "router"}, "best of 4, router"),
        ({"learn.weights": False, "learn.memory": "off", "learn.n": 1}, "frozen"),
    ],
)
def test_arms_have_names(flags: dict[str, Any], arm: str) -> None:
    config = settled(load(TtrlConfig, None, flags))
    assert config.learn.arm == arm
    assert config.learns == (config.learn.memory == "online")
    assert config.memory.enabled == (config.learn.memory != "off")
    assert config.policy.lora_rank > 0
