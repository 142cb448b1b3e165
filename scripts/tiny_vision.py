"""A tiny Qwen2.5-VL of random weights: it reads pictures as the real ones do and writes noise, to try the machinery.

    python scripts/tiny_vision.py                # prints its folder in the cache; makes it if it is not there
    python scripts/tiny_vision.py my-model       # then: mia ask --url local:my-model --image photo.jpg "What is this?"

A quarter of a megabyte; needs the extra `embedded`, and no network.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from mia.paths import cache

VERSION = 1
"""Raised when the checkpoint made here changes."""
QWEN_CONTROL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
_QWEN_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def qwen_vl(folder: Path, seed: int = 0, positions: int = 4096, wide: bool = False) -> Path:
    """A Qwen2.5-VL with 2 text and 2 vision layers, a byte vocabulary and Qwen's control tokens.

    It has 32 dimensions in float32; if `wide`, 512 in heads of 128 and in bfloat16, as the real ones.
    """
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2VLImageProcessorPil,
    )

    hidden = 512 if wide else 32
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in QWEN_CONTROL])
    ids = {token: bpe.token_to_id(token) for token in QWEN_CONTROL}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = _QWEN_TEMPLATE
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil().save_pretrained(folder)
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": bpe.get_vocab_size(),
            "hidden_size": hidden,
            "intermediate_size": 1152 if wide else 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": positions,
            "initializer_range": 0.05 if wide else 0.4,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [16, 24, 24] if wide else [1, 1, 2],
            },
            "eos_token_id": ids["<|im_end|>"],
            "bos_token_id": None,
            "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_heads": 2,
            "out_hidden_size": hidden,
            "fullatt_block_indexes": [1],
            "initializer_range": 0.4,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    (model.to(torch.bfloat16) if wide else model).save_pretrained(folder)
    return folder


def cached() -> Path:
    """The folder of the tiny checkpoint in the cache; it is made there whole or not at all."""
    folder = cache() / f"tiny-vision-{VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder.parent))
        qwen_vl(part, positions=32768)
        try:
            os.replace(part, folder)
        except OSError:  # another process was first
            shutil.rmtree(part)
            if not folder.is_dir():
                raise
    return folder


def main() -> None:
    """Make the checkpoint and print its folder."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", nargs="?", type=Path, help="where to make it (default: in the cache)")
    made.add_argument("--wide", action="store_true", help="in bfloat16 with widths as the real ones, 12 MB")
    given = made.parse_args()
    print(cached() if given.folder is None else qwen_vl(given.folder, positions=32768, wide=given.wide))


if __name__ == "__main__":
    main()
