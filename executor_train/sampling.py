"""Who samples: the trained model in this process, with its past kept between turns, or TRL's vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from executor_train.waves import Turn
from mia.chat.engine import Engine, Job
from mia.chat.template import Template
from mia.errors import MiaError
from mia.types import Reply, TokenRecord, Usage


class EngineSampler:
    """Samples with the model as it is now, on the CPU or one GPU; the engine is that of serving.

    Args:
        engine: over the trained model; what it keeps of earlier weights must have been forgotten.
        batch: turns that are decoded at once, at most.
    """

    def __init__(self, engine: Engine, batch: int) -> None:
        self.name = engine.name
        self.context = engine.context
        self.template = engine.template
        self.ends = frozenset(engine.ends)
        self._engine = engine
        self._batch = batch

    def sample(self, turns: Sequence[Turn]) -> list[Reply | MiaError]:
        """See `Sampler.sample`."""
        jobs = [Job(turn.messages, turn.sampling, given=turn.ids) for turn in turns]
        for start in range(0, len(jobs), self._batch):
            self._engine.run(jobs[start : start + self._batch])
        return [_outcome(job) for job in jobs]

    def anyone(self, here: bool) -> bool:
        """See `Sampler.anyone`; each process samples alone."""
        return here


def _outcome(job: Job) -> Reply | MiaError:
    error = job.future.exception()
    if error is None:
        return job.future.result()
    if isinstance(error, MiaError):
        return error
    raise error


class TrlSampler:
    """Samples with the back-end of a GRPOTrainer: vLLM, colocated or a server. The limit of a reply is TRL's own.

    Args:
        trainer: the trainer.
        template: of its model.
        context: window in tokens.
    """

    def __init__(self, trainer: Any, template: Template, context: int) -> None:
        self.name = "policy"
        self.context = context
        self.template = template
        self.ends = frozenset(trainer.eos_token_ids)
        self._trainer = trainer

    def sample(self, turns: Sequence[Turn]) -> list[Reply | MiaError]:
        """See `Sampler.sample`."""
        from executor_train.pictures import opened

        images = [opened(image for message in turn.messages for image in message.images) or None for turn in turns]
        sampled, logprobs = self._trainer._generate_single_turn(
            [turn.ids for turn in turns], images if any(images) else None, {}, num_generations=1
        )
        return [self._reply(*made) for made in zip(turns, sampled, logprobs, strict=True)]

    def anyone(self, here: bool) -> bool:
        """See `Sampler.anyone`; a wave is sampled by all processes together."""
        import torch

        flag = torch.tensor([here], device=self._trainer.accelerator.device)
        return bool(self._trainer.accelerator.gather(flag).any())

    def _reply(self, turn: Turn, ids: list[int], logprobs: list[float]) -> Reply:
        ended = ids[-1] in self.ends
        text = self.template.decoded(ids[:-1] if ended else ids)
        cuts = [text.index(stop) for stop in turn.sampling.stop if stop in text]
        text = text[: min(cuts)] if cuts else text
        return Reply(
            text=text,
            finish_reason="stop" if ended or cuts else "length",
            model=self.name,
            usage=Usage(prompt_tokens=len(turn.ids), completion_tokens=len(ids), calls=1),
            tokens=TokenRecord(
                prompt_ids=tuple(turn.ids), completion_ids=tuple(ids),
                sampled_mask=(True,) * len(ids), logprobs=tuple(logprobs),
            ),
        )  # fmt: skip
