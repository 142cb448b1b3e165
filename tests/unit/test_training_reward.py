"""Parts of the rewards, by hand."""

from __future__ import annotations

import pytest

from executor_train.reward import executor_scores, format_score, health, planner_scores, tool_score
from inference.runs import Run
from mia.types import (
    Failure,
    Judgement,
    MalformedCall,
    Observation,
    Plan,
    Question,
    Reflection,
    Reply,
    Role,
    Step,
    ToolSpec,
)
from tests.doubles import call

LENS = ToolSpec(name="lens", description="", parameters={}, once=True)
ANSWER = "<think>so</think><answer>Danube</answer>"
YES, NO = Judgement(correct=True, method="em"), Judgement(correct=False, method="em")


def act(text: str, *observations: Observation, role: Role = "executor", bad: int = 0) -> Step:
    malformed = tuple(MalformedCall(id=str(n), raw="", reason="x") for n in range(bad))
    return Step(role=role, purpose="act", reply=Reply(text=text), observations=observations, malformed=malformed)


def seen(refused: bool = False, failed: bool = False) -> Observation:
    failure = Failure(boundary="tool", code="x", message="y") if failed else None
    return Observation(call_id="0", text="" if failed else "found", refused=refused, failure=failure)


REPLAN = Step(role="planner", purpose="replan", reply=Reply(text="again"))


@pytest.mark.parametrize(
    ("steps", "score"),
    [
        ([act(ANSWER)], 0.0),
        ([act(call("a"), seen()), act(ANSWER)], 1.0),
        ([act(call("a"), seen(refused=True)), act(ANSWER)], 0.0),
        ([act(call("a"), seen(failed=True)), act(ANSWER)], 0.0),
        ([act(ANSWER), REPLAN, act(call("a"), seen()), act(ANSWER)], 0.5),
        ([act(call("a"), seen()), act(ANSWER), REPLAN], 1.0),
        ([REPLAN], 0.0),
    ],
)
def test_tool_score(steps: list[Step], score: float) -> None:
    assert tool_score(steps) == score


@pytest.mark.parametrize(
    ("texts", "score"),
    [
        ([ANSWER], 1.0),
        ([call("a"), ANSWER], 1.0),
        ([call("a")], 0.0),
        (["<think>a" + ANSWER], 0.0),
        (["<answer>a"], 0.0),
        (["Danube"], 0.0),
        (["<tool_call>{no}</tool_call>", ANSWER], 0.0),
        (["only thoughts", ANSWER], 0.0),
        (["<answer>a</answer><answer>b</answer>"], 0.0),
        (['<tool_call>{"name": "lens", "arguments": {}}</tool_call>', ANSWER], 1.0),
        (['<tool_call>{"name": "lens", "arguments": {}}</tool_call>'] * 2 + [ANSWER], 0.0),
    ],
)
def test_format_score(texts: list[str], score: float) -> None:
    assert format_score([act(text, seen()) for text in texts], [LENS]) == score


def test_a_refused_call_is_bad_format() -> None:
    assert format_score([act(call("a"), seen(refused=True)), act(ANSWER)], []) == 0.0


def run(*steps: Step, plans: int = 1, verdict: bool | None = None) -> Run:
    made = tuple(Plan(text="p", revision=1 if n else 0) for n in range(plans))
    told = () if verdict is None else (Reflection(replan=verdict),)
    question = Question(id="1", text="q")
    return Run(id="1", question=question, steps=steps, plans=made, reflections=told, answer="x", stop_reason="answered")


def test_the_bonus_is_for_a_right_answer_without_a_replan() -> None:
    played = (act(call("a"), seen()), act(ANSWER))
    assert executor_scores(run(*played), YES, [], 0.2)["correct"] == pytest.approx(1.2)
    assert executor_scores(run(*played, plans=2), YES, [], 0.2)["correct"] == 1.0
    assert executor_scores(run(*played), NO, [], 0.2)["correct"] == 0.0
    weights = {"correct": 0.7, "tool": 0.2, "format": 0.1}
    best = executor_scores(run(*played), YES, [], 0.2)
    assert sum(weights[name] * value for name, value in best.items()) == pytest.approx(1.14)  # the original's maximum


@pytest.mark.parametrize(
    ("first", "final", "replan", "total"),
    [
        (YES, YES, False, 1.00),
        (YES, YES, True, 0.95),
        (NO, YES, True, 0.80),
        (YES, NO, True, 0.25),
        (NO, NO, True, 0.10),
        (NO, NO, False, 0.05),
    ],
)
def test_the_planners_reward_takes_the_originals_values(
    first: Judgement, final: Judgement, replan: bool, total: float
) -> None:
    weights = {"final": 0.7, "first": 0.2, "decision": 0.05, "format": 0.05}
    scores = planner_scores(run(verdict=replan), first, final)
    assert sum(weights[name] * value for name, value in scores.items()) == pytest.approx(total)


def test_a_verdict_that_cannot_be_read_decides_nothing() -> None:
    scores = planner_scores(run(), YES, YES)
    assert (scores["decision"], scores["format"]) == (0.0, 0.0)


def test_health_counts_calls_and_what_was_wrong_with_them() -> None:
    played = run(act(call("a"), seen(), seen(refused=True)), act("x", bad=2), act(ANSWER))
    measured = health(played)
    assert measured["searches"] == 2
    assert measured["malformed"] == 3 / 4
    assert measured["replies"] == 3
    assert measured["answer_words"] == 1
