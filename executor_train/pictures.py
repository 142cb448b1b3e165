"""Pictures of a rollout on their way to the trainer: opened, and prepared by the processor that the sampler uses too.

A processor of image processor and tokenizer alone: transformers' own for Qwen2.5-VL also asks for a video processor,
and that one for torchvision.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mia.pictures import decoded, from_data_url


def opened(urls: Iterable[str]) -> list[Any]:
    """Pictures of data URLs, as PIL holds them.

    Raises:
        DataError: one of them cannot be read.
    """
    return [decoded(from_data_url(url)) for url in urls]


def picture_processor(image_processor: Any, tokenizer: Any) -> Any:
    """What TRL asks for to train a model that reads pictures."""
    from transformers import ProcessorMixin

    class PictureProcessor(ProcessorMixin):  # type: ignore[misc]  # transformers ships no types
        """See the module."""

        attributes = ("image_processor", "tokenizer")
        image_processor_class = "AutoImageProcessor"
        tokenizer_class = "AutoTokenizer"

        def __init__(self, image_processor: Any, tokenizer: Any, **_: Any) -> None:
            super().__init__(image_processor, tokenizer, chat_template=tokenizer.chat_template)

    return PictureProcessor(image_processor, tokenizer)
