"""The Planner's game: its reward, its second round, what drops a rollout, and that samples of a question do not mix."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from executor_train.game import Outcome, Row
from inference.config import AgentConfig
from inference.tools import SearchTool, ToolBox
from mia.chat.scripted import ScriptedChat
from mia.errors import ConfigError, ModelError
from mia.examples import Example, Reference
from mia.types import Memory, Message, Question, Recalled, Reply, Sampling, ScoredMemory, ToolSpec
from planner_train.game import PlannerGame
from tests import tiny_models
from tests.doubles import FixedSearch, call

WEIGHTS = {"final": 0.7, "first": 0.2, "decision": 0.05, "format": 0.05}
RIGHT, WRONG = "<answer>Danube</answer>", "<answer>Rhine</answer>"
PLAN, AGAIN = "1. Search: Vienna.", "1. Search: Danube."


def row(recalled: Recalled | None = None) -> Row:
    question = Question(id="1", text="Which river flows through the capital of Austria?")
    example = Example(question=question, reference=Reference(answers=("Danube",)))
    return Row(example=example, recalled=recalled or Recalled())


def game(executor: Any) -> PlannerGame:
    return PlannerGame(ToolBox([SearchTool(FixedSearch(), 3)]), AgentConfig(), {"executor": executor})


def play(planner: Sequence[str], executor: Sequence[Any], given: Row | None = None) -> Outcome:
    played = game(ScriptedChat(list(executor))).play(given or row(), ScriptedChat(list(planner)), True)
    return asyncio.run(played)


@pytest.mark.parametrize(
    ("planner", "executor", "total"),
    [
        ([PLAN, "no, it is right."], [RIGHT], 1.0),
        ([PLAN, "yes, look again.", AGAIN], [RIGHT, RIGHT], 0.95),
        ([PLAN, "yes, look again.", AGAIN], [WRONG, call("Danube"), RIGHT], 0.8),
        ([PLAN, "yes, look again.", AGAIN], [RIGHT, WRONG], 0.25),
        ([PLAN, "yes, look again.", AGAIN], [WRONG, WRONG], 0.1),
        ([PLAN, "no, it is right."], [WRONG], 0.05),
        ([PLAN, "perhaps."], [RIGHT], 0.9),  # a verdict that cannot be read: neither decided, nor kept to the format
        (["<think>nothing</think>", "no, it is right."], [RIGHT], 0.95),  # no plan
        (["<think>half", "no, it is right."], [RIGHT], 0.95),
    ],
)
def test_the_reward_is_that_of_the_paper(planner: list[str], executor: list[str], total: float) -> None:
    outcome = play(planner, executor)
    assert sum(WEIGHTS[name] * value for name, value in outcome.scores.items()) == pytest.approx(total)
    assert game(ScriptedChat([])).weights == WEIGHTS


def test_the_planner_sees_what_memory_recalled_before_and_the_second_round_goes_on() -> None:
    memory = Memory(id="m", question="Which river flows through Rome?", workflow="1. Look for Rome.", outcome="correct")
    recalled = Recalled(successes=(ScoredMemory(memory=memory, score=1.0, similarity=1.0),))
    outcome = play([PLAN, "yes, look again.", AGAIN], [call("Vienna"), WRONG, RIGHT], row(recalled))
    planned, executed = outcome.run.conversation("planner"), outcome.run.conversation("executor")
    assert "1. Look for Rome." in planned[0].text
    assert "Danube flows" not in planned[0].text
    assert "lies on the Danube" in planned[2].text  # the trace of the first round
    assert [plan.text for plan in outcome.run.plans] == [PLAN, AGAIN]
    assert AGAIN in executed[-2].text
    assert outcome.run.judgement is not None
    assert outcome.run.judgement.correct


@pytest.mark.parametrize("after", [0, 1])
def test_a_frozen_executor_that_fails_drops_the_rollout(after: int) -> None:
    """In the second round as well, where serving would keep the first answer."""
    executor: list[Any] = [WRONG][:after] + [ModelError("the endpoint is down")]
    with pytest.raises(ModelError, match="down"):
        play([PLAN, "yes, look again.", AGAIN], executor)


class Copying:
    """An Executor that answers with the mark of the newest plan it was shown, after all others have asked."""

    name, context = "copying", 4096

    def __init__(self, count: int) -> None:
        self._asked = asyncio.Barrier(count)

    async def generate(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec] = ()) -> Reply:
        mark = re.findall(r"mark-\w+", " ".join(m.text for m in messages if m.role == "user"))[-1]
        await self._asked.wait()
        return Reply(text=f"<answer>{mark}</answer>")

    async def aclose(self) -> None:
        """Nothing to free."""


def test_samples_of_one_question_never_share_state() -> None:
    async def run() -> list[Outcome]:
        played = game(Copying(4))
        same = row()
        scripts = [[f"1. mark-a{n}", "yes, look again.", f"1. mark-b{n}"] for n in range(4)]
        return await asyncio.gather(*(played.play(same, ScriptedChat(script), True) for script in scripts))

    for number, outcome in enumerate(asyncio.run(run())):
        assert [plan.text for plan in outcome.run.plans] == [f"1. mark-a{number}", f"1. mark-b{number}"]
        assert outcome.run.answer == f"mark-b{number}"
        marks = set(re.findall(r"mark-\w+", outcome.run.model_dump_json()))
        assert marks == {f"mark-a{number}", f"mark-b{number}"}


def test_memories_are_wanted_but_there_is_no_memory(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from planner_train.cli import main

    words = ["train/planner_tiny", "--rollout.recall", "true", "--memory.enabled", "false", "--out", str(tmp_path)]
    with pytest.raises(ConfigError, match="without a memory"):
        main(words)


@pytest.mark.filterwarnings("default")
@pytest.mark.long
def test_a_step_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("trl")
    from planner_train.cli import main

    place = tiny_models.chat_llama(tmp_path / "model")
    words = [
        "train/planner_tiny",
        "--policy.path",
        str(place),
        "--policy.lora_rank",
        "2",
        "--out",
        str(tmp_path / "out"),
    ]
    words += ["--grpo.max_steps", "1", "--grpo.num_generations", "2", "--grpo.gradient_accumulation_steps", "1"]
    words += ["--models.executor.url", f"local:{place}", "--models.executor.context", "2048", "--rollout.rows", "4"]
    words += ["--agent.executor.max_tokens", "12", "--agent.answer.max_tokens", "8", "--agent.planner.max_tokens", "12"]
    assert main(words) == 0
    assert (tmp_path / "out" / "final" / "adapter_model.safetensors").is_file()
    assert main([*words, "--dry-run"]) == 0
    assert "4 rollouts" in capsys.readouterr().out
