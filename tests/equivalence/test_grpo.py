"""The trainer against a plain GRPO written here, and against itself: masks, accumulation, padding, restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from executor_train.game import Outcome, Row
from mia.chat import ChatModel
from mia.errors import ToolError
from mia.types import Message
from scripts.tiny_vision import qwen_vl
from tests import tiny_models
from tests.doubles import picture
from tests.playing import TwoTurns, rows, trainer

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def making() -> Iterator[Any]:
    """Makes trainers and closes them in the end."""
    with ExitStack() as stack:

        def make(*given: Any, **named: Any) -> Any:
            made = trainer(*given, **named)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.chat_llama(tmp_path_factory.mktemp("model"))


def batch_of(made: Any) -> dict[str, Any]:
    """One batch of played rollouts, as TRL's loss takes it."""
    made.model.train()
    made.current_gradient_accumulation_steps = 1
    given = next(iter(made.get_train_dataloader()))
    batch: dict[str, Any] = made._generate_and_score_completions(given)
    return batch


def recorded(out: Path, step: int = 0) -> list[dict[str, Any]]:
    """The rollouts of a step as they were written down."""
    text = (out / "rollouts" / f"train-{step:06d}-0.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def plain_loss(model: Any, lines: list[dict[str, Any]], weights: Any, group: int, temperature: float) -> Any:
    """GRPO as in the paper: group-normalised rewards, clipped ratio (on-policy, so 1), mean over all sampled tokens."""
    total, count = torch.zeros(()), 0
    for start in range(0, len(lines), group):
        members = [line for line in lines[start : start + group] if "failure" not in line]
        rewards = torch.tensor([sum(weights[k] * v for k, v in line["scores"].items()) for line in members])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        for line, advantage in zip(members, advantages, strict=True):
            tokens = line["tokens"]
            ids = torch.tensor([[*tokens["prompt_ids"], *tokens["completion_ids"]]])
            logits = model(ids).logits[0, :-1] / temperature
            logps = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0]
            own = logps[len(tokens["prompt_ids"]) - 1 :]
            ratio = torch.exp(own - own.detach())
            mask = torch.tensor(tokens["sampled"], dtype=torch.float32)
            clipped = ratio.clamp(0.8, 1.2)
            total = total - (torch.min(ratio * advantage, clipped * advantage) * mask).sum()
            count += int(mask.sum())
    return total / count


def gradients(model: Any) -> Any:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("failing", [(), ("1",)], ids=["all played", "some failed"])
def test_the_loss_of_recorded_rollouts_is_that_of_plain_grpo(
    making: Any, tiny: Path, tmp_path: Path, failing: tuple[str, ...]
) -> None:
    game = TwoTurns(failing=failing)
    made = making(tiny, tmp_path, game, temperature=1.3)
    batch = batch_of(made)
    made.model.zero_grad()
    loss = made._compute_loss(made.model, batch)
    loss.backward()
    found = gradients(made.model)
    lines = recorded(tmp_path)
    assert any("failure" in line for line in lines) == bool(failing)
    made.model.zero_grad()
    expected = plain_loss(made.model, lines, game.weights, 4, 1.3)
    expected.backward()
    assert abs(loss.item() - expected.item()) < 1e-5
    assert torch.allclose(found, gradients(made.model), atol=1e-5)
    assert found.abs().max() > 1e-3


def test_recorded_logprobs_are_those_of_the_forward_pass(making: Any, tiny: Path, tmp_path: Path) -> None:
    made = making(tiny, tmp_path, TwoTurns(), temperature=1.0)
    batch_of(made)
    for line in recorded(tmp_path):
        tokens = line["tokens"]
        ids = torch.tensor([[*tokens["prompt_ids"], *tokens["completion_ids"]]])
        with torch.no_grad():
            logps = torch.log_softmax(made.model(ids).logits[0, :-1], -1).gather(-1, ids[0, 1:, None])[:, 0]
        own = logps[len(tokens["prompt_ids"]) - 1 :]
        mask = torch.tensor(tokens["sampled"])
        assert torch.allclose(own[mask], torch.tensor(tokens["logprobs"])[mask], atol=1e-4)
        assert all(lp == 0 for lp, sampled in zip(tokens["logprobs"], tokens["sampled"], strict=True) if not sampled)


