"""Keys and values of a batch while it is decoded: room is made ahead, rows are left-padded, attention reads them once.

transformers' own dynamic cache copies all of itself at every token, and its attention copies keys and values once for
each query head of a group. On the CPU both cost more than the model itself once conversations are long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicLayer
from transformers.masking_utils import sdpa_mask

ROOM = 64
"""Tokens that room is made for at a time."""
Layers = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer, each (1, heads, T, width of a head)."""


class RoomyLayer(DynamicLayer):  # type: ignore[misc]  # transformers ships no types
    """A layer whose `keys` and `values` (B, heads, T, width) are the written part of larger buffers."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Write new keys and values (B, heads, t, width) behind the others; gives all there are."""
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.room: list[torch.Tensor] = [key_states[:, :, :0], value_states[:, :, :0]]
        if end > self.room[0].shape[-2]:
            self.reserve(end + (ROOM if start else 0), key_states, value_states)
        for buffer, new in zip(self.room, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = new
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.room)
        return self.keys, self.values

    def reserve(self, size: int, *like: torch.Tensor) -> None:
        """Make room for `size` tokens; `like` are keys and values of the same form."""
        held = self.get_seq_length()
        old, self.room = self.room, []
        for buffer, new in zip(old, like, strict=True):
            made = new.new_empty(*new.shape[:2], size, new.shape[3])
            made[:, :, :held] = buffer[:, :, :held]
            self.room.append(made)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some rows of the batch."""
        end = self.get_seq_length()
        self.room = [buffer[indices] for buffer in self.room]
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.room)


def new_cache() -> Any:
    """An empty cache."""
    return Cache(layer_class_to_replicate=RoomyLayer)


def layers_of(cache: Any, length: int | None = None, row: int = 0) -> Layers:
    """Keys and values of one row, of its last `length` tokens or all of them; views, not copies."""
    part = (slice(row, row + 1), slice(None), slice(-length if length else None, None))
    return [(layer.keys[part], layer.values[part]) for layer in cache.layers]


def left_padded(caches: Sequence[Any]) -> Any:
    """Caches of one row each as one cache of B rows, shorter ones padded on the left with zeros.

    The caches are emptied layer by layer, so that keys and values are held about once.
    """
    width, joint = max(cache.get_seq_length() for cache in caches), new_cache()
    for index in range(len(caches[0].layers)):
        layers = [cache.layers[index] for cache in caches]
        first = layers[0].keys
        made = RoomyLayer()
        made.lazy_initialization(first, first)
        made.room = [first.new_zeros(len(caches), first.shape[1], width + ROOM, first.shape[3]) for _ in range(2)]
        for row, layer in enumerate(layers):
            start = width - layer.get_seq_length()
            made.room[0][row, :, start:width] = layer.keys[0]
            made.room[1][row, :, start:width] = layer.values[0]
            layer.room, layer.keys, layer.values = [], first[:, :, :0], first[:, :, :0]
        made.keys, made.values = (buffer[:, :, :width] for buffer in made.room)
        joint.layers.append(made)
    return joint


def _grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of query (B, heads, t, width) over key and value (B, groups, T, width), without copies of these."""
    out = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=attention_mask is None and query.shape[2] > 1,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out.transpose(1, 2).contiguous(), None


GROUPED = "mia_grouped"
AttentionInterface.register(GROUPED, _grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)


@contextmanager
def grouped_attention(model: Any) -> Iterator[None]:
    """On the CPU let a model that uses PyTorch's attention use it without copies; elsewhere its own is right."""
    config = model.config.get_text_config()
    if model.device.type != "cpu" or config._attn_implementation != "sdpa":
        yield
        return
    config._attn_implementation = GROUPED
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"
