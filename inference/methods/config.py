"""Which method answers the questions: one line of the config, and what that line stands for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from mia.config import Section

Name = Literal[
    "direct",
    "react",
    "plan_only",
    "rag_traces",
    "rag_summaries",
    "mem0",
    "amem",
    "expel",
    "reasoningbank",
    "memento",
    "mia",
    "mia_unsupervised",
]
Feedback = Literal["reference", "panel", "none"]
"""What memory learns an outcome from: the gold answers, a panel of models that never sees them, or nothing."""
Reader = Literal["planner", "executor"]


class MethodConfig(Section):
    """The method. Prompts, tools, search, limits and sampling are the same for all; see `inference.methods.config`."""

    name: Name = Field("mia", description="how memory is kept and used; see `TRAITS`")
    k: int = Field(3, ge=1, le=100, description="notes that a method other than MIA recalls (MIA: memory.k)")
    feedback: Feedback | None = Field(None, description="what memory learns outcomes from; empty: the method's own way")
    path: Path | None = Field(
        None, description="file of the notes of a method other than MIA; empty: one of that name in $MIA_HOME/methods"
    )

    @property
    def traits(self) -> Traits:
        """What the name stands for."""
        return TRAITS[self.name]

    @property
    def judged_by(self) -> Feedback:
        """What memory learns outcomes from."""
        return self.feedback or self.traits.feedback


@dataclass(frozen=True, slots=True)
class Traits:
    """How a method differs from the others.

    tools: whether the Executor has any. plan: whether the Planner writes a plan first. reader: who is shown what memory
    recalls. feedback: what memory learns outcomes from, if the config says nothing. memory: whether there is any.
    """

    tools: bool = True
    plan: bool = False
    reader: Reader = "executor"
    feedback: Feedback = "reference"
    memory: bool = True


TRAITS: dict[Name, Traits] = {
    "direct": Traits(tools=False, memory=False),
    "react": Traits(memory=False),
    "plan_only": Traits(plan=True, memory=False),
    "rag_traces": Traits(),
    "rag_summaries": Traits(),
    "mem0": Traits(),
    "amem": Traits(),
    "expel": Traits(),
    "reasoningbank": Traits(),
    "memento": Traits(plan=True, reader="planner"),
    "mia": Traits(plan=True, reader="planner"),
    "mia_unsupervised": Traits(plan=True, reader="planner", feedback="panel"),
}
"""What each method is; what they write, read and when stands in the docstring of `inference.methods`."""
