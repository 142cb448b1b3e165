"""What feedback is worth: our own rule, a user's function, a service; what fails is no reward and never a zero."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.config import JudgeConfig
from mia.chat.scripted import ScriptedChat
from mia.errors import ConfigError, JudgeError
from mia.types import Question
from ttrl_streaming.reward import Case, Judged, case_of, open_reward
from ttrl_streaming.schema import FeedbackItem
from web_tools.stub import Answer, Seen, serving

QUESTION = Question(id="q", text="Which river flows through Vienna?")


def case(answer: str | None = "the Danube", official: bool = True, format: float = 1.0, **said: Any) -> Case:
    item = FeedbackItem.model_validate({"id": "q", **said})
    return case_of(item, "default", QUESTION, answer=answer, official=official, format=format)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (case(reward=0.5), 0.9 * 0.5 + 0.1),
        (case(reward=-1.0, format=0.0), -0.9),
        (case(label="Right"), 1.0),
        (case(label="wrong"), 0.1),
        (case(label="Danube"), 1.0),
        (case(label=["Rhine", "danube"], format=0.0), 0.9),
        (case(label=["right"]), 0.1),
        (case(None, label="Danube"), 0.1),
        (case("the Rhine", official=False, label="Danube"), 0.1),
        (case(official=False, label="right"), None),
        (case(official=False, reward=1.0), None),
    ],
)
async def test_our_own_rule(given: Case, expected: float | None) -> None:
    found = await Judged(JudgeConfig(), ScriptedChat(), 0.1)(given)
    assert found == (None if expected is None else pytest.approx(expected))


async def test_words_are_read_and_what_cannot_be_read_is_no_reward() -> None:
    said = {"reason": "The user names another river.", "verdict": "wrong", "answer": "the Rhine"}
    model = ScriptedChat(always=lambda _: json.dumps(said))
    assert await Judged(JudgeConfig(), model, 0.1)(case(correction="No, the Rhine.")) == pytest.approx(0.1)
    with pytest.raises(JudgeError, match="no readable reading"):
        await Judged(JudgeConfig(tries=2), ScriptedChat(always=lambda _: "perhaps"), 0.1)(case(correction="Hm."))


def opened(name: str) -> Any:
    return open_reward(name, 5.0, JudgeConfig(), ScriptedChat(), 0.1)


async def test_a_function_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_reward.py").write_text(
        "async def score(case):\n    return len(case.answer) / 10 if case.official else None\n"
        "def broken(case):\n    return {}[case.id]\n"
        "def odd(case):\n    return float('nan')\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert await opened("my_reward:score")(case(reward=0.0)) == 1.0
    assert await opened("my_reward:score")(case(official=False, reward=0.0)) is None
    with pytest.raises(JudgeError, match="KeyError"):
        await opened("my_reward:broken")(case(reward=0.0))
    with pytest.raises(JudgeError, match="nan"):
        await opened("my_reward:odd")(case(reward=0.0))
    for name in ("my_reward:missing", "no_such_module:score"):
        with pytest.raises(ConfigError, match="module:function"):
            opened(name)


async def test_a_service_gives_rewards() -> None:
    bodies: list[Any] = []

    def answer(request: Seen) -> Answer:
        bodies.append(request.json)
        return Answer({"reward": 0.25})

    with serving(answer) as server:
        assert await opened(server.url)(case(label="Danube")) == 0.25
    assert (bodies[0]["question"]["text"], bodies[0]["reference"]) == (QUESTION.text, ["Danube"])


@pytest.mark.parametrize("body", [{"reward": "1"}, {"score": 1}, {"reward": 1, "more": 2}], ids=str)
async def test_a_service_with_another_answer_gives_no_reward(body: Any) -> None:
    with serving(lambda _: Answer(body)) as server, pytest.raises(JudgeError, match="gave no reward"):
        await opened(server.url)(case(reward=0.0))


async def test_a_service_that_is_down_gives_no_reward() -> None:
    with serving(lambda _: Answer({}, status=500)) as server:
        with pytest.raises(JudgeError, match="500"):
            await opened(server.url)(case(reward=0.0))
        address = server.url
    with pytest.raises(JudgeError, match="gave no reward") as caught:
        await opened(address)(case(reward=0.0))
    assert caught.value.retryable
