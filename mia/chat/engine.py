"""A loaded checkpoint: conversations become tokens (and pictures), batches become replies. Used by `mia.chat.local`.

One engine is used from one thread. Left out: everything about waiting, threads and callers.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mia.chat.template import Template
from mia.chat.vision import MODEL_TYPES, Eyes, Picture
from mia.errors import MiaError, ModelError
from mia.types import Message, Reply, Sampling, TokenRecord, Usage

if TYPE_CHECKING:
    import torch

    from mia.chat.cache import Layers


@dataclass(eq=False)
class Job:
    """A request and what was sampled for it. The caller may cancel its future at any time."""

    messages: tuple[Message, ...]
    sampling: Sampling
    future: Future[Reply] = field(default_factory=Future)
    started: float = field(default_factory=time.perf_counter)
    given: list[int] | None = None
    """Tokens of `messages`, with one placeholder for each picture, where they are known and not to be made anew."""
    prompt: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    """The prompt, with the mark of its picture in the place of each placeholder: what is equal was read alike."""
    ahead: int = 0
    """How far positions are ahead of indices after the prompt: a picture takes fewer positions than tokens."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    limit: int = 0
    noise: Any = None

    def settle(self, result: Reply | MiaError) -> None:
        """Answer the caller, unless that was done or the caller has gone."""
        with contextlib.suppress(InvalidStateError):
            if isinstance(result, MiaError):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)


