"""What all commands that train by GRPO share: their words, TRL's settings, the model, the loop around the trainer.

Left out: what is played (each role's own command) and the trainer (`executor_train.grpo`).
"""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from executor_train.config import GrpoConfig, PolicyConfig
from executor_train.record import TrainingRecord, base_of, dataset_of, write_record
from inference.cli import read_profile
from mia.checkpoints import Trained
from mia.cli import parse, parser
from mia.errors import ConfigError, ModelError
from mia.types import Sampling

if TYPE_CHECKING:
    from executor_train.game import Game, Row
    from inference.datasets.config import DatasetConfig
    from mia.examples import Example

C = TypeVar("C", bound=GrpoConfig)


def words(verb: str, about: str, examples: Sequence[str]) -> ArgumentParser:
    """The parser of a command that trains."""
    more = "Any setting can be given as a dotted flag; those of [grpo] are TRL's own."
    made = parser(verb, f"{about}\n{more}", examples)
    made.add_argument("config", help="TOML file, or name of a profile in configs/")
    made.add_argument("--out", type=Path, metavar="DIR", help="folder of checkpoints, rollouts and logs")
    made.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the folder")
    made.add_argument(
        "--dry-run", action="store_true", help="print memory for each GPU and tokens of a step; train not"
    )
    made.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs that --dry-run reckons with")
    made.add_argument("--sharded", action="store_true", help="--dry-run: ZeRO-3 or FSDP spreads the model over them")
    return made


def run(
    made: ArgumentParser,
    role: Trained,
    kind: type[C],
    argv: Sequence[str] | None,
    rows_of: Callable[[C, DatasetConfig, int], list[Row]],
    game: Callable[[C, Any], AbstractContextManager[Game]],
) -> int:
    """A command that trains, from its words to the saved model; 0 when all steps were taken.

    Args:
        made: its parser, from `words`.
        role: which one learns.
        kind: its config.
        argv: its words; None: those of the process.
        rows_of: the first rows of a dataset, 0 for all, as the role wants them.
        game: what is played, opened, with TRL's settings.
    """
    given = sys.argv[1:] if argv is None else argv
    args, flags = parse(made, given)
    config = read_profile(kind, args.config, flags)
    settings = grpo_settings(config, args)
    if args.dry_run:
        return dry_run(config, settings, args)
    rows = rows_of(config, config.dataset, config.rollout.rows)
    checked = rows_of(config, config.validation, config.rollout.validation_rows) if config.validation else []
    record = TrainingRecord(
        command=f"{made.prog} {shlex.join(given)}", role=role, method="GRPO", base=base_of(config.policy),
        dataset=dataset_of(config.dataset), seed=settings.seed,
    )  # fmt: skip
    return train(config, settings, args, rows, checked, game(config, settings), record)


def examples_of(dataset: DatasetConfig, first: int) -> Sequence[Example]:
    """The first examples of a dataset; 0: all."""
    from inference.datasets import load_dataset

    examples = load_dataset(dataset).examples
    return examples[:first] if first else examples


def grpo_settings(config: GrpoConfig, args: Namespace) -> Any:
    """TRL's settings; what it does not know is refused.

    Raises:
        ConfigError: no folder, or a setting that there is not.
    """
    if args.out is None and not args.dry_run:
        raise ConfigError("no folder for what is trained", remedy="give --out DIR")
    from trl.trainer.grpo_config import GRPOConfig

    given = {"output_dir": str(args.out or "."), **{name: read_value(value) for name, value in config.grpo.items()}}
    if args.dry_run:
        given |= {"report_to": [], "bf16": False, "use_cpu": True}
    with trl_refuses("grpo", "GRPOConfig"):
        return GRPOConfig(**given)


@contextmanager
def trl_refuses(section: str, kind: str) -> Iterator[None]:
    """Says of which section it was when TRL does not know a setting, or does not take its value.

    Raises:
        ConfigError: see above.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ConfigError(f"[{section}]: {error}", remedy=f"see TRL's {kind} for the settings there are") from error


def read_value(value: Any) -> Any:
    """Flags come as text, since TRL's sections have no types here: numbers, true and false, lists are read as JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def dry_run(config: GrpoConfig, settings: Any, args: Namespace) -> int:
    """Print what a step needs."""
    from executor_train.estimate import estimate, shape_of

    rollout, size = config.rollout, 4 if config.policy.dtype == "float32" else 2
    place = _place(config.policy)
    with checkpoint_read(place):
        shape = shape_of(place, config.policy.lora_rank)
    made = estimate(shape, settings, size, rollout, args.gpus, args.sharded)
    print("\n".join(made.lines()))
    return 0


