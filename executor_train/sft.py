"""SFT warm start: a model learns to write what a role wrote in recorded conversations, by TRL's `SFTTrainer`.

A conversation becomes one sequence: the tokens that serving reads (`mia.chat.template`), with the replies between them
as they would have been sampled, end token included. Only these are trained on. Left out: making traces
(`executor_train.traces`) and reading configs (`executor_train.sft_cli`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from executor_train.record import TrainingRecord
from mia.chat.template import Template
from mia.errors import ConfigError
from mia.types import Message

IGNORED = -100
"""Label of a token that is not trained on."""


def sequence(template: Template, messages: Sequence[Message], end: int) -> dict[str, list[int]]:
    """One conversation of T tokens as `input_ids` (T,) and `labels` (T,); a label is `IGNORED` where others wrote.

    Args:
        template: of the model.
        messages: the conversation; what follows the last reply is left out.
        end: the token that ends a reply.

    Raises:
        ConfigError: the template writes an earlier turn another way once there is a later one.
    """
    ids: list[int] = []
    labels: list[int] = []
    for place, message in enumerate(messages):
        if message.role != "assistant":
            continue
        prompt = template.ids(messages[:place])
        if prompt[: len(ids)] != ids:
            raise ConfigError(
                "the chat template rewrites earlier turns", remedy='set policy.template = "chatml"', code="bad_template"
            )
        labels += [IGNORED] * (len(prompt) - len(ids))
        reply = [*template.plain(message.text), end]
        ids = prompt + reply
        labels += reply
    return {"input_ids": ids, "labels": labels}


def first_reply(messages: Sequence[Message]) -> Sequence[Message]:
    """A conversation up to its first reply."""
    end = next((place for place, message in enumerate(messages) if message.role == "assistant"), len(messages))
    return messages[: end + 1]


def sequences(
    template: Template, conversations: Iterable[Sequence[Message]], end: int, limit: int
) -> tuple[list[dict[str, list[int]]], int]:
    """All conversations as `sequence` makes them, and how many were left out for being longer than `limit` tokens."""
    made = [sequence(template, messages, end) for messages in conversations]
    kept = [each for each in made if len(each["input_ids"]) <= limit]
    return kept, len(made) - len(kept)


def train(
    rows: Sequence[dict[str, list[int]]],
    model: Any,
    tokenizer: Any,
    args: Any,
    adapter: Any,
    last: str | None,
    record: TrainingRecord,
) -> Path:
    """Train on sequences, and save what was trained.

    Args:
        rows: see `sequence`.
        model, tokenizer: as transformers loads them.
        args: TRL's `SFTConfig`.
        adapter: PEFT's config of a new adapter; None trains all weights.
        last: checkpoint to go on from.
        record: of this training, saved with it.

    Returns:
        The folder of the adapter, or of the whole model: `final` in the output folder.
    """
    from datasets import Dataset
    from trl.trainer.sft_trainer import SFTTrainer

    from executor_train.head import LearnedHead
    from executor_train.training import save

    trainer = SFTTrainer(
        model=model, args=args, train_dataset=Dataset.from_list(list(rows)), processing_class=tokenizer,
        peft_config=adapter,
    )  # fmt: skip
    LearnedHead(trainer.model)
    trainer.train(resume_from_checkpoint=last)
    trainer.save_state()
    return save(trainer, Path(args.output_dir), record)