class Engine:
    """A model with its tokenizer; `Engine.load` opens a checkpoint, trainers bring the model they train.

    Args:
        model, tokenizer: as transformers loads them.
        name: what messages call the model.
        context: window in tokens, at most.
        eyes: for a model that reads pictures.
        keep: tokens of ended conversations whose keys and values are kept for the next turn; None: one window.

    Raises:
        ModelError: it is of a kind that cannot be served here.
    """

    def __init__(
        self, model: Any, tokenizer: Any, name: str, context: int, eyes: Eyes | None = None, keep: int | None = None
    ) -> None:
        why = "carries a state instead of attention" if model._is_stateful else "has no chat template"
        if model._is_stateful or not tokenizer.chat_template:
            raise ModelError(f"{name} {why}", remedy="serve it with vLLM and use its url", code="unsupported")
        self.model = model
        self.eyes = eyes
        self.name = name
        self.template = Template(tokenizer, name)
        declared = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.context = min(context, declared or context)
        ends = model.generation_config.eos_token_id
        self.ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
        self.kept: list[tuple[list[int], Layers]] = []
        self._keep = self.context if keep is None else keep

    @classmethod
    def load(
        cls,
        checkpoint: str,
        name: str,
        context: int,
        device: str = "",
        dtype: str = "",
        pixels: tuple[int | None, int | None] = (None, None),
        adapter: Path | None = None,
    ) -> Engine:
        """Open a checkpoint.

        Args:
            checkpoint: folder or hub name.
            name, context: see the class.
            device, dtype: names as torch has them; empty: see `mia.chat.local`.
            pixels: bounds of a picture's area; None leaves the checkpoint's own.
            adapter: folder of a LoRA adapter (PEFT's), which is merged in; its chat template, if any, is used.
        """
        # Threads that spin while another process wants their core decode up to 7 times slower. Read when torch loads.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import torch

        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = dtype or ("float32" if device == "cpu" else "auto")
        tokenizer, model, sees = loaded(checkpoint, device, dtype)
        if adapter is not None:
            model = adapted(model, tokenizer, adapter).merge_and_unload().eval()
        engine = cls(model, tokenizer, name, context, Eyes(checkpoint, model, *pixels) if sees else None)
        if device == "cpu":
            input_major(model)
        return engine

    def run(self, jobs: Sequence[Job]) -> None:
        """Answer jobs as one batch. What prompts share with kept conversations, or with each other, is read once."""
        import torch

        from mia.chat.cache import grouped_attention, left_padded, new_cache

        with torch.inference_mode(), grouped_attention(self.model):
            begun: list[Job] = []
            caches: list[Any] = []
            logits = []
            for job in jobs:
                try:
                    cache = new_cache()
                    logits.append(self._read(job, cache, begun, caches))
                except MiaError as error:
                    job.settle(error)
                else:
                    begun.append(job)
                    caches.append(cache)
            self.kept = [kept for kept in self.kept if not any(_starts(job.seen, kept[0]) for job in begun)]
            if begun:
                self._decode(begun, left_padded(caches), torch.cat(logits))

    def _read(self, job: Job, cache: Any, others: Sequence[Job], caches: Sequence[Any]) -> torch.Tensor:
        """Read a prompt into an empty cache; gives the logits (1, vocabulary) of the first token of the reply.

        `others` are jobs whose prompts are read already, into `caches`.
        """
        import torch

        from mia.chat.cache import layers_of

        pictures = self._look(job)
        if len(job.prompt) >= self.context:
            raise ModelError(
                f"the prompt has {len(job.prompt)} tokens; the context window of {self.name} is {self.context}",
                remedy="show fewer or shorter passages, allow fewer turns, or use a model with a longer context",
                code="context_length",
            )
        job.limit = min(job.sampling.max_tokens, self.context - len(job.prompt))
        seed = secrets.randbits(63) if job.sampling.seed is None else job.sampling.seed % 2**63
        job.noise = torch.Generator(self.model.device).manual_seed(seed)
        held = self.kept + [(other.seen, layers_of(past)) for other, past in zip(others, caches, strict=True)]
        best = max(held, key=lambda kept: _shared(kept[0], job.seen), default=([], []))
        known = min(_shared(best[0], job.seen), len(job.prompt) - 1)  # one token at least is read, for its logits
        for index, (keys, values) in enumerate(best[1] if known else ()):
            cache.update(keys[:, :, :known], values[:, :, :known], index)
        everything = torch.ones(1, len(job.prompt), dtype=torch.bool)
        if self.eyes is None or not pictures:
            return self._forward([job.prompt[known:]], cache, torch.arange(known, len(job.prompt))[None], everything)
        positions, job.ahead = self.eyes.positions(job.prompt, pictures)
        told = sum(token < 0 for token in job.seen[:known])
        ends = accumulate(picture.tokens for picture in pictures)
        new = [picture for picture, end in zip(pictures, ends, strict=True) if end > told]
        return self._forward([job.prompt[known:]], cache, positions[:, None, known:], everything, new)

    def _look(self, job: Job) -> list[Picture]:
        """Fill in the prompt of a job, with as many placeholders for each picture as it has features."""
        urls = [url for message in job.messages for url in message.images]
        if urls and self.eyes is None:
            remedy = "use a vision model, or describe the picture in words"
            raise ModelError(f"{self.name} reads text only", remedy=remedy, code="no_images")
        job.prompt = job.seen = job.given or self.template.ids(job.messages)
        if self.eyes is None or not urls:
            return []
        pictures = self.eyes.read(urls)
        places = job.prompt.count(self.eyes.placeholder)
        if places != len(pictures):
            raise ModelError(
                f"the template of {self.name} writes {places} placeholders for {len(pictures)} pictures",
                remedy="use the checkpoint's own chat template; it must know parts of the type image",
                code="bad_template",
            )
        job.prompt, job.seen = self.eyes.filled(job.prompt, pictures)
        return pictures

    def _decode(self, jobs: list[Job], cache: Any, logits: torch.Tensor) -> None:
        """Sample until every job has ended; jobs (B) that end leave the batch."""
        import torch

        never = self.eyes.reserved if self.eyes is not None else ()
        while True:
            for job, row in zip(jobs, logits, strict=True):
                token, logprob = choose(row, job.sampling, job.prompt, job.ids, job.noise, never)
                job.ids.append(token)
                job.logprobs.append(logprob)
            going = [index for index, job in enumerate(jobs) if not self._ended(job, index, cache)]
            if not going:
                return
            if len(going) < len(jobs):
                cache.batch_select_indices(torch.tensor(going, device=self.model.device))
                jobs = [jobs[index] for index in going]
            lengths = torch.tensor([[len(job.prompt) + len(job.ids)] for job in jobs])
            ahead = torch.tensor([[job.ahead] for job in jobs])
            width = cache.get_seq_length() + 1
            mask = torch.arange(width) >= width - lengths
            logits = self._forward([job.ids[-1:] for job in jobs], cache, lengths - 1 + ahead, mask)

    def _forward(
        self,
        ids: list[list[int]],
        cache: Any,
        positions: torch.Tensor,
        mask: torch.Tensor,
        pictures: Sequence[Picture] = (),
    ) -> torch.Tensor:
        """Logits (B, vocabulary) after the last of `ids` (B, T), which hold the placeholders of `pictures`.

        `positions` is (B, T), or (3, B, T) with pictures; `mask` (B, cached + T) is False on padding.
        """
        import torch

        device = self.model.device
        seen: dict[str, torch.Tensor] = {}
        if pictures:
            seen["pixel_values"] = torch.cat([picture.pixels for picture in pictures]).to(device)
            seen["image_grid_thw"] = torch.tensor([picture.grid for picture in pictures], device=device)
        out = self.model(
            input_ids=torch.tensor(ids, device=device),
            position_ids=positions.to(device),
            attention_mask=None if mask.all() else mask.long().to(device),
            past_key_values=cache,
            logits_to_keep=1,
            **seen,
        )
        logits: torch.Tensor = out.logits[:, -1].float()
        return logits

    def _ended(self, job: Job, index: int, cache: Any) -> bool:
        """Whether a job is over; if so it is answered and its conversation (row `index` of the cache) kept."""
        if job.future.done():  # cancelled, or closed
            return True
        outcome = self._outcome(job)
        if outcome is None:
            return False
        read = job.seen + job.ids[:-1]
        from mia.chat.cache import layers_of

        layers = [(keys.clone(), values.clone()) for keys, values in layers_of(cache, len(read), index)]
        self.kept = [kept for kept in self.kept if not _starts(read, kept[0])] + [(read, layers)]
        while sum(len(old) for old, _ in self.kept) > self._keep:
            self.kept.pop(0)
        prompt, written, seconds = len(job.prompt), len(job.ids), time.perf_counter() - job.started
        usage = Usage(prompt_tokens=prompt, completion_tokens=written, calls=1, seconds=seconds)
        mask = (True,) * written
        tokens = TokenRecord(prompt_ids=job.prompt, completion_ids=job.ids, sampled_mask=mask, logprobs=job.logprobs)
        job.settle(Reply(text=outcome[0], finish_reason=outcome[1], usage=usage, model=self.name, tokens=tokens))
        return True

    def _outcome(self, job: Job) -> tuple[str, Literal["stop", "length"]] | None:
        """Text and finish reason once the reply is over. A stop text may end within a token; `ids` keep it whole."""
        if job.ids[-1] in self.ends:
            return self.template.decoded(job.ids[:-1]), "stop"
        stops = [stop for stop in job.sampling.stop if stop]
        reach = max((len(stop.encode()) for stop in stops), default=0) + 8  # a token is a byte or more
        if any(stop in self.template.decoded(job.ids[-reach:]) for stop in stops):  # cheap; the whole text decides
            text = self.template.decoded(job.ids)
            cuts = [text.index(stop) for stop in stops if stop in text]
            if cuts:
                return text[: min(cuts)], "stop"
        return (self.template.decoded(job.ids), "length") if len(job.ids) >= job.limit else None


