"""A batch of the loss in parts: rows of similar length together, without the padding that only others needed.

Gradients of the parts add up to those of the batch, so memory follows the part and not the batch. Left out: losses that
do not add up (`shares` says which do).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid

BY_TOKENS = ("dapo", "cispo")
"""Losses that are sums over tokens, divided by a number of the whole step."""
BY_ROWS = ("grpo", "dr_grpo", "sapo")
"""Losses that are means over rows."""
LEFT = ("prompt_ids", "prompt_mask")
LOGPROBS = ("old_per_token_logps", "sampling_per_token_logps", "ref_per_token_logps")
RIGHT = ("completion_ids", "completion_mask", "tool_mask", *LOGPROBS)
PIXELS = ("pixel_values", "image_grid_thw", "num_images")


def parts(batch: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """Parts of at most `size` rows of a batch of B rows, longest rows first, each as TRL's loss takes a batch."""
    rows = batch["prompt_ids"].size(0)
    lengths = batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)
    order = torch.argsort(lengths, descending=True, stable=True).tolist()
    split = split_pixel_values_by_grid(batch)
    for start in range(0, rows, size):
        chosen = order[start : start + size]
        part = unsplit_pixel_values_by_grid({name: _rows(value, chosen, rows) for name, value in split.items()})
        if "pixel_values" in part and not part["pixel_values"].numel():
            part = {name: value for name, value in part.items() if name not in PIXELS}
        yield _trimmed(part)


def shares(loss_type: str, batch: dict[str, Any], part: dict[str, Any]) -> float | None:
    """What the loss of a part is multiplied by, so that those of all parts add up; None where they cannot."""
    if loss_type in BY_TOKENS:
        return 1.0
    if loss_type in BY_ROWS:
        return float(part["prompt_ids"].size(0) / batch["prompt_ids"].size(0))
    return None


def _rows(value: Any, chosen: list[int], rows: int) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() and value.size(0) == rows:
        return value[chosen]
    return [value[row] for row in chosen] if isinstance(value, list) else value


def _trimmed(part: dict[str, Any]) -> dict[str, Any]:
    """The part without columns that are padding in all of its rows."""
    prompt, completion = part["prompt_mask"], part["completion_mask"]
    left = prompt.size(1) - int(prompt.sum(1).max())
    right = max(1, int(completion.sum(1).max()))
    made = dict(part)
    for name in LEFT:
        made[name] = part[name][:, left:]
    for name in RIGHT:
        if name in part:
            made[name] = part[name][:, :right]
    if "mm_token_type_ids" in part:
        made["mm_token_type_ids"] = part["mm_token_type_ids"][:, left : prompt.size(1) + right]
    return made