def test_text_that_others_wrote_is_never_a_target(making: Any, tiny: Path, tmp_path: Path) -> None:
    made = making(tiny, tmp_path, TwoTurns())
    batch = batch_of(made)
    batch["completion_mask"][0] = 1
    batch["tool_mask"][0, -5:] = 0  # ends with what a tool wrote: nothing sampled stands after it
    changed = {**batch, "completion_ids": batch["completion_ids"].clone()}
    changed["completion_ids"][0, -5:] = (changed["completion_ids"][0, -5:] + 7) % 200 + 10
    found = []
    for each in (batch, changed):
        made.model.zero_grad()
        loss = made._compute_loss(made.model, each)
        loss.backward()
        found.append((loss.item(), gradients(made.model)))
    assert abs(found[0][0] - found[1][0]) < 1e-6
    assert torch.allclose(found[0][1], found[1][1], atol=1e-6)

    between = (batch["tool_mask"][1] == 0).nonzero()[0]
    changed = {**batch, "completion_ids": batch["completion_ids"].clone()}
    changed["completion_ids"][1, between] = 33
    assert abs(made._compute_loss(made.model, changed).item() - found[0][0]) < 1e-6


def test_padding_changes_nothing(making: Any, tiny: Path, tmp_path: Path) -> None:
    made = making(tiny, tmp_path, TwoTurns())
    batch = batch_of(made)
    found = []
    pad = made._tokenizer.pad_token_id
    for left, right in ((0, 0), (9, 5)):
        wide = dict(batch)
        for name, fill in (("prompt_ids", pad), ("prompt_mask", 0)):
            wide[name] = torch.nn.functional.pad(batch[name], (left, 0), value=fill)
        for name, fill in (("completion_ids", pad), ("completion_mask", 0), ("tool_mask", 1)):
            wide[name] = torch.nn.functional.pad(batch[name], (0, right), value=fill)
        made.model.zero_grad()
        loss = made._compute_loss(made.model, wide)
        loss.backward()
        found.append((loss.item(), gradients(made.model)))
    assert abs(found[0][0] - found[1][0]) < 1e-5
    assert torch.allclose(found[0][1], found[1][1], atol=1e-5)


def trained(making: Any, tiny: Path, out: Path, resume: Path | None = None, **settings: Any) -> Any:
    game = settings.pop("game", None) or TwoTurns()
    made = making(tiny, out, game, **{"count": 4, "max_steps": 3, **settings})
    made.train(resume_from_checkpoint=str(resume) if resume else None)
    return made


def curve(made: Any) -> list[tuple[float, float]]:
    return [(line["reward"], line["grad_norm"]) for line in made.state.log_history if "reward" in line]


def test_a_batch_of_eight_is_eight_accumulated(making: Any, tiny: Path, tmp_path: Path) -> None:
    whole = trained(making, tiny, tmp_path / "whole")
    parts = trained(making, tiny, tmp_path / "parts", per_device_train_batch_size=1, gradient_accumulation_steps=8)
    for left, right in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.allclose(left, right, atol=2e-4)
    assert curve(parts) == [pytest.approx(pair, abs=1e-3) for pair in curve(whole)]


@pytest.mark.parametrize("kind", ["dapo", "grpo", "dr_grpo", "bnpo"])
def test_parts_of_a_batch_add_up(making: Any, tiny: Path, tmp_path: Path, kind: str) -> None:
    found = []
    for size in (None, 1, 3):
        game = TwoTurns(failing=("1",))
        made = trained(making, tiny, tmp_path / str(size), backward=size, loss_type=kind, max_steps=1, game=game)
        losses = [line["loss"] for line in made.state.log_history if "reward" in line]
        found.append((losses, [weight.detach().clone() for weight in made.model.parameters()]))
    for losses, weights in found[1:]:
        assert losses == pytest.approx(found[0][0], abs=1e-5)
        assert all(torch.allclose(*pair, atol=2e-4) for pair in zip(weights, found[0][1], strict=True))


