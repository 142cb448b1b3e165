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


def chat_llama(
    folder: Path, seed: int = 0, positions: int = 2048, template: str | None = None, tied: bool = False
) -> Path:
    """A Llama with 32 dimensions and 2 layers, a byte vocabulary with some merges, and ChatML's control tokens.

    If `tied`, it reads and writes tokens by the same matrix.
    """
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
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=bpe.token_to_id("<|im_end|>"),
        pad_token_id=bpe.token_to_id("<|endoftext|>"),
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    return folder


def lora(base: Path, folder: Path, targets: list[str] | str, seed: int = 3) -> Path:
    """A LoRA adapter of rank 2 (PEFT's) for a model; random in both factors, so that it changes what the model says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    sees = AutoConfig.from_pretrained(base).model_type == "qwen2_5_vl"
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    model = get_peft_model(
        kind.from_pretrained(base, dtype=torch.float32),
        LoraConfig(r=2, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM"),
    )
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.5)
    model.save_pretrained(folder)
    return folder
