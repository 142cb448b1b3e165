"""Chat with a Hugging Face checkpoint in this process, on the CPU (float32) or a GPU (the checkpoint's own type).

One worker thread owns the model. Each prompt is read alone, on top of the longest beginning it shares with an earlier
conversation; requests that wait together are then decoded as one left-padded batch. Noise is drawn per request from
its own seed, so batch-mates and kept conversations touch a result only by the rounding of its logits (about 1e-6 in
float32: enough to turn an exact tie, no more). Left out: images, native tool calling, streaming, and models that
carry a state instead of attention (Mamba and its kin).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from mia import embedded
from mia.config import Endpoint, Section
from mia.errors import ConfigError, ModelError
from mia.types import Message, Reply, Sampling, TokenRecord, ToolSpec, Usage

if TYPE_CHECKING:
    import torch


class LocalOptions(Section):
    """What `extra_body` of a local endpoint may hold."""

    device: str = Field("", description="torch device; empty: the GPU if there is one, else the CPU")
    dtype: Literal["", "float32", "bfloat16", "float16"] = Field("", description="empty: see the module")
    batch: int = Field(16, ge=1, description="most requests that are decoded at once")


class LocalChat:
    """A checkpoint in this process: `embedded:` or `local:PATH_OR_NAME`. It is loaded once, at the first call.

    Raises:
        ConfigError: an option in `extra_body` is unknown, or native tool calling is asked for.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        if endpoint.tool_format == "native":
            raise ConfigError(f"{endpoint.url} has no native tool calling", remedy='set tool_format = "grammar"')
        try:
            self._options = LocalOptions(**endpoint.extra_body)
        except ValidationError as error:
            raise ConfigError(f"extra_body of {endpoint.url}: {error}", remedy="correct or remove the key") from error
        self._checkpoint = "" if endpoint.url == "embedded:" else endpoint.url.removeprefix("local:")
        self.name = endpoint.model or Path(self._checkpoint).name or embedded.NAME
        self.context = min(endpoint.context, _declared_context(self._checkpoint))
        self._queue: queue.Queue[_Job | None] = queue.Queue()
        self._jobs: set[_Job] = set()
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        self._engine: _Engine | None = None
        self._closed = False

    async def generate(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec] = ()) -> Reply:
        """See `ChatModel.generate`. `tokens` is always filled; `choose` says which log-probabilities it has."""
        if tools or any(message.tool_calls for message in messages):
            raise ModelError(f"{self.name} has no native tool calling", remedy='set tool_format = "grammar"')
        if any(message.images for message in messages):
            remedy = "use the url of a vision model, or describe the picture in words"
            raise ModelError(f"{self.name} runs in-process and reads text only", remedy=remedy, code="no_images")
        job = _Job(tuple(messages), sampling)
        with self._lock:
            if self._closed:
                raise ModelError(f"{self.name} was closed", remedy="open another LocalChat", code="closed")
            self._jobs.add(job)
            self._queue.put(job)
            if self._worker is None or not self._worker.is_alive():
                self._worker = threading.Thread(target=self._work, name=f"mia-{self.name}", daemon=True)
                self._worker.start()
        try:
            return await asyncio.wrap_future(job.future)
        finally:
            self._jobs.discard(job)

    async def aclose(self) -> None:
        """Fail what is still waiting, stop the worker and free the model."""
        with self._lock:
            self._closed = True
            for job in tuple(self._jobs):
                job.settle(ModelError(f"{self.name} was closed", remedy="await replies before closing", code="closed"))
        self._queue.put(None)
        if self._worker is not None:
            await asyncio.to_thread(self._worker.join)
        self._engine = None

    def _work(self) -> None:
        try:
            while jobs := self._take():
                self._serve(jobs)
        finally:  # whatever ended the worker, nobody waits for ever
            for job in tuple(self._jobs):
                job.settle(ModelError(f"the worker of {self.name} died", remedy="its traceback is on stderr"))

    def _serve(self, jobs: Sequence[_Job]) -> None:
        try:
            if self._engine is None:
                place = self._checkpoint or str(embedded.ensure())
                self._engine = _Engine(place, self.name, self.context, self._options)
                self.context = self._engine.context
            self._engine.run(jobs)
        except (ModelError, RuntimeError, ValueError, TypeError, KeyError, OSError, ImportError) as error:
            failed = error if isinstance(error, ModelError) else _explained(self.name, error)
            for job in jobs:
                job.settle(failed)

    def _take(self) -> list[_Job]:
        """The jobs of the next batch, none when closed. Calls made together arrive within milliseconds."""
        jobs: list[_Job] = []
        while len(jobs) < self._options.batch:
            try:
                job = self._queue.get(timeout=0.01 if jobs else None)
            except queue.Empty:
                break
            if job is None:
                return []
            jobs.append(job)
        return jobs


