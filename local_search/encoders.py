"""Any encoder that sentence-transformers can load: from a folder, the local cache or the Hugging Face hub.

Runs on the GPU in half precision if there is one. Left out: several GPUs, training, prompts beyond plain prefixes (the
model's own default prompt is not used: `encoder_names` says what is put before a text).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from local_search.encoder_names import parse_name
from local_search.protocol import Vectors
from mia.errors import DataError, ModelError
from mia.extras import need
from mia.types import clean_text

_BATCH = {"cpu": 16, "cuda": 256}


class SentenceEncoder:
    """An `Encoder` of a name (see `encoder_names`). Safe to call from many threads, which take turns.

    Args:
        name: what an index will carry.
        dim: length of the vectors, where it is known: then the model is loaded at first use, else now.
        place: folder of the model, where that is not what the name says.

    Raises:
        DataError: the name has settings that are not known.
        ModelError: the model cannot be loaded (code `no_encoder`).
        ConfigError: sentence-transformers is not installed.
    """

    def __init__(self, name: str, dim: int = 0, place: Path | None = None) -> None:
        self.name = name
        self._parsed = parse_name(name)
        self._place = str(place) if place else self._parsed.model
        self._lock = threading.Lock()
        self._model: Any = None
        self.dim = dim or int(self._loaded().get_embedding_dimension())

    def warm(self) -> None:
        """Load the model now."""
        with self._lock:
            self._loaded()

    def encode(self, texts: Sequence[str], kind: Literal["query", "passage"] = "query") -> Vectors:
        """See `Encoder`."""
        prefix = self._parsed.query if kind == "query" else self._parsed.passage
        # Equal texts are encoded once, so that their vectors are equal to the last bit and rank as ties.
        clean = [prefix + clean_text(text) for text in texts]
        unique = {text: place for place, text in enumerate(dict.fromkeys(clean))}
        if not unique:
            return np.zeros((0, self.dim), dtype=np.float32)
        with self._lock:  # its tokenizer must not be used by two threads at once
            model = self._loaded()
            vectors = model.encode(
                list(unique),
                prompt="",
                batch_size=_BATCH.get(model.device.type, 16),
                show_progress_bar=False,
                normalize_embeddings=False,
            ).astype(np.float32)
        if vectors.shape[1] != self.dim:
            raise DataError(
                f"{self._place} gives vectors of {vectors.shape[1]} numbers, the index has {self.dim}",
                remedy="name the encoder that the index was built with",
                code="other_dimension",
            )
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return np.asarray(vectors[np.array([unique[text] for text in clean])], dtype=np.float32)

    def _loaded(self) -> Any:
        if self._model is None:
            model = load_model("SentenceTransformer", self._place)
            if self._parsed.length:
                model.max_seq_length = self._parsed.length
            self._model = model
        return self._model


def load_model(kind: Literal["SentenceTransformer", "CrossEncoder"], place: str) -> Any:
    """A model of sentence-transformers, on the GPU in half precision if there is one.

    Raises:
        ModelError: it cannot be found or read (code `no_encoder`).
        ConfigError: sentence-transformers is not installed.
    """
    library = need("sentence_transformers", "search")
    unreadable = need("safetensors", "search").SafetensorError
    gpu = need("torch", "search").cuda.is_available()
    try:
        model = getattr(library, kind)(place, device="cuda" if gpu else "cpu")
    except (OSError, ValueError, KeyError, RuntimeError, unreadable) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(
            f"the model {place} cannot be loaded: {reason[:300]}",
            remedy=f"give a folder that holds it, or connect so that it can be fetched (`hf download {place}`)",
            code="no_encoder",
        ) from error
    return model.half() if gpu else model
