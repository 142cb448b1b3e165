"""The Manager of rules that benchmarks use: it answers every prompt of every method and of the panel readably."""

from __future__ import annotations

import json

import pytest

from inference.config import PanelConfig
from inference.methods.expel import Operations
from inference.panel import judge_by_panel
from inference.verdicts import read_form
from mia.prompts import prompt
from scripts.bench.scripted_manager import answer
from tests.methods import finished, manager


def reply(name: str, **values: str) -> str:
    return answer([{"role": "user", "content": prompt(name).render(**values)}])


def test_rules_are_added_and_then_voted_for() -> None:
    def asked(rules: str) -> Operations:
        text = reply("expel/update", trials="Successful trial", rules=rules, most="4", hint="")
        return read_form(text, Operations)

    first = asked("(none yet)").operations
    assert [(op.operation, op.rule) for op in first] == [("ADD", None)]
    full = "\n".join(f"{n}. Rule." for n in range(1, 5))
    (vote,) = asked(full).operations
    assert vote.operation == "AGREE"
    assert vote.rule in (1, 2, 3, 4)


def test_facts_are_sentences_of_results() -> None:
    messages = "user: Which river?\nuser: Result: Vienna: Vienna lies on the Danube river. x"
    told = f"## Existing Memories\n[]\n\n## New Messages\n{messages}\n\n\n## Observation Date\n2026"
    made = json.loads(answer([{"role": "system", "content": "x"}, {"role": "user", "content": told}]))
    assert [fact["text"] for fact in made["memory"]] == ["Vienna: Vienna lies on the Danube river."]


@pytest.mark.parametrize(("given", "correct"), [("Vienna", True), ("Rhine", False)])
async def test_the_panel_accepts_what_was_found(given: str, correct: bool) -> None:
    verdict = await judge_by_panel(PanelConfig(), finished("1", "Which city?", answer=given), manager())
    assert verdict.correct is correct


def test_unknown_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="no rule"):
        answer([{"role": "user", "content": "Tell me a joke"}])