def train(
    config: GrpoConfig,
    settings: Any,
    args: Namespace,
    rows: Sequence[Row],
    checked: Sequence[Row],
    game: AbstractContextManager[Game],
    record: TrainingRecord,
) -> int:
    """Train on what a game scores, and save with the record of it; prints the folder."""
    from executor_train.grpo import WaveTrainer, check

    model, tokenizer, eyes = policy(config.policy)
    check(tokenizer, settings)  # before anything that takes long
    with game as played:
        trainer = WaveTrainer(
            played, model, tokenizer, settings, rows, checked,
            context=config.rollout.context, limit=config.rollout.limit, batch=config.rollout.batch,
            backward=config.rollout.backward, peft_config=adapter(config.policy), eyes=eyes,
        )  # fmt: skip
        last = last_checkpoint(args.out) if args.resume else None
        try:
            trainer.train(resume_from_checkpoint=last)
            print(save(trainer, args.out, record))
        finally:
            trainer.close()
    return 0


def save(trainer: Any, out: Path, record: TrainingRecord) -> Path:
    """Save what was trained as `final` in a folder, with the record of it: whole, or not at all."""
    final, part = out / "final", out / "final.part"
    trainer.save_model(str(part))
    trainer.accelerator.wait_for_everyone()
    if trainer.accelerator.is_main_process:
        trainer.state.save_to_json(str(part / "trainer_state.json"))
        write_record(part, record)
        shutil.rmtree(final, ignore_errors=True)
        part.replace(final)
    return final


def last_checkpoint(out: Path) -> str | None:
    """The last checkpoint of TRL's in a folder."""
    from transformers.trainer_utils import get_last_checkpoint

    found: str | None = get_last_checkpoint(str(out)) if out.is_dir() else None
    return found


@contextmanager
def checkpoint_read(place: str) -> Iterator[None]:
    """Says of which checkpoint it was when transformers cannot read one.

    Raises:
        ModelError: see above (code `no_model`).
    """
    try:
        yield
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{place} cannot be read: {error}",
            remedy="give the folder of a whole checkpoint, or connect; `mia model fetch` brings one from the hub",
            code="no_model",
        ) from error


def policy(config: PolicyConfig) -> tuple[Any, Any, Any]:
    """Model, tokenizer, and eyes if it reads pictures.

    An adapter to start from goes on being trained as it is, so that what is saved fits the base model; only where all
    weights are trained it is merged in.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    from mia import embedded
    from mia.chat.vision import MODEL_TYPES, Eyes

    place = _place(config)
    with checkpoint_read(place):
        tokenizer = AutoTokenizer.from_pretrained(place)
        sees = AutoConfig.from_pretrained(place).model_type in MODEL_TYPES
        kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        model = kind.from_pretrained(place, dtype=config.dtype, attn_implementation=config.attention)
    if config.template == "chatml":
        if sees:
            raise ConfigError("plain ChatML has no pictures", remedy='set policy.template = "own"')
        tokenizer.chat_template = embedded.TEMPLATE
    eyes = Eyes(place, model, config.min_pixels, config.max_pixels) if sees else None
    if config.adapter is not None:
        model = _begun(model, embedded.adapter(config.adapter), trainable=config.lora_rank > 0)
    return model, tokenizer, eyes


def _begun(model: Any, folder: Path, trainable: bool) -> Any:
    from peft import PeftModel

    begun = PeftModel.from_pretrained(model, folder, is_trainable=trainable)
    # PEFT freezes the base model, and leaves it so when it is merged.
    return begun if trainable else begun.merge_and_unload().requires_grad_(True)


def _place(config: PolicyConfig) -> str:
    from mia import embedded

    return str(embedded.ensure()) if config.path == "embedded:" else config.path


def adapter(config: PolicyConfig) -> Any:
    """PEFT's config of a new adapter; None if all weights are trained, or an adapter that is there already."""
    if not config.lora_rank or config.adapter is not None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=config.lora_rank, lora_alpha=config.lora_alpha, lora_dropout=0.0, target_modules="all-linear",
        task_type="CAUSAL_LM",
    )  # fmt: skip


def own_sampling(sampling: Sampling, settings: Any) -> Sampling:
    """How the trained role samples: as [grpo] says, without penalties."""
    free = {"presence_penalty": 0.0, "repetition_penalty": None, "seed": None}
    return sampling.model_copy(update={"temperature": settings.temperature, "top_p": settings.top_p, **free})


async def closed(*opened: Any) -> None:
    """Close what was opened."""
    await asyncio.gather(*(each.aclose() for each in opened))