@dataclass(eq=False)
class _Job:
    """A request and what was sampled for it. The caller may cancel its future at any time."""

    messages: tuple[Message, ...]
    sampling: Sampling
    future: Future[Reply] = field(default_factory=Future)
    started: float = field(default_factory=time.perf_counter)
    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    limit: int = 0
    noise: Any = None

    def settle(self, result: Reply | ModelError) -> None:
        """Answer the caller, unless that was done or the caller has gone."""
        with contextlib.suppress(InvalidStateError):
            if isinstance(result, ModelError):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)


def _explained(name: str, error: Exception) -> ModelError:
    remedy, code = "give the folder of a complete checkpoint, or a hub name", "no_model"
    if isinstance(error, ImportError):
        remedy, code = "pip install -e '.[embedded]' -c constraints.txt", "missing_extra"
    elif isinstance(error, RuntimeError):
        remedy, code = "if memory ran out, lower `batch` in extra_body or shorten the prompts", "model_failed"
    return ModelError(f"{name}: {type(error).__name__}: {error}", remedy=remedy, code=code)


def _declared_context(checkpoint: str) -> int:
    """Context window of a checkpoint folder; no limit where only loading tells."""
    config = Path(checkpoint) / "config.json"
    declared = json.loads(config.read_text(encoding="utf-8")) if checkpoint and config.is_file() else {}
    return int(declared.get("max_position_embeddings") or 1 << 30) if checkpoint else embedded.CONTEXT


