"""The head that scores learned tokens only: same values and same way back as TRL's, which scores every position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import tiny_models

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")

TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.chat_llama(tmp_path_factory.mktemp("head") / "model")


def loaded(place: Path) -> Any:
    from transformers import AutoModelForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    add_fused_lm_head(model, temperature=TEMPERATURE, outputs=("log_probs", "entropy", "is_top1"))
    return model


def batch() -> tuple[Any, Any]:
    """Two rows of twelve tokens; the second is shorter, and some tokens of both are not learned."""
    ids = torch.randint(5, 200, (2, 12), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:, :4] = -100
    labels[1, 9:] = -100
    return ids, labels


def test_values_and_gradients_are_those_of_the_other_head(place: Path) -> None:
    from executor_train.head import LearnedHead

    ids, labels = batch()
    theirs, ours = loaded(place), loaded(place)
    LearnedHead(ours, TEMPERATURE)
    made = [model(input_ids=ids, labels=labels, fused_lm_head=True) for model in (theirs, ours)]
    for name in ("loss", "log_probs", "entropy", "is_top1", "label_mask"):
        assert torch.allclose(getattr(made[0], name).float(), getattr(made[1], name).float(), atol=1e-5), name
    for output in made:
        (output.log_probs * torch.arange(22).view(2, 11)).sum().backward()
    grads = [dict(model.named_parameters())["model.layers.0.mlp.up_proj.weight"].grad for model in (theirs, ours)]
    assert grads[0].abs().max() > 0
    assert torch.allclose(grads[0], grads[1], atol=1e-5)


def test_only_flagged_positions_are_scored_and_a_batch_without_any_goes_back_to_nothing(place: Path) -> None:
    from executor_train.head import LearnedHead

    ids, labels = batch()
    labels[:, :-5] = -100
    model = loaded(place)
    head = LearnedHead(model, TEMPERATURE)
    whole = model(input_ids=ids, labels=labels, fused_lm_head=True).log_probs
    flags = torch.zeros(2, 5, dtype=torch.int64)
    flags[0, 1] = flags[1, 0] = 1
    with head.only(flags):
        some = model(input_ids=ids, labels=labels, fused_lm_head=True).log_probs
    # The last five of eleven positions carry flags: position 7 of the first row, 6 of the second.
    wanted = torch.zeros_like(whole)
    wanted[0, 7], wanted[1, 6] = whole[0, 7], whole[1, 6]
    assert torch.allclose(some, wanted, atol=1e-6)
    with head.only(torch.zeros(2, 11, dtype=torch.int64)):
        none = model(input_ids=ids, labels=labels, fused_lm_head=True)
    none.loss.backward()
    assert not any(p.grad.abs().max() for p in model.parameters() if p.grad is not None)
    after = model(input_ids=ids, labels=labels, fused_lm_head=True).log_probs
    assert torch.equal(after, whole)


def test_logits_are_still_to_be_had(place: Path) -> None:
    from executor_train.head import LearnedHead

    ids, labels = batch()
    model = loaded(place)
    before = model(input_ids=ids)
    LearnedHead(model)
    assert torch.equal(model(input_ids=ids).logits, before.logits)
    assert model(input_ids=ids, labels=labels).loss > 0


def test_a_model_that_bends_its_logits_and_a_trained_entropy_keep_the_other_head(place: Path) -> None:
    from executor_train.head import LearnedHead

    bent = loaded(place)
    bent.config.final_logit_softcapping = 30.0
    for model, bonus in ((bent, False), (loaded(place), True)):
        before = model.forward
        LearnedHead(model, bonus=bonus)
        assert model.forward == before
