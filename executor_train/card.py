"""The model card of what is published: what it is, how it was trained, how well it does, by which licence.

Form: https://huggingface.co/docs/hub/model-cards. What is not known is left out, never filled in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executor_train.record import TrainingRecord, read_record
from mia.checkpoints import BASES, EXECUTOR, PLANNER, TINY, Base, Checkpoint
from mia.errors import ConfigError, DataError

STATE = "trainer_state.json"
BLANK = "[More Information Needed]"
"""Marks a form that a library put there, and nobody filled in: no card."""
POINTS = 12
"""Rows of the table of curves, at most."""
CURVES = (
    *("loss", "reward", "reward_std", "entropy", "mean_token_accuracy", "eval_loss", "eval_reward"),
    *("health/masked", "health/malformed", "health/searches", "grad_norm", "learning_rate"),
)
"""Columns of that table, in this order, as far as the trainer logged them."""
_ROLES = {"executor": "Executor: it thinks, searches and answers", "planner": "Planner: it plans, and plans once more"}


@dataclass(frozen=True)
class Facts:
    """What a card tells of a model. `base`: its base model's name on the hub; `curve`: what the trainer logged."""

    checkpoint: Checkpoint
    base: str
    licence: str
    record: TrainingRecord | None = None
    curve: Sequence[Mapping[str, Any]] = ()
    evaluations: Sequence[Path] = field(default=())


def facts(checkpoint: Checkpoint, base: str, licence: str, evaluations: Sequence[Path]) -> Facts:
    """Gather what is known of a model from its folder, and the run's that it lies in.

    Args:
        checkpoint: the model.
        base: name of its base model on the hub; empty: from the folder.
        licence: its name on the hub, such as apache-2.0; empty: the base model's.
        evaluations: folders of `mia eval`.

    Raises:
        ConfigError: base model or licence are not known.
        DataError: a file of the folder cannot be read.
    """
    record = read_record(checkpoint.folder)
    base = base or _base(checkpoint, record)
    if not licence:
        by_name = {known.hub.lower(): known.licence for known in (EXECUTOR, PLANNER, TINY)}
        licence = by_name.get(base.lower(), "")
    if not licence:
        raise ConfigError(f"the licence of {base} is not known here", remedy="name it, e.g. --licence apache-2.0")
    return Facts(checkpoint, base, licence, record, _curve(checkpoint.folder), evaluations)