def test_a_run_that_was_broken_off_goes_on_to_the_same_end(making: Any, tiny: Path, tmp_path: Path) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    whole = trained(making, tiny, tmp_path / "whole", **saving)
    again = trained(making, tiny, tmp_path / "again", resume=tmp_path / "whole" / "checkpoint-2", **saving)
    for left, right in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(left, right)
    assert curve(again)[-1] == curve(whole)[-1]
    lines = [recorded(tmp_path / name, 2) for name in ("again", "whole")]
    assert [line["tokens"] for line in lines[0]] == [line["tokens"] for line in lines[1]]


def test_a_group_that_failed_as_a_whole_changes_nothing(making: Any, tiny: Path, tmp_path: Path) -> None:
    class Down(TwoTurns):
        async def play(self, row: Row, model: ChatModel, training: bool) -> Outcome:
            if row.example.question.id == "0":
                await model.generate((Message(role="user", text="a"),), self.sampling)
                raise ToolError("the tool is down")
            return await super().play(row, model, training)

    made = making(tiny, tmp_path, Down())
    batch = batch_of(made)
    lines = recorded(tmp_path)
    assert ["failure" in line for line in lines] == [True] * 4 + [False] * 4
    assert batch["advantages"][:4].tolist() == [0.0] * 4
    made.log({})
    assert made.state.log_history[-1]["health/dropped"] == 0.5


def test_validation_plays_without_training(making: Any, tiny: Path, tmp_path: Path) -> None:
    seen: list[bool] = []

    class Told(TwoTurns):
        async def play(self, row: Row, model: ChatModel, training: bool) -> Outcome:
            seen.append(training)
            return await super().play(row, model, training)

    made = making(tiny, tmp_path, Told(), per_device_eval_batch_size=4)
    made.eval_dataset = made.train_dataset
    measured = made.evaluate()
    assert seen == [False] * 8
    assert 0 < measured["eval_reward"] < 1


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_vl(tmp_path_factory.mktemp("vl"))


@pytest.mark.parametrize("asked", [True, False], ids=["picture in the prompt", "text in the prompt"])
def test_pictures_of_prompts_and_tools_reach_the_loss(making: Any, seeing: Path, tmp_path: Path, asked: bool) -> None:
    """Two steps; what was sampled has the same log-probabilities in a forward pass with the pictures of the record."""
    game = TwoTurns(image=picture("blue", (84, 56)))
    data = rows(2, [picture("red", (56, 56))] if asked else [])
    made = making(seeing, tmp_path, game, eyes=True, rows=data)
    batch = batch_of(made)
    pictures = 2 if asked else 1
    placeholders = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1) == made.model.config.image_token_id
    features = (batch["image_grid_thw"].prod(1) // 4).reshape(8, pictures).sum(1)
    assert placeholders.sum(1).tolist() == features.tolist()
    assert batch["num_images"] == [pictures] * 8
    inputs = {name: batch[name] for name in ("pixel_values", "image_grid_thw", "num_images", "mm_token_type_ids")}
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    made.model.eval()
    with torch.no_grad():
        width = batch["completion_ids"].size(1)
        logps = made._get_per_token_logps_and_entropies(made.model, ids, mask, width, **inputs)[0]
    own = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert torch.allclose(logps[own], batch["sampling_per_token_logps"][own], atol=1e-4)
    made.train()
    assert [line["grad_norm"] > 0 for line in made.state.log_history if "grad_norm" in line] == [True, True]


def test_a_picture_beyond_the_limit_is_cut_off_as_a_whole(making: Any, seeing: Path, tmp_path: Path) -> None:
    game = TwoTurns(image=picture("blue", (84, 56)))
    whole = batch_of(making(seeing, tmp_path / "whole", game, eyes=True, rows=rows(2)))
    length = int((whole["prompt_mask"].sum(1) + whole["completion_mask"].sum(1)).max())
    made = making(seeing, tmp_path / "cut", game, eyes=True, rows=rows(2), limit=length - 30)
    batch = batch_of(made)
    assert "pixel_values" not in batch
    assert not (batch["completion_ids"] == made.model.config.image_token_id).any()
    assert batch["tool_mask"].sum() > 0
    loss = made._compute_loss(made.model, batch)
    assert torch.isfinite(loss)
