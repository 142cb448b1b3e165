"""The trainer: TRL's `GRPOTrainer` whose generation step plays rollouts by waves (see `executor_train.waves`).

TRL keeps sampling by vLLM, weight sync, loss, logging and checkpoints. Rewards come with the rollouts. A rollout in
which a call failed leaves its group (no reward, no loss) and is counted; what it was and what all others did goes to
`rollouts/` in the output folder. Left out: what a rollout plays (a `Game`), reading configs (`executor_train.cli`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather
from datasets import Dataset
from tqdm import tqdm
from trl.models.utils import unwrap_model_for_generation
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from executor_train.game import Game, Outcome, Row
from executor_train.head import LearnedHead
from executor_train.microbatch import parts, shares
from executor_train.pictures import opened, picture_processor
from executor_train.reward import health
from executor_train.rollout import Rollout
from executor_train.sampling import EngineSampler, TrlSampler
from executor_train.waves import Sampler, Seat, Table
from mia.chat.engine import Engine
from mia.chat.template import Template
from mia.chat.vision import Eyes
from mia.errors import ConfigError, MiaError, ModelError
from mia.types import Failure, Message

Played = tuple[Outcome, Rollout] | Failure
"""How a rollout ended, with its tokens; or what failed."""


class WaveTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL ships no types
    """GRPO over rollouts of a game.

    Args:
        game: what is played.
        model, tokenizer: what is trained; a model that reads pictures comes with its `eyes`.
        args: TRL's settings. `max_completion_length` is not a limit here, save with vLLM: replies, turns and the window
            have their own.
        rows, eval_rows: training and validation data.
        context: window in tokens that a conversation may fill while it is played.
        limit: tokens of a conversation that are trained on; its end beyond is cut off.
        batch: turns that are decoded at once, at most.
        backward: rows of a batch whose loss is computed at once; memory follows them, the result does not. None: all.
        peft_config: of a new adapter, or None.
        eyes: prepares pictures, for sampling and for the loss.
    """

    _tag_names = ["mia", "grpo"]  # noqa: RUF012  # TRL reads it so

    def __init__(
        self,
        game: Game,
        model: Any,
        tokenizer: Any,
        args: GRPOConfig,
        rows: Sequence[Row],
        eval_rows: Sequence[Row] = (),
        *,
        context: int,
        limit: int,
        batch: int = 64,
        backward: int | None = 1,
        peft_config: Any = None,
        eyes: Eyes | None = None,
        callbacks: Any = None,
    ) -> None:
        self.game = game
        self.context = context
        self.limit = limit
        self._batch = batch
        self._backward = backward
        self._eyes = eyes
        self._names = list(game.weights)
        check(tokenizer, args)
        super().__init__(
            model=model,
            reward_funcs=[_part(name) for name in self._names],
            args=args,
            train_dataset=_dataset(rows),
            eval_dataset=_dataset(eval_rows) if eval_rows else None,
            processing_class=picture_processor(eyes.processor, tokenizer) if eyes else tokenizer,
            peft_config=peft_config,
            callbacks=callbacks,
        )
        self._head = LearnedHead(self.model, self.temperature, self._entropy_bonus_enabled)
        self.reward_weights = torch.tensor([game.weights[name] for name in self._names], dtype=torch.float32)
        self.runner = asyncio.Runner()
        """The one loop of all steps: partners keep their connections."""
        self._inputs: list[dict[str, Any]] = []
        self._played: list[Played] = []
        self._given: list[tuple[Rollout, float]] | None = None
        self._advantages: Sequence[float | None] = ()

    def close(self) -> None:
        """End what rollouts left running."""
        self.runner.close()

    # ------------------------------------------------------------------------------------------ without `train`

    def play(self, rows: Sequence[Row], seeds: Sequence[int]) -> list[Played]:
        """Play rows with the weights as they are now, each with its own seed of 0 to 2^63."""
        with self._sampler() as sampler:
            return self.runner.run(self._play(Table(sampler), rows, seeds, training=True))

    def step_on(
        self, rollouts: Sequence[Rollout], rewards: Sequence[float], advantages: Sequence[float | None] = ()
    ) -> tuple[float, float]:
        """One step of the optimiser on rollouts that were played before; gives the loss and the norm of the gradient.

        The importance ratio is that of the weights now to the log-probabilities that were recorded when the rollouts
        were sampled, so they may stem from earlier weights.

        Args:
            rollouts: `num_generations` of each question side by side.
            rewards: NaN for a rollout that leaves its group.
            advantages: in the place of those that follow from the group; None leaves them.
        """
        self._given = list(zip(rollouts, rewards, strict=True))
        self._advantages = advantages
        self.current_gradient_accumulation_steps = 1
        try:
            loss = self.training_step(self.model_wrapped, [{"prompt": ""} for _ in rollouts], None)
        finally:
            self._given = None
        norm = self._get_grad_norm(
            self.model_wrapped, self._clip_grad_norm(self.model_wrapped) if self.args.max_grad_norm > 0 else None
        )
        self.optimizer.step()
        self.lr_scheduler.step()
        self.model_wrapped.zero_grad()
        self.state.global_step += 1
        return float(loss), float(norm)

    # ------------------------------------------------------------------------------------------ what TRL calls

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._inputs = inputs
        try:
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        finally:
            self.tools: list[Any] = []
        played = [p[1] for p in self._played if not isinstance(p, Failure)]
        seen = played if self._given is None else [rollout for rollout, _ in self._given]
        if any(rollout.images for rollout in seen) and "pixel_values" not in output:
            raise RuntimeError("TRL dropped pictures: their features and their tokens do not match")
        if self._given is None:
            self._record(output["advantages"].tolist())
        else:
            output["old_per_token_logps"] = output["sampling_per_token_logps"]
            for place, advantage in enumerate(self._advantages):
                if advantage is not None:
                    output["advantages"][place] = advantage
        return output

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a batch, part by part; parts but the last are taken back at once.

        DeepSpeed takes a step with each way back, and an entropy bonus does not add up: these get the whole batch.
        """
        size, rows = self._backward, inputs["prompt_ids"].size(0)
        whole = self.is_deepspeed_enabled or self._entropy_bonus_enabled or not model.training
        if size is None or size >= rows or whole or shares(self.loss_type, inputs, inputs) is None:
            return self._compute_loss(model, inputs)
        made = list(parts(inputs, size))
        before = torch.zeros((), device=self.accelerator.device)
        for part in made[:-1]:
            with self.accelerator.no_sync(model):
                loss = self._compute_loss(model, part) * shares(self.loss_type, inputs, part)
                self.accelerator.backward(loss)
            before += loss.detach()
        return self._compute_loss(model, made[-1]) * shares(self.loss_type, inputs, made[-1]) + before

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        with self._head.only(inputs.get("tool_mask")):
            return super()._compute_loss(model, inputs)

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        """Play the rows of a batch, or take rollouts that were; see the same method of TRL for what is returned."""
        if self._given is not None:
            return self._packed([rollout for rollout, _ in self._given])
        mode = "train" if self.model.training else "eval"
        rows = [Row.model_validate_json(given["row"]) for given in self._inputs]
        first = self.accelerator.process_index * len(rows)
        seeds = [self._seed(row, first + index, mode == "train") for index, row in enumerate(rows)]
        with self._sampler() as sampler:
            table = Table(sampler)
            self._played = self.runner.run(self._play(table, rows, seeds, mode == "train"))
        rollouts = [
            self._empty(row) if isinstance(p, Failure) else p[1] for p, row in zip(self._played, rows, strict=True)
        ]
        self._measure(mode, table, rollouts)
        return self._packed(rollouts)

    def _packed(self, rollouts: Sequence[Rollout]) -> tuple[Any, ...]:
        end = self._tokenizer.eos_token_id
        completions = [list(rollout.completion_ids) or [end] for rollout in rollouts]
        masks = [[int(flag) for flag in rollout.sampled] or [0] for rollout in rollouts]
        logprobs = [list(rollout.logprobs) or [0.0] for rollout in rollouts]
        images = [opened(rollout.images) for rollout in rollouts]
        if any(images):
            self.tools = [opened]  # makes TRL take pictures of the whole conversation into the forward pass
        template = Template(self._tokenizer, "policy")
        texts = [template.decoded(ids, control=True) for ids in completions]
        ids = [list(rollout.prompt_ids) for rollout in rollouts]
        seen = images if any(images) else None
        return ids, completions, masks, texts, logprobs, {}, seen, images

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        if self._given is not None:
            return torch.tensor([[reward] for _, reward in self._given], device=self.accelerator.device)
        nothing = dict.fromkeys(self._names, float("nan"))
        scores = [nothing if isinstance(played, Failure) else played[0].scores for played in self._played]
        values = [[each[name] for name in self._names] for each in scores]
        return gather(torch.tensor(values, dtype=torch.float32, device=self.accelerator.device))

    # ------------------------------------------------------------------------------------------ playing

    async def _play(self, table: Table, rows: Sequence[Row], seeds: Sequence[int], training: bool) -> list[Played]:
        quiet = self.args.disable_tqdm or not self.accelerator.is_main_process
        with tqdm(total=len(rows), desc="rollouts", file=sys.stderr, leave=False, disable=quiet) as bar:

            async def one(row: Row, seat: Seat) -> tuple[Outcome, Rollout]:
                outcome = await self.game.play(row, seat, training)
                bar.update()
                return outcome, self._finished(seat)

            ended = await table.play([one(row, table.seat(seed)) for row, seed in zip(rows, seeds, strict=True)])
        return [each.failure() if isinstance(each, MiaError) else each for each in ended]

    def _seed(self, row: Row, index: int, training: bool) -> int:
        """A seed for one rollout that does not depend on how rollouts are spread over processes, or on restarts."""
        name = f"{self.args.seed}/{training}/{self.state.global_step}/{row.example.question.id}/{index}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")

    def _finished(self, seat: Seat) -> Rollout:
        conversation = seat.conversation
        placeholder = self._eyes.placeholder if self._eyes else None
        widths = [picture.tokens for picture in self._eyes.read(conversation.images)] if self._eyes else []
        rollout = conversation.finished(self.limit, placeholder, widths)
        if not any(rollout.sampled):
            raise ModelError(
                f"the first prompt has {len(rollout.prompt_ids)} tokens; {self.limit} can be trained on",
                remedy="raise rollout.limit, or shorten the prompt",
                code="context_length",
            )
        return rollout

    def _empty(self, row: Row) -> Rollout:
        """What stands in a batch for a rollout that failed: nothing of it is trained on."""
        ids = Template(self._tokenizer, "policy").ids([Message(role="user", text=row.example.question.text)])
        return Rollout(tuple(ids), (), (), ())

    @contextmanager
    def _sampler(self) -> Iterator[Sampler]:
        template = Template(self._tokenizer, "policy")
        if self.use_vllm:
            yield TrlSampler(self, template, self.context)
            return
        with (
            unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                gather_deepspeed3_params=self.args.ds3_gather_for_generation,
                gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
            ) as unwrapped,
            self._dist.summon_full_params(self.model_wrapped, recurse=False),
        ):
            model = unwrapped.get_base_model() if hasattr(unwrapped, "get_base_model") else unwrapped
            training = model.training
            model.eval()  # no dropout, and no gradient checkpointing, which would switch the cache off
            try:
                keep = self.context * self.args.generation_batch_size
                yield EngineSampler(
                    Engine(model, self._tokenizer, "policy", self.context, self._eyes, keep), self._batch
                )
            finally:
                model.train(training)

    # ------------------------------------------------------------------------------------------ what is told

    def _measure(self, mode: str, table: Table, rollouts: Sequence[Rollout]) -> None:
        """Log what TRL's own generation would, and what tells of the rollouts' health."""
        sampled = torch.tensor([sum(rollout.sampled) for rollout in rollouts], device=self.accelerator.device)
        whole = torch.tensor([len(r.completion_ids) for r in rollouts], device=self.accelerator.device)
        prompts = torch.tensor([len(r.prompt_ids) for r in rollouts], device=self.accelerator.device)
        sampled, whole, prompts = (self.accelerator.gather(each) for each in (sampled, whole, prompts))
        if mode == "train":
            self.state.num_input_tokens_seen += int((prompts + whole).sum())
        metrics = self._metrics[mode]
        metrics["num_tokens"] = [self.state.num_input_tokens_seen]
        metrics["completions/mean_length"].append(sampled.float().mean().item())
        metrics["completions/max_length"].append(sampled.max().item())
        metrics["health/masked"].append(1 - sampled.sum().item() / max(1, whole.sum().item()))
        metrics["time/sampling"].append(sum(table.sampled_s))
        metrics["time/between"].append(sum(table.between_s))
        metrics["time/waves"].append(len(table.sampled_s))
        dropped = [float(isinstance(played, Failure)) for played in self._played]
        self._pending_metrics["health/dropped"].extend(dropped)
        for played in self._played:
            if not isinstance(played, Failure):
                self._pending_metrics["health/cut"].append(float(played[1].cut))
                for name, value in health(played[0].run).items():
                    self._pending_metrics[f"health/{name}"].append(value)

    def _record(self, advantages: Sequence[float]) -> None:
        """Write the rollouts of a step; a step that is played again replaces its file."""
        mode = "train" if self.model.training else "eval"
        folder = Path(self.args.output_dir) / "rollouts"
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{mode}-{self.state.global_step:06d}-{self.accelerator.process_index}.jsonl"
        left = {"steps": {"__all__": {"reply": {"tokens"}}}}
        with (folder / name).open("w", encoding="utf-8") as file:
            for given, played, advantage in zip(self._inputs, self._played, advantages, strict=True):
                if isinstance(played, Failure):
                    line: dict[str, Any] = {"failure": played.model_dump(mode="json")}
                else:
                    outcome, rollout = played
                    tokens = {
                        name: getattr(rollout, name) for name in ("prompt_ids", "completion_ids", "sampled", "logprobs")
                    }
                    line = {"scores": outcome.scores, "advantage": advantage, "tokens": tokens}
                    line["run"] = outcome.run.model_dump(mode="json", exclude=left)
                file.write(json.dumps({"prompt": given["prompt"], **line}, ensure_ascii=False) + "\n")


