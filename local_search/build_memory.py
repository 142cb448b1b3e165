"""Divides the memory that a build may use: how many processes, how large a shard. The figures are measured."""

from __future__ import annotations

import re
from typing import NamedTuple

from local_search.corpus import Format
from local_search.corpus_wikipedia import MAX_PAGE
from mia.errors import ConfigError

_MB = 1_000_000
DEFAULT = 2_000 * _MB
_BASE, _WORKER = 100 * _MB, 90 * _MB
"""What Python with numpy needs before it does anything, in this process and in each other."""
_ARROW = 90 * _MB
"""What pyarrow needs to read a Parquet file, of whatever size."""
_WIKITEXT = 80 * MAX_PAGE
"""What parsing the longest page needs, in each process."""
_DENSE = 600 * _MB
"""What torch with the encoder's weights and a batch needs."""
_PER_BYTE = 16
"""Memory for a byte of a shard, for each process: 5 in English prose, more where hardly a word comes twice."""
_SMALLEST, _LARGEST = _MB // 2, 16 * _MB

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


class Budget(NamedTuple):
    """How a build keeps within its memory."""

    workers: int
    """Processes that make shards."""
    shard_bytes: int
    """Bytes of the corpus in a shard."""
    spare: int
    """Bytes for what one process does with all shards at its end."""

    @classmethod
    def of(cls, memory: int, workers: int, dense: bool, format: Format = "jsonl") -> Budget:
        """Divide `memory` bytes among at most so many workers, for a corpus of a format.

        Raises:
            ConfigError: it cannot suffice.
        """
        base = _BASE + (_ARROW if format == "parquet" else 0)
        each = _WIKITEXT if format == "wikipedia" else 0
        least = base + each + _SMALLEST * _PER_BYTE * 4 + (_DENSE if dense else 0)
        if memory < least:
            raise ConfigError(
                f"a build {'with' if dense else 'without'} the dense engine does not fit into {memory // _MB} MB",
                remedy=f"give --memory {-(-least // _MB)}MB or more" + (", or --engines bm25" if dense else ""),
                code="little_memory",
            )
        if workers < 1:
            raise ConfigError(f"{workers} workers", remedy="give 1 or more --workers")
        while workers > 1 and memory - base < workers * (_WORKER + each + 2 * _MB * _PER_BYTE):
            workers -= 1
        free = memory - base - workers * each - (workers * _WORKER if workers > 1 else 0)
        shard_bytes = min(max(free // (workers * _PER_BYTE), _SMALLEST), _LARGEST)
        return cls(workers, shard_bytes, (memory - base - (_DENSE if dense else 0)) // 2)


def parse_memory(text: str) -> int:
    """Bytes of a text like `2GB`, `512 MB` or `1GiB`.

    Raises:
        ConfigError: it is no such text.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?|)b?", text.strip().lower())
    if match is None:
        raise ConfigError(f"--memory {text}: not a size", remedy="write it like 2GB or 512MB")
    return int(float(match[1]) * _UNITS[match[2]])