class _Engine:
    """A loaded checkpoint; used from one thread."""

    def __init__(self, checkpoint: str, name: str, context: int, options: LocalOptions) -> None:
        # Threads that spin while another process wants their core decode up to 7 times slower. Read when torch loads.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, logging

        device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = options.dtype or ("float32" if device == "cpu" else "auto")
        bars = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
            self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).to(device).eval()
        finally:
            if bars:
                logging.enable_progress_bar()
        why = "carries a state instead of attention" if self.model._is_stateful else "has no chat template"
        if self.model._is_stateful or not self.tokenizer.chat_template:
            raise ModelError(f"{checkpoint} {why}", remedy="serve it with vLLM and use its url", code="unsupported")
        if device == "cpu":
            # The matrix library reads a weight 1.6 times as fast for one token when it lies input-major.
            for module in self.model.modules():
                if isinstance(module, torch.nn.Linear):
                    module.weight.data = module.weight.data.t().contiguous().t()
        self.name = name
        self.context = min(context, getattr(self.model.config, "max_position_embeddings", None) or context)
        ends = self.model.generation_config.eos_token_id
        self.ends = {self.tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
        special = [token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special]
        self.typed = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)")
        self.kept: list[tuple[list[int], list[tuple[torch.Tensor, torch.Tensor]]]] = []

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, up to where the reply starts.

        They are those of `apply_chat_template`, except that a control token typed in a message is only its characters.
        """
        from jinja2 import TemplateError

        mark = secrets.token_hex(8)  # fences typed control tokens while the template is filled in
        chat = [
            {"role": m.role, "content": self.typed.sub(lambda hit: f"{mark}{hit[0].encode().hex()}{mark}", m.text)}
            for m in messages
        ]
        try:
            text: str = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            remedy = "order the turns as the template wants: most want user and assistant in turn"
            raise ModelError(f"template of {self.name}: {error}", remedy=remedy, code="bad_conversation") from error
        ids: list[int] = []
        for index, piece in enumerate(text.split(mark)):
            typed = index % 2 == 1
            part = bytes.fromhex(piece).decode() if typed else piece
            ids += self.tokenizer(part, add_special_tokens=False, split_special_tokens=typed).input_ids
        return ids

    def run(self, jobs: Sequence[_Job]) -> None:
        """Answer jobs as one batch."""
        import torch
        from transformers import DynamicCache

        with torch.inference_mode():
            begun, caches, logits = [], [], []
            for job in jobs:
                try:
                    cache = DynamicCache()
                    logits.append(self._read(job, cache))
                except ModelError as error:
                    job.settle(error)
                else:
                    begun.append(job)
                    caches.append(cache)
            if begun:
                self._decode(begun, _left_padded(caches), torch.cat(logits))

    def _read(self, job: _Job, cache: Any) -> torch.Tensor:
        """Read a prompt into an empty cache; gives the logits (1, vocabulary) of the first token of the reply."""
        import torch

        job.prompt = self.prompt_ids(job.messages)
        if len(job.prompt) >= self.context:
            raise ModelError(
                f"the prompt has {len(job.prompt)} tokens; the context window of {self.name} is {self.context}",
                remedy="show fewer or shorter passages, allow fewer turns, or use a model with a longer context",
                code="context_length",
            )
        job.limit = min(job.sampling.max_tokens, self.context - len(job.prompt))
        seed = secrets.randbits(63) if job.sampling.seed is None else job.sampling.seed % 2**63
        job.noise = torch.Generator(self.model.device).manual_seed(seed)
        best = max(self.kept, key=lambda kept: _shared(kept[0], job.prompt), default=([], []))
        known = min(_shared(best[0], job.prompt), len(job.prompt) - 1)  # one token at least is read, for its logits
        for index, (keys, values) in enumerate(best[1] if known else ()):
            cache.update(keys[:, :, :known], values[:, :, :known], index)
        everything = torch.ones(1, len(job.prompt), dtype=torch.bool)
        return self._forward([job.prompt[known:]], cache, torch.arange(known, len(job.prompt))[None], everything)

    def _decode(self, jobs: list[_Job], cache: Any, logits: torch.Tensor) -> None:
        """Sample until every job has ended; jobs (B) that end leave the batch."""
        import torch

        while True:
            for job, row in zip(jobs, logits, strict=True):
                token, logprob = choose(row, job.sampling, job.prompt, job.ids, job.noise)
                job.ids.append(token)
                job.logprobs.append(logprob)
            going = [index for index, job in enumerate(jobs) if not self._ended(job, index, cache)]
            if not going:
                return
            if len(going) < len(jobs):
                cache.batch_select_indices(torch.tensor(going, device=self.model.device))
                jobs = [jobs[index] for index in going]
            lengths = torch.tensor([[len(job.prompt) + len(job.ids)] for job in jobs])
            width = cache.get_seq_length() + 1
            mask = torch.arange(width) >= width - lengths
            logits = self._forward([job.ids[-1:] for job in jobs], cache, lengths - 1, mask)

    def _forward(self, ids: list[list[int]], cache: Any, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logits (B, vocabulary) after the last of `ids` (B, T); `mask` (B, cached + T) is False on padding."""
        import torch

        device = self.model.device
        out = self.model(
            input_ids=torch.tensor(ids, device=device),
            position_ids=positions.to(device),
            attention_mask=None if mask.all() else mask.long().to(device),
            past_key_values=cache,
            logits_to_keep=1,
        )
        logits: torch.Tensor = out.logits[:, -1].float()
        return logits

    def _ended(self, job: _Job, index: int, cache: Any) -> bool:
        """Whether a job is over; if so it is answered and its conversation (row `index` of the cache) kept."""
        if job.future.done():  # cancelled, or closed
            return True
        outcome = self._outcome(job)
        if outcome is None:
            return False
        read = job.prompt + job.ids[:-1]
        part = (slice(index, index + 1), slice(None), slice(-len(read), None))
        layers = [(layer.keys[part].clone(), layer.values[part].clone()) for layer in cache.layers]
        self.kept = [kept for kept in self.kept if _shared(kept[0], read) < len(kept[0])] + [(read, layers)]
        while sum(len(old) for old, _ in self.kept) > self.context:  # bounds memory to one window of tokens
            self.kept.pop(0)
        prompt, written, seconds = len(job.prompt), len(job.ids), time.perf_counter() - job.started
        usage = Usage(prompt_tokens=prompt, completion_tokens=written, calls=1, seconds=seconds)
        mask = (True,) * written
        tokens = TokenRecord(prompt_ids=job.prompt, completion_ids=job.ids, sampled_mask=mask, logprobs=job.logprobs)
        job.settle(Reply(text=outcome[0], finish_reason=outcome[1], usage=usage, model=self.name, tokens=tokens))
        return True

    def _outcome(self, job: _Job) -> tuple[str, Literal["stop", "length"]] | None:
        """Text and finish reason once the reply is over. A stop text may end within a token; `ids` keep it whole."""
        if job.ids[-1] in self.ends:
            return self._decoded(job.ids[:-1]), "stop"
        stops = [stop for stop in job.sampling.stop if stop]
        reach = max((len(stop.encode()) for stop in stops), default=0) + 8  # a token is a byte or more
        if any(stop in self._decoded(job.ids[-reach:]) for stop in stops):  # cheap; the whole text decides
            text = self._decoded(job.ids)
            cuts = [text.index(stop) for stop in stops if stop in text]
            if cuts:
                return text[: min(cuts)], "stop"
        return (self._decoded(job.ids), "length") if len(job.ids) >= job.limit else None

    def _decoded(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def choose(
    logits: torch.Tensor, sampling: Sampling, prompt: Sequence[int], ids: Sequence[int], noise: torch.Generator
) -> tuple[int, float]:
    """Sample a token; with temperature 0 the likeliest one.

    Args:
        logits: (vocabulary,), float32; changed by penalties.
        sampling: temperature, top_p, presence penalty (on the reply), repetition penalty (on prompt and reply).
        prompt, ids: tokens of the prompt and of the reply so far.
        noise: where randomness comes from.

    Returns:
        The token and its natural log-probability after penalties and temperature, before the top-p cut.
    """
    import torch

    if sampling.repetition_penalty is not None:
        seen = torch.tensor(sorted({*prompt, *ids}), device=logits.device)
        penalty = torch.where(logits[seen] > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty)
        logits[seen] *= penalty
    if sampling.presence_penalty and ids:
        logits[torch.tensor(sorted(set(ids)), device=logits.device)] -= sampling.presence_penalty
    logprobs = torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1)
    if sampling.temperature == 0:
        token = int(logprobs.argmax())
    else:
        chances = logprobs.exp()
        if sampling.top_p < 1:
            ordered, order = chances.sort(descending=True)
            chances[order[ordered.cumsum(0) - ordered >= sampling.top_p]] = 0
        token = int(torch.multinomial(chances, 1, generator=noise))
    return token, float(logprobs[token])


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _left_padded(caches: Sequence[Any]) -> Any:
    """Caches of one row each as one cache of B rows, shorter ones padded on the left with zeros."""
    import torch
    from transformers import DynamicCache

    width, joint = max(cache.get_seq_length() for cache in caches), DynamicCache()

    def padded(rows: Iterable[torch.Tensor]) -> torch.Tensor:
        return torch.cat([torch.nn.functional.pad(row, (0, 0, width - row.shape[2], 0)) for row in rows])

    for index, layers in enumerate(zip(*(cache.layers for cache in caches), strict=True)):
        joint.update(padded(layer.keys for layer in layers), padded(layer.values for layer in layers), index)
    return joint
