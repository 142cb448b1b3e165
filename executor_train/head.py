"""Scoring tokens on a CPU. TRL's fused head projects every position there, in float32; this one only the learned ones.

Of a conversation with tools some six in seven tokens are read and not learned, and the vocabulary is the widest matrix
of a small model. On a GPU TRL's own head is left alone, which leaves out the same positions. Left out: models that bend
or scale their logits, and an entropy that is trained on: these keep TRL's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from trl.trainer.utils import FusedCausalLMOutput

from executor_train.sft import IGNORED

BENT = ("final_logit_softcapping", "logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling")
"""Settings of models whose logits are not the plain product."""


class LearnedHead:
    """Scores only what is learned, in place of the head that TRL put into a model.

    Args:
        model: with TRL's fused head; a PEFT model or a bare one. Its forward is replaced.
        temperature: logits are divided by it.
        bonus: entropy is trained on, so TRL's head stays.
    """

    def __init__(self, model: Any, temperature: float = 1.0, bonus: bool = False) -> None:
        self._model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._fused = self._model.forward
        self._temperature = temperature
        self._only: Tensor | None = None
        config = self._model.config.get_text_config()
        if self._model.device.type == "cpu" and not bonus and all(getattr(config, name, None) is None for name in BENT):
            self._model.forward = self._forward

    @contextmanager
    def only(self, flags: Tensor | None) -> Iterator[None]:
        """Within: of the last C positions of each row only those with a flag are scored, (B, C); None: all."""
        self._only = flags
        try:
            yield
        finally:
            self._only = None

    def _forward(self, *args: Any, fused_lm_head: bool = False, labels: Any = None, **kwargs: Any) -> Any:
        if not fused_lm_head or labels is None:
            given = {} if labels is None else {"labels": labels}
            return self._fused(*args, fused_lm_head=fused_lm_head, **given, **kwargs)
        items = kwargs.pop("num_items_in_batch", None)
        read = self._model.base_model(*args, **{**kwargs, "use_cache": False})
        targets = labels[:, 1:]
        mask = targets != IGNORED
        if self._only is not None:
            width = self._only.size(1)
            mask = torch.cat([mask[:, :-width], mask[:, -width:] & self._only.bool()], 1)
        logits = self._model.get_output_embeddings()(read.last_hidden_state[:, :-1][mask]).float() / self._temperature
        chosen = -functional.cross_entropy(logits, targets[mask], reduction="none")
        with torch.no_grad():
            told = functional.log_softmax(logits, -1)
            entropy, best = -(told.exp() * told).sum(-1), (told.argmax(-1) == targets[mask]).float()
        chosen, entropy, best = (_spread(each, mask) for each in (chosen, entropy, best))
        loss = -chosen.sum() / (mask.sum().clamp(min=1) if items is None else items)
        return FusedCausalLMOutput(loss=loss, log_probs=chosen, entropy=entropy, is_top1=best, label_mask=mask)


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """Values of the flagged positions in their places, zeros elsewhere; it has a way back even where there is none."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)
