"""SFT warm start: a LoRA adapter learns to write what the assistant wrote in recorded conversations (TRL's SFTTrainer).

A conversation becomes one sequence: the tokens that serving reads (`mia.chat.local`), with the replies between them as
they would have been sampled, end token included. Only these are trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mia.types import Message

IGNORED = -100
"""Label of a token that is not trained on."""


def sequence(tokenizer: Any, prompt_ids: Any, messages: Sequence[Message], end: int) -> dict[str, list[int]]:
    """One conversation as `input_ids` (T,) and `labels` (T,); a label is `IGNORED` where others wrote.

    Args:
        tokenizer: of the model.
        prompt_ids: tokens of a conversation up to where the reply starts, as serving makes them.
        messages: the conversation.
        end: the token that ends a reply.

    Raises:
        ValueError: the template writes an earlier turn another way once there is a later one.
    """
    ids: list[int] = []
    labels: list[int] = []
    for place, message in enumerate(messages):
        if message.role != "assistant":
            continue
        prompt = prompt_ids(messages[:place])
        if prompt[: len(ids)] != ids:
            raise ValueError("the chat template rewrites earlier turns")
        labels += [IGNORED] * (len(prompt) - len(ids))
        reply = [*tokenizer(message.text, add_special_tokens=False, split_special_tokens=True).input_ids, end]
        ids = prompt + reply
        labels += reply
    return {"input_ids": ids, "labels": labels}


def train(rows: Iterable[dict[str, list[int]]], base: Path, out: Path, **settings: Any) -> None:
    """Train an adapter and save it."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype="bfloat16")
    args = SFTConfig(
        output_dir=str(out / "checkpoints"), max_length=None, packing=False, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, learning_rate=1e-3, lr_scheduler_type="cosine", warmup_steps=10,
        weight_decay=0.0, num_train_epochs=1, logging_steps=5, save_steps=25, save_total_limit=1, report_to=[],
        bf16=False, use_cpu=True, gradient_checkpointing=False, seed=0, dataset_kwargs={},
        train_sampling_strategy="group_by_length", **settings,
    )  # fmt: skip
    peft = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = SFTTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=tokenizer,
        peft_config=peft,
    )
    last = next(iter(sorted((out / "checkpoints").glob("checkpoint-*"))), None)
    trainer.train(resume_from_checkpoint=str(last) if last else None)
    trainer.save_model(str(out))
