"""Chat with a Hugging Face checkpoint in this process, on the CPU (float32) or a GPU (the checkpoint's own type).

One worker thread owns the model. Each prompt is read alone, on top of the longest beginning it shares with an earlier
conversation; requests that wait together are then decoded as one left-padded batch. Noise is drawn per request from
its own seed, so batch-mates and kept conversations touch a result only by the rounding of its logits (about 1e-6 in
float32: enough to turn an exact tie, no more). Checkpoints of Qwen2.5-VL read pictures (see `mia.chat.vision`), all
others text only. Left out: native tool calling, streaming, pictures by http(s) URL, and models that carry a state
instead of attention (Mamba and its kin).
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from mia import embedded
from mia.chat.engine import Engine, Job
from mia.config import Endpoint, Section
from mia.errors import ConfigError, MiaError, ModelError
from mia.pictures import is_data_url
from mia.types import Message, Reply, Sampling, ToolSpec


class LocalOptions(Section):
    """What `extra_body` of a local endpoint may hold."""

    device: str = Field("", description="torch device; empty: the GPU if there is one, else the CPU")
    dtype: Literal["", "float32", "bfloat16", "float16"] = Field("", description="empty: see the module")
    adapter: str = Field(
        "",
        description="LoRA adapter that is merged in: a folder (PEFT's), or one of the package, embedded:executor or "
        "embedded:planner; empty: none",
    )
    batch: int = Field(16, ge=1, description="most requests that are decoded at once")
    min_pixels: int | None = Field(None, ge=1, description="smaller pictures are enlarged; empty: the checkpoint's own")
    max_pixels: int = Field(1280 * 28 * 28, ge=1, description="larger pictures are shrunk; one token is 28 x 28 pixels")


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
        self._adapter = embedded.adapter(self._options.adapter) if self._options.adapter else None
        self._checkpoint = "" if endpoint.url == "embedded:" else endpoint.url.removeprefix("local:")
        self.name = endpoint.model or Path(self._checkpoint).name or embedded.NAME
        self.context = min(endpoint.context, _declared_context(self._checkpoint))
        self._queue: queue.Queue[Job | None] = queue.Queue()
        self._jobs: set[Job] = set()
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        self._engine: Engine | None = None
        self._closed = False

    async def generate(self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec] = ()) -> Reply:
        """See `ChatModel.generate`. `tokens` is always filled; `choose` says which log-probabilities it has."""
        if tools or any(message.tool_calls for message in messages):
            raise ModelError(f"{self.name} has no native tool calling", remedy='set tool_format = "grammar"')
        if not all(is_data_url(image) for message in messages for image in message.images):
            remedy = "give the picture itself (a file, or a data URL), or use an endpoint that fetches pictures"
            raise ModelError(f"{self.name} runs in-process and fetches no URL", remedy=remedy, code="picture_url")
        job = Job(tuple(messages), sampling)
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

    def _serve(self, jobs: Sequence[Job]) -> None:
        try:
            if self._engine is None:
                place = self._checkpoint or str(embedded.ensure())
                options = self._options
                pixels = (options.min_pixels, options.max_pixels)
                self._engine = Engine.load(
                    place, self.name, self.context, options.device, options.dtype, pixels, self._adapter
                )
                self.context = self._engine.context
            self._engine.run(jobs)
        except (MiaError, RuntimeError, ValueError, TypeError, KeyError, OSError, ImportError) as error:
            failed = error if isinstance(error, MiaError) else _explained(self.name, error)
            for job in jobs:
                job.settle(failed)

    def _take(self) -> list[Job]:
        """The jobs of the next batch, none when closed. Calls made together arrive within milliseconds."""
        jobs: list[Job] = []
        while len(jobs) < self._options.batch:
            try:
                job = self._queue.get(timeout=0.01 if jobs else None)
            except queue.Empty:
                break
            if job is None:
                return []
            jobs.append(job)
        return jobs


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
    text = declared.get("text_config", declared)
    return int(text.get("max_position_embeddings") or 1 << 30) if checkpoint else embedded.CONTEXT
