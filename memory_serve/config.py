"""Settings of the memory: where it is kept, how recall weighs, when two memories are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from memory_serve.protocol import DEFAULT_NAMESPACE, TRUSTS, Trust
from mia.config import Section
from mia.paths import home


class Weights(Section):
    """Weights of the recall score, as printed in the paper's appendix 10 (they sum to 1.3, not to 1)."""

    similarity: float = Field(0.7, ge=0, description="weight of the similarity, normalised inside the bucket")
    value: float = Field(0.3, ge=0, description="weight of s/(u+1): s successes in u uses")
    frequency: float = Field(0.3, ge=0, description="weight of 1/(u+1), which favours what was rarely shown")
    question: float = Field(0.8, ge=0, description="share of the question in the similarity, if both have a caption")
    caption: float = Field(0.2, ge=0, description="share of the caption in the similarity, if both have a caption")


class Keep(Section):
    """How the memory stays small; applied when something is added, and by `mia memory compact`."""

    capacity: int = Field(0, ge=0, description="memories in a bucket (namespace, modality, category); 0: no limit")
    total: int = Field(0, ge=0, description="memories in a namespace, over all its buckets; 0: no limit")
    policy: Literal["coverage", "value", "age", "value_age"] = Field(
        "coverage",
        description="what goes first: what helps seldom for its age and has a near neighbour, the least useful, "
        "the oldest, or the least useful for its age; formulas in `memory_serve.keep`",
    )
    failures: float = Field(
        0.1, ge=0, le=1, description="share of a capacity that failures may take; those beyond go first"
    )
    half_life_days: float = Field(30.0, gt=0, description="`value_age`: days in which a memory loses half its value")
    merge: float = Field(
        0.0, ge=0, le=1, description="similarity from which two memories of one outcome become one; 0: never"
    )
    absorbed_uses: int = Field(
        0,
        ge=0,
        description="compacting drops memories that weights have absorbed and that were shown so often; 0: none",
    )

    @property
    def limits(self) -> bool:
        """Whether there is anything to do after something was added."""
        return bool(self.capacity or self.total or self.merge)


class Postgres(Section):
    """How a memory in PostgreSQL is kept; looked at when `memory.url` names a database."""

    schema_name: str = Field(
        "mia", pattern="^[a-z_][a-z0-9_]{0,62}$", description="the schema that holds the tables; made if missing"
    )
    connections: int = Field(8, ge=1, description="connections that one process opens at most")


class MemoryConfig(Section):
    """What is remembered, and where."""

    enabled: bool = Field(True, description="recall before planning and store after judging")
    path: Path = Field(default_factory=lambda: home() / "memory.db", description="the SQLite file; made if missing")
    url: str = Field(
        "",
        description="base URL of a memory service, or postgresql://USER@HOST/DATABASE (the password in PGPASSWORD or "
        "~/.pgpass); empty: the file is opened in this process",
    )
    k: int = Field(2, ge=1, le=100, description="memories of each outcome to recall")
    weights: Weights = Weights()
    score: Literal["paper", "released"] = Field(
        "paper", description="recall score: the paper's three terms, or the two of the released code"
    )
    floor: float = Field(-1.0, ge=-1, le=1, description="raw similarity below which a memory is not recalled")
    recall_own: bool = Field(False, description="also recall memories that stem from the very question that is asked")
    recall_trust: tuple[Trust, ...] = Field(TRUSTS, description="what a memory's outcome may rest on to be recalled")
    duplicate: float = Field(
        0.9999, gt=0, le=1, description="similarity from which two questions count as the same question"
    )
    summary: Literal["extractive", "model"] = Field(
        "extractive", description="how a run becomes a workflow: by rules, or written by the Manager model"
    )
    classify: Literal["rules", "model"] = Field(
        "rules", description="how a question's category is found: by rules, or by asking the Manager model"
    )
    caption: bool = Field(
        True, description="let the Executor model describe a picture without a caption, for memory and Planner"
    )
    keep: Keep = Keep()
    postgres: Postgres = Postgres()
    history: int = Field(100_000, ge=1, description="changes that the audit log keeps; only these can be undone")
    namespace: str = Field(DEFAULT_NAMESPACE, description="whose memories: nothing crosses from one to another")
    token_env: str = Field(
        "", description="environment variable with the bearer token that the service asks for; empty: no token"
    )
    synchronous: Literal["full", "normal"] = Field(
        "full", description="`full` keeps what was acknowledged through a power cut; `normal` only through a crash"
    )
    busy_s: float = Field(10.0, gt=0, description="how long to wait for another process that is writing, in seconds")
    reencode: bool = Field(False, description="encode all memories anew at start if another encoder made their vectors")

    @field_validator("path")
    @classmethod
    def _expand(cls, path: Path) -> Path:
        return path.expanduser()
