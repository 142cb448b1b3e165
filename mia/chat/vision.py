"""How a checkpoint of Qwen2.5-VL reads pictures: pixels, their placeholder tokens, positions in three axes.

The checkpoint's own image processor prepares the pixels (its PIL form, which needs no torchvision). Left out: videos.
Sources: Qwen2.5-VL technical report (arXiv 2502.13923), section 2.1; `transformers.models.qwen2_5_vl`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mia.errors import DataError
from mia.pictures import decoded, from_data_url

if TYPE_CHECKING:
    import torch

MODEL_TYPES = ("qwen2_5_vl",)
"""Values of `model_type` in a checkpoint's config whose pictures are read."""


@dataclass(frozen=True)
class Picture:
    """A picture as the model takes it.

    `pixels` has one row for each patch, (patches, values of a patch); `grid` counts patches in time, height and width;
    `tokens` are the placeholders it fills; `mark` is a negative number that stands for the contents.
    """

    pixels: torch.Tensor
    grid: tuple[int, int, int]
    tokens: int
    mark: int


class Eyes:
    """Prepares pictures for one checkpoint.

    Args:
        checkpoint: folder or hub name.
        model: the loaded model; it knows positions and the placeholder token.
        min_pixels, max_pixels: bounds of a picture's area; None leaves the checkpoint's own.
    """

    def __init__(self, checkpoint: str, model: Any, min_pixels: int | None, max_pixels: int | None) -> None:
        from transformers import Qwen2VLImageProcessorPil

        bounds = {"min_pixels": min_pixels, "max_pixels": max_pixels}
        given = {name: bound for name, bound in bounds.items() if bound is not None}
        self.processor = Qwen2VLImageProcessorPil.from_pretrained(checkpoint, **given)
        self._positions = model.model.get_rope_index
        self.placeholder: int = model.config.image_token_id
        self.reserved = (self.placeholder, int(model.config.video_token_id))
        """Tokens that stand for pictures and videos; a model does not write them."""

    def read(self, urls: Sequence[str]) -> list[Picture]:
        """Pictures of data URLs.

        Raises:
            DataError: one of them, named by its number from 1, cannot be read.
        """
        pictures = []
        for number, url in enumerate(urls, 1):
            try:
                made = self.processor(decoded(from_data_url(url)), return_tensors="pt")
            except (DataError, ValueError) as error:  # ValueError: 200 times as wide as high, or the reverse
                why = error.message if isinstance(error, DataError) else str(error)
                raise DataError(f"picture {number}: {why}", remedy="mend the picture", code="bad_picture") from error
            grid = tuple(made["image_grid_thw"][0].tolist())
            pixels = made["pixel_values"]
            digest = hashlib.sha256(repr(grid).encode() + pixels.numpy().tobytes()).digest()
            tokens = grid[0] * grid[1] * grid[2] // self.processor.merge_size**2
            pictures.append(Picture(pixels, grid, tokens, -1 - int.from_bytes(digest[:8], "big")))
        return pictures

    def filled(self, ids: Sequence[int], pictures: Sequence[Picture]) -> tuple[list[int], list[int]]:
        """A prompt with as many placeholders for each picture as it has features, and the same with its mark instead.

        Args:
            ids: the prompt with one placeholder for each picture.
            pictures: as many as there are placeholders, in order.
        """
        prompt: list[int] = []
        marked: list[int] = []
        waiting = iter(pictures)
        for token in ids:
            picture = next(waiting) if token == self.placeholder else None
            prompt += [token] * (picture.tokens if picture else 1)
            marked += [picture.mark] * picture.tokens if picture else [token]
        return prompt, marked

    def positions(self, ids: Sequence[int], pictures: Sequence[Picture]) -> tuple[torch.Tensor, int]:
        """Positions (3, T) of a prompt in time, height and width, and what to add to a token's index after it."""
        import torch

        tokens = torch.tensor([ids])
        kinds = (tokens == self.placeholder).int()  # 1: picture, 0: text
        grids = torch.tensor([picture.grid for picture in pictures])
        positions, ahead = self._positions(tokens, kinds, image_grid_thw=grids)
        return positions[:, 0], int(ahead)