def choose(
    logits: torch.Tensor,
    sampling: Sampling,
    prompt: Sequence[int],
    ids: Sequence[int],
    noise: torch.Generator,
    never: Sequence[int] = (),
) -> tuple[int, float]:
    """Sample a token; with temperature 0 the likeliest one.

    Args:
        logits: (vocabulary,), float32; changed by penalties.
        sampling: temperature, top_p, presence penalty (on the reply), repetition penalty (on prompt and reply).
        prompt, ids: tokens of the prompt and of the reply so far.
        noise: where randomness comes from.
        never: tokens that are not taken.

    Returns:
        The token and its natural log-probability after penalties and temperature, before anything is ruled out.
    """
    import torch

    if sampling.repetition_penalty is not None:
        seen = torch.tensor(sorted({*prompt, *ids}), device=logits.device)
        penalty = torch.where(logits[seen] > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty)
        logits[seen] *= penalty
    if sampling.presence_penalty and ids:
        logits[torch.tensor(sorted(set(ids)), device=logits.device)] -= sampling.presence_penalty
    logprobs = torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1)
    allowed = logprobs.clone()
    allowed[list(never)] = -torch.inf
    if sampling.temperature == 0:
        token = int(allowed.argmax())
    else:
        chances = allowed.exp()
        if sampling.top_p < 1:
            ordered, order = chances.sort(descending=True)
            chances[order[ordered.cumsum(0) - ordered >= sampling.top_p]] = 0
        token = int(torch.multinomial(chances, 1, generator=noise))
    return token, float(logprobs[token])


def loaded(checkpoint: str, device: str, dtype: str) -> tuple[Any, Any, bool]:
    """Tokenizer and model of a checkpoint, and whether it reads pictures."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer, logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        sees = AutoConfig.from_pretrained(checkpoint).model_type in MODEL_TYPES
        kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        return tokenizer, kind.from_pretrained(checkpoint, dtype=dtype).to(device).eval(), sees
    finally:
        if bars:
            logging.enable_progress_bar()


def adapted(model: Any, tokenizer: Any, adapter: Path) -> Any:
    """The model with a LoRA adapter (a PeftModel, not merged yet); the tokenizer gets the adapter's chat template.

    Raises:
        ModelError: the adapter has matrices for other layers than the model (code `wrong_base`).
    """
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    template = adapter / "chat_template.jinja"
    if template.is_file():
        tokenizer.chat_template = template.read_text(encoding="utf-8")
    fitted = PeftModel.from_pretrained(model, adapter).eval()
    with safe_open(adapter / "adapter_model.safetensors", "pt") as file:
        given = {name for name in file.keys() if "lora_" in name}  # noqa: SIM118  # not a mapping
    taken = {name for name in get_peft_model_state_dict(fitted, save_embedding_layers=False) if "lora_" in name}
    if given != taken:  # PEFT takes what fits and warns of the rest
        odd = min(given ^ taken)
        raise ModelError(
            f"the adapter {adapter} does not fit: {odd} is in {'it' if odd in given else 'the model'} alone",
            remedy="use it with the model it was trained on",
            code="wrong_base",
        )
    return fitted


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    same, end = 0, min(len(one), len(other))
    while same < end:  # compares slices, which is much faster than going token by token
        middle = (same + end + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            end = middle - 1
    return same


def _starts(ids: Sequence[int], beginning: Sequence[int]) -> bool:
    """Whether a sequence begins with another."""
    return _shared(beginning, ids) == len(beginning)


def input_major(model: Any) -> None:
    """Lay weights out so that the CPU reads them 1.6 times as fast for one token; their values stay."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = module.weight.data.t().contiguous().t()