def written(folder: Path) -> str | None:
    """The card that somebody wrote for a folder; None if there is none, or only a library's blank form."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else BLANK
    return None if BLANK in text else text


def card(known: Facts, repo: str) -> str:
    """The card, in Markdown with its head in YAML.

    Raises:
        DataError: an evaluation's folder has no summary.
    """
    sections = [f"# {repo.rpartition('/')[2]}", _what(known), *_use(known, repo), *_training(known)]
    sections += _evaluation(known.evaluations)
    sections.append(f"## Licence\n\n{known.licence}; the base model has its own.")
    return f"---\n{_head(known)}\n---\n\n" + "\n\n".join(sections) + "\n"


def _head(known: Facts) -> str:
    from huggingface_hub import ModelCardData

    base = _known(known.base)
    method = [known.record.method.lower()] if known.record else []
    pictures = base is not None and base.pictures
    made = ModelCardData(
        base_model=known.base,
        license=known.licence,
        library_name="peft" if known.checkpoint.adapter else "transformers",
        pipeline_tag="image-text-to-text" if pictures else "text-generation",
        tags=["mia", *method, *(["lora"] if known.checkpoint.adapter else [])],
    )
    return made.to_yaml()


def _what(known: Facts) -> str:
    kind = "A LoRA adapter of" if known.checkpoint.adapter else "A whole model, trained from"
    role = f", the {_ROLES[known.record.role]}" if known.record else ""
    return (
        f"{kind} [{known.base}](https://huggingface.co/{known.base}){role}, for MIA, the Memory Intelligence Agent "
        "([arXiv 2604.04503](https://arxiv.org/abs/2604.04503))."
    )


def _use(known: Facts, repo: str) -> Sequence[str]:
    role = f" --role {known.record.role}" if known.record else ""
    base = _known(known.base)
    fits = known.record is None or base in BASES[known.record.role]
    more = "" if fits else " --any-model"
    name = repo.rpartition("/")[2]
    return [
        f"## Use\n\n```bash\nmia model fetch {repo}{role}{more} --profile {name}.toml\n"
        f'mia ask --config {name}.toml "Who wrote Ulysses?"\n```'
    ]


def _training(known: Facts) -> Sequence[str]:
    parts = []
    if known.record:
        record = known.record
        parts.append(
            f"## Training\n\nBy {record.method}, on {record.dataset}, seed {record.seed}, with MIA {record.mia}:\n\n"
            f"```bash\n{record.command}\n```"
        )
    table = _curve_table(known.curve)
    if table:
        heading = "" if known.record else "## Training\n\n"
        parts.append(f"{heading}The trainer's curve:\n\n{table}")
    return parts


def _curve_table(log: Sequence[Mapping[str, Any]]) -> str:
    """The first logged step, the last, and some between; nothing is averaged."""
    steps: dict[int, dict[str, Any]] = {}
    for entry in log:
        if isinstance(entry.get("step"), int):
            steps.setdefault(entry["step"], {}).update(entry)
    names = [name for name in CURVES if any(isinstance(row.get(name), int | float) for row in steps.values())]
    if not names:
        return ""
    rows = [steps[step] for step in sorted(steps) if any(name in steps[step] for name in names)]
    if len(rows) > POINTS:
        rows = [rows[round(i * (len(rows) - 1) / (POINTS - 1))] for i in range(POINTS)]
    return _table(["step", *names], [[str(row["step"]), *(_number(row.get(name)) for name in names)] for row in rows])


def _evaluation(runs: Sequence[Path]) -> Sequence[str]:
    from inference.evaluation.folder import read_summary
    from inference.evaluation.report import metrics_table, notices

    parts = []
    for run in runs:
        summary = read_summary(run)
        heading, columns, rows = metrics_table(summary)
        warnings = "".join(f"\n\n> {text}" for text in notices(summary, {"faults": []}))
        title = f"{summary['dataset']}, method {summary['method']}, {summary['questions']} questions"
        parts.append(f"{title}. {heading}:{warnings}\n\n{_table(columns, rows)}")
    return ["## Evaluation\n\n" + "\n\n".join(parts)] if parts else []


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else ""


def _base(checkpoint: Checkpoint, record: TrainingRecord | None) -> str:
    """The name on the hub of a model's base."""
    names = [record.base if record else "", checkpoint.base_name if checkpoint.adapter else ""]
    for name in names:
        known = _known(name)
        if known is not None:
            return known.hub
        if name.count("/") == 1 and not name.startswith(("/", ".")) and not Path(name).exists():
            return name
    if checkpoint.base is not None:
        return checkpoint.base.hub
    raise ConfigError(
        f"{checkpoint.folder}: its base model has no name on the hub ({names[0] or checkpoint.base_name})",
        remedy="name it, --base owner/name",
    )


def _known(name: str) -> Base | None:
    return next((base for base in (EXECUTOR, PLANNER, TINY) if base.hub.lower() == name.lower()), None)


def _curve(folder: Path) -> Sequence[Mapping[str, Any]]:
    """What the trainer logged: in the folder itself, the run's, or that of the run's last checkpoint."""
    checkpoints = sorted(folder.parent.glob(f"checkpoint-*/{STATE}"), key=lambda path: int(path.parent.name[11:]))
    for path in (folder / STATE, folder.parent / STATE, *checkpoints[::-1]):
        if path.is_file():
            try:
                log = json.loads(path.read_text(encoding="utf-8"))["log_history"]
                return [dict(entry) for entry in log]
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise DataError(f"{path} is no state of a trainer: {error!r}", remedy="take it away") from error
    return []