def check(tokenizer: Any, args: GRPOConfig) -> None:
    """Refuse what would make training differ from serving, before anything is loaded on a device.

    Raises:
        ConfigError: a setting that is not kept to here, or a chat template that rewrites earlier turns.
    """
    if args.top_k or args.min_p or args.repetition_penalty != 1.0:
        raise ConfigError("grpo: top_k, min_p and repetition_penalty are not kept to", remedy="leave them out")
    check_template(Template(tokenizer, "the model"))


def check_template(template: Template) -> None:
    """Refuse a chat template that rewrites earlier turns.

    Raises:
        ConfigError: it does (code `bad_template`).
    """
    if not keeps_turns(template):
        raise ConfigError(
            "the chat template rewrites earlier turns, so what is trained would not be what is served",
            remedy='set policy.template = "chatml"; it is saved with the checkpoint',
            code="bad_template",
        )


def keeps_turns(template: Template) -> bool:
    """Whether a chat template leaves replies as they were written, thinking and white space too."""
    said = ("<think>a</think>b", "<think>\na\n</think>\n\n b \n", "<answer>c</answer>")
    messages = [Message(role="user", text="q")]
    before = template.text(messages)
    for reply in said:
        messages += [Message(role="assistant", text=reply), Message(role="user", text="q")]
        after = template.text(messages)
        if not after.startswith(before + reply):
            return False
        before = after
    return True


def _dataset(rows: Sequence[Row]) -> Dataset:
    return Dataset.from_list([{"prompt": row.example.question.text, "row": row.model_dump_json()} for row in rows])


def _part(name: str) -> Callable[..., list[float]]:
    """What TRL takes the name of a part of the reward from; its values come with the rollouts."""

    def part(**_: Any) -> list[float]:
        raise NotImplementedError(name)

    part.__name__ = name
    return part
