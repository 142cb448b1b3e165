"""For tests of training: a game of two turns with a tool in between, its rows, a trainer over a tiny random model."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from executor_train.game import Outcome, Row
from inference.runs import Run
from mia.chat import ChatModel
from mia.errors import ToolError
from mia.examples import Example, Reference
from mia.types import Message, Observation, Question, Reply, Role, Sampling, Step, ToolCall, as_message

WORDS = ("river", "stone", "hill", "bridge", "tower", "field", "lake", "road")


def rows(count: int, images: Sequence[str] = ()) -> list[Row]:
    """Rows with questions of different lengths."""
    return [
        Row(
            example=Example(
                question=Question(
                    id=str(n), text=f"Where is the {' '.join(WORDS[: n % 8 + 1])}?", images=tuple(images)
                ),
                reference=Reference(answers=("here",)),
            )
        )
        for n in range(count)
    ]


class TwoTurns:
    """The model writes, is shown a tool's text, writes again. The score is a number made of what it wrote.

    Args:
        tokens: limit of a reply.
        failing: ids of questions whose tool fails, in the rollouts that `odd` picks by what was written first.
        image: shown with the tool's text.
    """

    role: Role = "executor"
    weights: Mapping[str, float] = {"correct": 0.7, "tool": 0.2, "format": 0.1}

    def __init__(self, tokens: int = 12, failing: Sequence[str] = (), image: str = "") -> None:
        self.sampling = Sampling(temperature=1.0, max_tokens=tokens)
        self.failing = failing
        self.image = image
        self.seen: list[tuple[Message, ...]] = []

    async def play(self, row: Row, model: ChatModel, training: bool) -> Outcome:
        """See `Game.play`."""
        question = row.example.question
        told = (Message(role="user", text=question.text, images=question.images),)
        first = await model.generate(told, self.sampling)
        if question.id in self.failing and number(first) < 0.5:
            raise ToolError("the tool is down")
        found = f"{question.id} <|im_end|> of {WORDS[int(number(first) * 8)]}"
        images = (self.image,) if self.image else ()
        shown = Message(role="user", text=f"<tool_response>\n{found}\n</tool_response>", images=images)
        whole = (*told, as_message(first), shown)
        second = await model.generate(whole, self.sampling)
        self.seen.append((*whole, as_message(second)))
        calls = (ToolCall(id="t0c0", name="search", arguments={"query": "x"}),)
        steps = (
            Step(role="executor", purpose="act", told=told, reply=first, calls=calls,
                 observations=(Observation(call_id="t0c0", text="x"),)),
            Step(role="executor", purpose="act", told=(shown,), reply=second),
        )  # fmt: skip
        run = Run(id=question.id, question=question, steps=steps, answer="x", stop_reason="answered")
        return Outcome(run, {"correct": number(second), "tool": number(first), "format": 1.0})


def number(reply: Reply) -> float:
    """A number from 0 to 1 made of a text."""
    return hashlib.sha256(reply.text.encode()).digest()[0] / 256


def trainer(place: Path, out: Path, game: Any, count: int = 2, eyes: bool = False, **settings: Any) -> Any:
    """A trainer in float32 without schedule: groups of 4, all rows of a batch in one step."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer
    from trl import GRPOConfig

    from executor_train.grpo import WaveTrainer
    from mia.chat.vision import Eyes

    plain: dict[str, Any] = {
        "output_dir": str(out), "per_device_train_batch_size": 8, "num_generations": 4, "learning_rate": 1e-2,
        "lr_scheduler_type": "constant", "max_steps": 2, "logging_steps": 1, "report_to": [], "use_cpu": True,
        "bf16": False, "gradient_checkpointing": False, "save_strategy": "no", "disable_tqdm": True, "seed": 3,
        "beta": 0.0, "max_grad_norm": 1.0, "shuffle_dataset": False, "dataloader_pin_memory": False,
    }  # fmt: skip
    own = {
        key: settings.pop(key) for key in ("limit", "context", "batch", "backward", "peft_config") if key in settings
    }
    data = settings.pop("rows", None) or rows(count)
    kind = AutoModelForImageTextToText if eyes else AutoModelForCausalLM
    model = kind.from_pretrained(place, dtype="float32")
    return WaveTrainer(
        game, model, AutoTokenizer.from_pretrained(place), GRPOConfig(**{**plain, **settings}), data,
        eyes=Eyes(str(place), model, None, 56 * 56) if eyes else None, **{"context": 1024, "limit": 1024, **own},
    )  # fmt: skip


def main(place: str, out: str, each: str) -> None:
    """Three steps in as many processes as there are; the first one writes the curve."""
    made = trainer(Path(place), Path(out), TwoTurns(), count=4, max_steps=3, per_device_train_batch_size=int(each))
    made.train()
    made.close()
    if made.accelerator.is_main_process:
        lines = [line for line in made.state.log_history if "reward" in line]
        kept = [{name: line[name] for name in ("reward", "grad_norm", "health/masked", "entropy")} for line in lines]
        Path(out, "curve.json").write_text(json.dumps(kept), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
