"""The learner: its step against a plain GRPO step, older rollouts, tails and failures, checkpoints, no stale cache."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mia.errors import ConfigError, DataError
from tests import tiny_models
from tests.learning import OneTurn, learner, played, questions
from ttrl.learner import Baseline
from ttrl.records import Rolled

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")

SGD = {"grpo__optim": "sgd", "grpo__learning_rate": 0.05, "grpo__max_grad_norm": 0.0}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.chat_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def making(tiny: Path, tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as stack:

        def make(*given: Any, **named: Any) -> Any:
            made = learner(tiny, tmp_path / "out", *given, **named)
            stack.callback(made.close)
            return made

        yield make


def number(rolled: Rolled) -> float | None:
    """A reward from 0 to 1 made of what was written; None for a rollout that failed."""
    return None if rolled.run is None else hashlib.sha256((rolled.run.answer or "").encode()).digest()[0] / 256


def rewards_of(groups: Sequence[Sequence[Rolled]]) -> list[list[float | None]]:
    return [[number(rolled) for rolled in group] for group in groups]


def weights_of(made: Any) -> list[Any]:
    return [p.detach().clone() for p in made.trainer.model.parameters()]


def logprobs(model: Any, rolled: Rolled) -> Any:
    """Log-probabilities of the completion under the weights as they are, (C,)."""
    tokens = rolled.tokens
    assert tokens is not None
    ids = torch.tensor([[*tokens.prompt_ids, *tokens.completion_ids]])
    logps = torch.log_softmax(model(ids).logits[0, :-1].float(), -1).gather(-1, ids[0, 1:, None])[:, 0]
    return logps[len(tokens.prompt_ids) - 1 :]


def plain_step(model: Any, groups: Any, rewards: Any, rate: float) -> tuple[float, list[Any]]:
    """GRPO by the paper on recorded rollouts, one step of plain gradient descent: its loss and the new weights."""
    total, count = torch.zeros(()), 0
    for group, given in zip(groups, rewards, strict=True):
        members = [(r, g) for r, g in zip(group, given, strict=True) if g is not None and r.tokens is not None]
        values = torch.tensor([g for _, g in members])
        spread = values.std() if len(members) > 1 else torch.zeros(())
        for (rolled, _), advantage in zip(members, (values - values.mean()) / (spread + 1e-4), strict=True):
            mask = torch.tensor(rolled.tokens.sampled, dtype=torch.float32)
            ratio = torch.exp(logprobs(model, rolled) - torch.tensor(rolled.tokens.logprobs))
            clipped = ratio.clamp(0.8, 1.2)
            total = total - (torch.min(ratio * advantage, clipped * advantage) * mask).sum()
            count += int(mask.sum())
    loss = total / count
    model.zero_grad()
    loss.backward()
    weights = [(p - rate * p.grad).detach() for p in model.parameters()]
    model.zero_grad()
    return loss.item(), weights


@pytest.mark.parametrize("late", [False, True], ids=["at once", "after other steps"])
@pytest.mark.parametrize("failing", ["", "a"], ids=["all played", "some failed"])
def test_an_update_is_a_plain_grpo_step_on_what_was_recorded(making: Any, failing: str, late: bool) -> None:
    made = making(OneTurn(failing=failing), batch=3, **SGD)
    groups = played(made, questions(3))
    assert any(rolled.failure for group in groups for rolled in group) == bool(failing)
    if late:
        for salt in (1, 2):
            others = played(made, questions(3), salt=salt)
            made.update(others, rewards_of(others))
    assert made.version == (2 if late else 0)
    rewards = rewards_of(groups)
    loss, expected = plain_step(made.trainer.model, groups, rewards, 0.05)
    update = made.update(groups, rewards)
    assert update.loss == pytest.approx(loss, abs=1e-5)
    for found, wanted in zip(weights_of(made), expected, strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)
    assert update.version == made.version == (3 if late else 1)
    assert (update.oldest, update.dropped) == (0, sum(r is None for group in rewards for r in group))
    assert update.gradient > 1e-3


def test_recorded_rollouts_survive_their_json(making: Any) -> None:
    made = making(OneTurn(failing="a"), batch=3)
    for rolled in (rolled for group in played(made, questions(3)) for rolled in group):
        assert Rolled.model_validate_json(rolled.model_dump_json()) == rolled


def test_a_tail_batch_is_not_scaled(making: Any) -> None:
    """One question alone moves the weights as it would in a learner whose batches have one question."""
    large, small = making(batch=8, **SGD), making(batch=1, **SGD)
    groups = played(large, questions(1))
    updates = [made.update(groups, rewards_of(groups)) for made in (large, small)]
    assert updates[0].gradient == pytest.approx(updates[1].gradient, rel=1e-5)
    for left, right in zip(weights_of(large), weights_of(small), strict=True):
        assert torch.allclose(left, right, atol=1e-7)


def test_a_short_group_is_learned_from_as_it_is(making: Any) -> None:
    made, same = making(batch=2, **SGD), making(batch=2, **SGD)
    groups = played(made, questions(2))
    first = made.update([groups[0][:3], groups[1]], [rewards_of(groups)[0][:3], rewards_of(groups)[1]])
    second = same.update(groups, [[*rewards_of(groups)[0][:3], None], rewards_of(groups)[1]])
    assert first.loss == pytest.approx(second.loss, abs=1e-6)
    for left, right in zip(weights_of(made), weights_of(same), strict=True):
        assert torch.allclose(left, right, atol=1e-7)


def test_without_a_difference_nothing_moves(making: Any) -> None:
    made = making(batch=3)
    groups = played(made, questions(3))
    before = weights_of(made)
    update = made.update(groups, [[1.0] * 4, [0.3] * 4, [None, None, 0.5, None]])
    assert (update.version, update.trained, update.dropped, update.gradient) == (0, 0, 3, 0.0)
    assert all(torch.equal(*pair) for pair in zip(before, weights_of(made), strict=True))
    mixed = made.update(groups, [[1.0] * 4, [0.0, 1.0, 1.0, 1.0], [None] * 4])
    assert (mixed.version, mixed.trained, mixed.dropped) == (1, 4, 4)
    assert not all(torch.equal(*pair) for pair in zip(before, weights_of(made), strict=True))


def test_what_cannot_be_learned_is_refused(making: Any) -> None:
    made, frozen = making(), making(steps=0)
    groups = played(made, questions(1))
    with pytest.raises(DataError, match="nan"):
        made.update(groups, [[math.nan, 1.0, 0.0, 0.0]])
    with pytest.raises(DataError, match="3 rewards"):
        made.update(groups, [[1.0, 0.0, 0.0]])
    with pytest.raises(DataError, match="5 rollouts"):
        made.update([[*groups[0], groups[0][0]]], [[1.0] * 5])
    with pytest.raises(ConfigError, match="frozen"):
        frozen.update(groups, rewards_of(groups))
    assert made.version == frozen.version == 0


@pytest.mark.parametrize("rank", [0, 4])
def test_no_cache_of_older_weights(making: Any, rank: int) -> None:
    """The same prompts and seeds before and after an update: recorded log-probabilities are those of the weights."""
    made = making(policy__lora_rank=rank, grpo__learning_rate=0.1)
    seen = []
    for _ in range(3):
        groups = played(made, questions(2))
        made.trainer.model.eval()
        for rolled in (rolled for group in groups for rolled in group):
            with torch.no_grad():
                own = logprobs(made.trainer.model, rolled)
            assert rolled.tokens is not None
            assert torch.allclose(own, torch.tensor(rolled.tokens.logprobs), atol=1e-4)
            assert rolled.version == made.version
        seen.append([rolled.tokens for group in groups for rolled in group])
        made.update(groups, rewards_of(groups))
    assert seen[0] != seen[1] != seen[2]


@pytest.mark.parametrize("rank", [0, 4])
def test_a_checkpoint_brings_back_everything(making: Any, tmp_path: Path, rank: int) -> None:
    """In a new process (a new learner) and in the one that went on: the same rollouts and the same weights follow."""
    made = making(policy__lora_rank=rank)

    def step(which: Any, salt: int) -> list[Any]:
        groups = played(which, questions(2), salt=salt)
        which.update(groups, rewards_of(groups))
        return [rolled.tokens for group in groups for rolled in group]

    step(made, 0)
    (tmp_path / "kept").mkdir()
    made.save(tmp_path / "kept")
    told = [step(made, salt) for salt in (1, 2)]
    after = weights_of(made)
    for again in (made, making(policy__lora_rank=rank)):
        again.load(tmp_path / "kept")
        assert again.version == 1
        assert [step(again, salt) for salt in (1, 2)] == told
        assert all(torch.equal(*pair) for pair in zip(after, weights_of(again), strict=True))


def test_two_learners_begin_alike(making: Any) -> None:
    """A new adapter starts from random numbers: from the same ones in each process."""
    left, right = making(policy__lora_rank=4), making(policy__lora_rank=4)
    assert all(torch.equal(*pair) for pair in zip(weights_of(left), weights_of(right), strict=True))


def test_a_game_that_can_be_won_is_won(making: Any) -> None:
    """The reward is the share of one letter in what is written."""

    def share(rolled: Rolled) -> float:
        text = rolled.run.answer if rolled.run and rolled.run.answer else "-"
        return text.count("e") / len(text)

    made = making(OneTurn(tokens=6), n=8, batch=4, steps=25, grpo__learning_rate=5e-3)
    curve = []
    for salt in range(25):
        groups = played(made, questions(4), n=8, salt=salt)
        rewards: list[list[float | None]] = [[share(rolled) for rolled in group] for group in groups]
        curve.append(sum(r or 0.0 for group in rewards for r in group) / 32)
        made.update(groups, rewards)
    assert sum(curve[-5:]) / 5 > sum(curve[:5]) / 5 + 0.3


def test_single_rollouts_are_held_against_a_baseline(making: Any) -> None:
    """A plain policy gradient step with advantage (reward - mean) / (deviation + 1e-4), beside a group of its own."""
    made = making(batch=3, **SGD)
    groups = played(made, questions(3))
    groups = [groups[0], groups[1][:1], groups[2][:1]]
    rewards: list[list[float | None]] = [rewards_of(groups)[0], [1.0], [0.0]]
    baseline = Baseline(mean=0.25, deviation=0.5)
    advantages = [(1.0 - 0.25) / 0.5001, (0.0 - 0.25) / 0.5001]
    values = torch.tensor(rewards[0])
    own = [*((values - values.mean()) / (values.std() + 1e-4)).tolist(), *advantages]
    total, count = torch.zeros(()), 0
    model = made.trainer.model
    for rolled, advantage in zip([*groups[0], groups[1][0], groups[2][0]], own, strict=True):
        tokens = rolled.tokens
        assert tokens is not None
        mask = torch.tensor(tokens.sampled, dtype=torch.float32)
        ratio = torch.exp(logprobs(model, rolled) - torch.tensor(tokens.logprobs))
        total = total - (torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage) * mask).sum()
        count += int(mask.sum())
    (total / count).backward()
    expected = [(p - 0.05 * p.grad).detach() for p in model.parameters()]
    model.zero_grad()
    update = made.update(groups, rewards, [None, baseline, baseline])
    assert update.trained == 6
    for found, wanted in zip(weights_of(made), expected, strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)
