"""The gate and the alarms: harmful updates are refused, honest ones pass, the held-back slice is never learned from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from planner_train.game import PlannerGame
from tests import tiny_models
from tests.doubles import call
from tests.streaming import running, scripted_game
from ttrl_streaming.config import StreamConfig
from ttrl_streaming.schema import AskRequest, FeedbackItem
from ttrl_streaming.trainer import Play, Step

pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")
LIKED = "\ufffd"
"""What about half of the random Planner's plans begin with, and most of its likeliest ones."""


def follower(first: str, last: str) -> str:
    """An Executor that answers right if the plan begins with what it likes."""
    if "<tool_response>" not in last:
        return call("Vienna")
    liked = any(line.startswith(LIKED) for line in first.splitlines())
    return f"<answer>{'yes' if liked else 'no'}</answer>"


@contextmanager
def game(config: StreamConfig, settings: Any) -> Iterator[PlannerGame]:
    with scripted_game(config, settings, follower) as opened:
        yield opened


SETTINGS: dict[str, Any] = {
    "games": game, "streaming__memory": False, "streaming__batch": 100, "streaming__gate__questions": 8,
    "streaming__gate__share": 0.5, "streaming__gate__least": 4, "streaming__gate__bound": 0.05,
    "grpo__learning_rate": 0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.chat_llama(tmp_path_factory.mktemp("model"), positions=4096)


async def asked(client: Any, count: int, start: int = 0) -> list[Any]:
    return [await client.ask(AskRequest(question=f"Is {n} lucky?", id=f"q{n}")) for n in range(start, start + count)]


def drawn(count: int) -> list[str]:
    """Ids that the gate holds back at a share of one half."""
    names = (f"h{n}" for n in range(1000))
    digests = ((name, hashlib.sha256(f"held/{name}".encode()).digest()) for name in names)
    return [name for name, digest in digests if digest[0] < 128][:count]


async def hold(client: Any, count: int = 8) -> None:
    """Ask questions that are held back, and tell what is right."""
    for n, name in enumerate(drawn(count)):
        await client.ask(AskRequest(question=f"Is {n} lucky?", id=name))
    await client.feedback([FeedbackItem(id=name, label=["yes"]) for name in drawn(count)])
    await client.flush()


def inverted(answers: list[Any]) -> list[FeedbackItem]:
    return [FeedbackItem(id=each.id, reward=-1.0 if each.answer == "yes" else 1.0) for each in answers]


async def test_an_update_by_inverted_feedback_is_refused_and_changes_no_answer(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, **SETTINGS) as (service, client):
        await hold(client)
        status = await client.status()
        assert (status.held_back, status.version, status.reasons) == (8, 0, {"held_back": 8})
        fixed = [AskRequest(question=f"Is {n} lucky?", seed=n) for n in range(40, 44)]
        before = [await client.ask(each) for each in fixed]
        poisoned = await asked(client, 24, 100)
        assert {each.answer for each in poisoned} == {"yes", "no"}
        await client.feedback(inverted(poisoned))
        await client.flush()
        after = await client.status()
        gate = after.last_gate
        assert (gate.passed, gate.questions) == (False, 8)
        assert gate.after < gate.before - 0.05
        assert (after.version, after.refused_updates, after.reasons["gate"]) == (0, 1, 24)
        assert after.feedback["queued"] == after.feedback["learned"] == 0
        same = [await client.ask(each) for each in fixed]
        assert [(a.plan, a.answer, a.version) for a in same] == [(a.plan, a.answer, a.version) for a in before]
        assert not (tmp_path / "namespaces" / "default" / "000001").exists()
        (point,) = (await client.curve()).points
        assert (point.version, point.parent, point.gate) == (None, 0, gate)
        # what comes next starts from the weights that serve, and held-back questions are not learned from
        await client.feedback(inverted(await asked(client, 8, 200)))
        await client.flush()
        steps = [c for c in service.learning.trainer.commands if isinstance(c, Step)]
        assert [step.folder.name for step in steps] == ["start", "start"]
        learned = {rolled.run.id for step in steps for group in step.groups for rolled in group if rolled.run}
        assert not learned & set(drawn(8))
        greedy = [c for c in service.learning.trainer.commands if isinstance(c, Play)]
        assert all(c.greedy for c in greedy)
        assert [c.folder.name for c in greedy if c.folder is not None] == [
            "start",
            "000001",
            "000001",
        ]  # the old weights play once


async def test_what_loses_no_more_than_the_bound_passes(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, **{**SETTINGS, "streaming__gate__bound": 1.0}) as (service, client):
        await hold(client)
        await client.feedback(inverted(await asked(client, 12, 100)))
        await client.flush()
        status = await client.status()
        assert (status.version, status.last_gate.passed, status.last_gate.questions) == (1, True, 8)
        kept = service.store.gate_rewards("default", 1)
        assert sum(kept.values()) / 8 == pytest.approx(status.last_gate.after)


async def test_few_questions_are_no_gate(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, **SETTINGS) as (_, client):
        await hold(client, 3)
        await client.feedback(inverted(await asked(client, 12, 100)))
        await client.flush()
        status = await client.status()
        assert (status.version, status.last_gate.passed, status.last_gate.questions) == (1, True, 0)


async def test_without_a_gate_the_same_feedback_does_harm(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, **{**SETTINGS, "streaming__gate__questions": 0}) as (_, client):
        poisoned = await asked(client, 24, 100)
        await client.feedback([FeedbackItem(id=a.id, reward=-1.0 if a.answer == "yes" else 1.0) for a in poisoned])
        await client.flush()
        after = await asked(client, 24, 300)
        assert sum(a.answer == "yes" for a in after) < sum(a.answer == "yes" for a in poisoned)
        assert (await client.status()).last_gate.passed


async def test_drift_and_unreadable_plans_raise_alarms(tiny: Path, tmp_path: Path) -> None:
    more = {"streaming__learn": False, "streaming__window": 8, "streaming__alarms__malformed": 0.4}
    async with running(tiny, tmp_path, **{**SETTINGS, **more}) as (_, client):
        await asked(client, 16)
        await client.feedback([FeedbackItem(id=f"q{n}", reward=1.0 if n < 8 else 0.0) for n in range(16)])
        await client.flush()
        alarms = {alarm.kind: alarm.value for alarm in (await client.status()).alarms}
        assert alarms["drift"] == pytest.approx(0.9)
        assert alarms["malformed"] > 0.4
        assert "entropy" not in alarms
