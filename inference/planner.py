"""The Planner's turns: a plan from memories, one verdict on the execution, at most one supplementary plan.

The three turns are one conversation. A verdict that begins neither with yes nor with no is unreadable; that is an
error, never a default.
"""

from __future__ import annotations

import re

from inference.config import AgentConfig
from inference.effects import Episode
from inference.executor import clip, describe, label, user
from inference.grammar import split_thinking
from inference.transcript import Transcript
from mia.errors import ParseError
from mia.prompts import Trusted, prompt
from mia.types import Outcome, Plan, Question, Recalled, Reflection, ScoredMemory, ToolSpec

TRACE_BYTES_PER_RESULT = 600
_VERDICT = re.compile(r"\W*(yes|no)\b[\s*_.,:;—–-]*(.*)", re.IGNORECASE | re.DOTALL)
LABELS: dict[Outcome, str] = {
    "correct": "This way worked",
    "incorrect": "This way failed",
    "unjudged": "Outcome unknown",
}
"""How an earlier run ended, as models are told."""


def plan_turn(
    transcript: Transcript, question: Question, tools: tuple[ToolSpec, ...], agent: AgentConfig
) -> Episode[Plan]:
    """Let the Planner write the first plan, with what memory recalled before it.

    Raises:
        ModelError: the Planner did not answer.
        ParseError: it wrote no plan.
    """
    template = prompt("planner/plan")
    caption = ""
    if question.caption.strip() or question.images:
        caption = prompt("planner/caption").render(caption=question.caption.strip() or "(nobody has described it)")
    text = template.render(
        tools=describe(tools),
        memories=memories_block(transcript.recalled) if agent.reader == "planner" else Trusted(""),
        question=question.text,
        caption=Trusted(caption),
    )
    reply = yield from transcript.turn("planner", "plan", (user(text),), agent.planner)
    return _plan(reply.text, transcript.recalled.ids, 0, template.hash)


def reflect_turn(transcript: Transcript, answer: str | None, agent: AgentConfig) -> Episode[Reflection]:
    """Let the Planner judge whether another round is needed.

    Raises:
        ModelError: the Planner did not answer.
        ParseError: its verdict cannot be read.
    """
    text = prompt("planner/reflect").render(trace=trace(transcript), answer=answer or "(none)")
    reply = yield from transcript.turn("planner", "reflect", (user(text),), agent.reflector)
    return read_verdict(reply.text)


def replan_turn(transcript: Transcript, agent: AgentConfig) -> Episode[Plan]:
    """Let the Planner write the supplementary plan, with the memories that were recalled for it.

    Raises:
        ModelError: the Planner did not answer.
        ParseError: it wrote no plan.
    """
    template = prompt("planner/replan")
    text = template.render(memories=memories_block(transcript.recalled_again))
    reply = yield from transcript.turn("planner", "replan", (user(text),), agent.planner)
    return _plan(reply.text, transcript.recalled_again.ids, 1, template.hash)


def read_verdict(text: str) -> Reflection:
    """Read a yes/no verdict: the first word after the thinking decides.

    Raises:
        ParseError: the first word is neither.
    """
    _, visible = split_thinking(text)
    match = _VERDICT.match(visible.strip())
    if match is None:
        raise ParseError(f"the verdict begins neither with yes nor with no: {visible.strip()[:80]!r}", code="verdict")
    return Reflection(replan=match.group(1).lower() == "yes", reason=match.group(2).strip())


def _plan(text: str, memory_ids: tuple[str, ...], revision: int, prompt_hash: str) -> Plan:
    _, visible = split_thinking(text)
    if not visible.strip():
        raise ParseError("the Planner wrote no plan", code="no_plan")
    return Plan(text=visible.strip(), memory_ids=memory_ids, revision=1 if revision else 0, prompt_hash=prompt_hash)


def memories_block(recalled: Recalled) -> Trusted:
    """Recalled memories and notes as a model is shown them; empty when there are none."""
    memories = (*recalled.successes, *recalled.failures, *recalled.unjudged)
    shown = [_memory_item(scored) for scored in memories]
    shown += [prompt("planner/note").render(text=note.text) for note in recalled.notes]
    if not shown:
        return Trusted("")
    items = Trusted("\n\n".join(shown))
    return Trusted(f"\n{prompt('planner/memories').render(items=items)}\n")


def _memory_item(scored: ScoredMemory) -> str:
    memory = scored.memory
    return prompt("planner/memory").render(
        label=LABELS[memory.outcome], question=memory.question, workflow=memory.workflow
    )


def trace(transcript: Transcript) -> str:
    """What the Executor did, in short: each search with its results, clipped."""
    lines = []
    for step in transcript.steps:
        for call, obs in zip(step.calls, step.observations, strict=False):
            found = clip(obs.text, TRACE_BYTES_PER_RESULT) if obs.failure is None else "(not available)"
            lines.append(f"Search {label(call)}\n{found}")
    return "\n\n".join(lines) or "(no search)"
