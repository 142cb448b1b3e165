"""Settings of the agent and of a whole run. Everything has a default; `configs/` holds the profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from inference.methods.config import MethodConfig, Reader
from local_search.config import SearchConfig
from memory_serve.config import MemoryConfig
from mia.config import Config, Models, Section
from mia.types import Sampling
from web_tools.config import WebConfig


class AgentConfig(Section):
    """How one question is worked on."""

    plan: bool = Field(True, description="let the Planner write a plan first")
    reflect: bool = Field(True, description="let the Planner decide once whether to plan again")
    seed_search: bool = Field(
        False, description="start with one search for the question itself; for models too weak to make calls"
    )
    max_turns: int = Field(10, ge=1, description="Executor turns for each plan, the forced answer not counted")
    max_calls: int = Field(20, ge=0, description="tool calls for each question")
    max_parallel: int = Field(4, ge=1, description="tool calls in one turn; further ones are refused")
    max_reminders: int = Field(2, ge=0, description="replies in a row without call or answer before one is forced")
    time_limit_s: float = Field(
        600.0,
        gt=0,
        description="seconds after which the final answer is asked for; checked between turns, so that a running "
        "model call may end later (its own limit is the endpoint's timeout_s)",
    )
    planner: Sampling = Sampling(max_tokens=1024)
    reflector: Sampling = Sampling(max_tokens=512)
    executor: Sampling = Sampling(max_tokens=1024, stop=("<tool_response>",))
    answer: Sampling = Field(
        Sampling(max_tokens=256), description="sampling of a final answer that had to be asked for"
    )
    reader: Reader = Field("planner", description="who is shown what memory recalls; set from the method", exclude=True)
    tool_format: Literal["grammar", "native"] = Field(
        "grammar", description="how the Executor calls tools; set from its endpoint", exclude=True
    )


class JudgeConfig(Section):
    """How an answer is judged when there is a reference."""

    method: Literal["em", "f1", "accepted", "choice", "gaia", "model", "browse"] = Field(
        "em", description="by rule (em, f1, accepted, choice, gaia) or by the judge model (model, browse)"
    )
    f1_threshold: float = Field(0.6, ge=0, le=1, description="token F1 from which an answer counts as correct")
    tries: int = Field(3, ge=1, description="attempts to get a readable grade from the judge model")
    sampling: Sampling = Field(Sampling(max_tokens=1024), description="sampling of the judge model")

    @property
    def by_model(self) -> bool:
        """Whether a judge model is asked."""
        return self.method in ("model", "browse")


class PanelConfig(Section):
    """How an answer is judged without a reference: three reviewers and a chair, all of them the judge model."""

    weights: tuple[float, float, float] = Field(
        (0.5, 0.3, 0.2), description="weights of the reviewers of logic, sourcing and validity; they add up to 1"
    )
    threshold: float = Field(6.0, ge=1, le=10, description="weighted score from which an answer may be correct")
    tries: int = Field(3, ge=1, description="attempts to get a readable reply from each reviewer and the chair")
    sampling: Sampling = Field(Sampling(max_tokens=1024), description="sampling of reviewers and chair")
    trace_chars: int = Field(24000, ge=1000, description="characters of what the agent did that a reviewer is shown")

    @field_validator("weights")
    @classmethod
    def _add_up(cls, weights: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(weights) < 0 or abs(sum(weights) - 1) > 1e-9:
            raise ValueError("the weights must not be negative and must add up to 1")
        return weights


class RunConfig(Config):
    """The whole config of `mia ask` and of every command that runs the agent.

    Sections are made when a config is read, not when this module is: paths depend on the environment.
    """

    models: Models = Field(default_factory=Models)
    search: SearchConfig = Field(default_factory=SearchConfig)
    web: WebConfig = Field(default_factory=WebConfig)
    memory: MemoryConfig = Field(default_factory=MemoryConfig)
    method: MethodConfig = Field(default_factory=MethodConfig)
    agent: AgentConfig = Field(default_factory=AgentConfig)
    judge: JudgeConfig = Field(default_factory=JudgeConfig)
    panel: PanelConfig = Field(default_factory=PanelConfig)
    runs: Path | None = Field(None, description="folder of the trajectories; empty: `runs` in $MIA_HOME")
