"""Tiny random models of the real kinds, saved as their libraries save them; random, so only their machinery is real."""

from __future__ import annotations

from pathlib import Path

_WORDS = "the a river mountain stone flows query passage : . , capital of ##s ##t"


def _bert(folder: Path, seed: int, labels: int | None) -> Path:
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast

    folder.mkdir(parents=True)
    letters = " ".join(chr(code) for code in range(97, 123))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS.split(), *letters.split()[1:]]
    pieces += [f"##{letter}" for letter in letters.split() if letter not in "st"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=128)
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        num_labels=labels or 2,
        initializer_range=0.5,
    )
    torch.manual_seed(seed)
    model = BertForSequenceClassification(config) if labels else BertModel(config)
    model.eval().save_pretrained(folder)
    return folder


def sentence_encoder(folder: Path, seed: int = 0) -> Path:
    """A BERT with 32 dimensions, 2 layers and 128 positions; sentence-transformers adds mean pooling to it."""
    return _bert(folder, seed, None)


def cross_encoder(folder: Path, seed: int = 0, labels: int = 1) -> Path:
    """The same with a classifier on top."""
    return _bert(folder, seed, labels)


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


def qwen_vl(folder: Path, seed: int = 0, positions: int = 4096) -> Path:
    """A Qwen2.5-VL with 32 dimensions, 2 text and 2 vision layers, a byte vocabulary and Qwen's control tokens."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2VLImageProcessorPil,
    )

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
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": positions,
            "initializer_range": 0.4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]},
            "eos_token_id": ids["<|im_end|>"],
            "bos_token_id": None,
            "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_heads": 2,
            "out_hidden_size": 32,
            "fullatt_block_indexes": [1],
            "initializer_range": 0.4,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    torch.manual_seed(seed)
    Qwen2_5_VLForConditionalGeneration(config).eval().save_pretrained(folder)
    return folder


def chat_llama(folder: Path, seed: int = 0, positions: int = 2048, template: str | None = None) -> Path:
    """A Llama with 32 dimensions and 2 layers, a byte vocabulary with some merges, and ChatML's control tokens."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from mia.embedded import TEMPLATE

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=control, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(["<think>the search</think> <answer>the river</answer> one two\n\n three"] * 4, trainer)
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = template or TEMPLATE
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=bpe.get_vocab_size(),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=bpe.token_to_id("<|im_end|>"),
        pad_token_id=bpe.token_to_id("<|endoftext|>"),
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    return folder
