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
