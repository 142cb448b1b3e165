"""From a run to a memory: the workflow, a numbered list of abstract steps with the key queries, and the draft to store.

Two ways: `extract` by rules, and `summarise` by the Manager model. Both read tool calls and what they found, nothing
else: no thinking, no prompt, no recalled memory, and never the final answer, which a similar question could copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from memory_serve.protocol import Draft, Trust
from mia.chat import ChatModel
from mia.errors import ConfigError, DataError, ParseError
from mia.prompts import prompt
from mia.types import Judgement, Message, Observation, Outcome, Sampling, ToolCall, Trajectory

MAX_WORDS = 300
_QUERY_WORDS = 24
_TITLE_WORDS = 8
_TITLES = 2
_EXCERPT_WORDS = 40
_LONGEST_WORD = 80
_COPIED_WORDS = 4
_REPLY_TOKENS = 1024
_ANSWER = "[answer]"
_THINKING = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL | re.IGNORECASE)
_NUMBERED = re.compile(r"^\s*\d+[.)]\s+\S")
_BULLET = re.compile(r"^\s*(?:\d+[.)]|[-*•])\s+")
_TRUST: dict[str, Trust] = {
    **dict.fromkeys(("em", "f1", "accepted", "choice", "gaia"), "reference"),
    **dict.fromkeys(("model", "browse"), "model"),
    "panel": "panel",
}
_RESULTS = {"correct": "right", "incorrect": "wrong", "unjudged": "not judged"}

Summary = Literal["extractive", "model"]


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow and where it comes from."""

    text: str
    provenance: dict[str, str]


async def prepare(
    trajectory: Trajectory, judgement: Judgement, summary: Summary = "extractive", manager: ChatModel | None = None
) -> Draft:
    """The draft of a run, its workflow made as the settings say; no other way is tried when that one fails.

    Raises:
        DataError: the run failed, or nothing was done in it.
        ConfigError: the Manager model is wanted and there is none.
        ModelError: the Manager model did not answer.
        ParseError: it answered with something that is no workflow.
    """
    if summary == "extractive":
        return draft(trajectory, judgement, extract(trajectory))
    if manager is None:
        raise ConfigError('memory.summary is "model", but there is no Manager model', remedy="set models.manager")
    return draft(trajectory, judgement, await summarise(manager, trajectory, judgement.outcome))


def draft(trajectory: Trajectory, judgement: Judgement, workflow: Workflow) -> Draft:
    """What to store of a run.

    Raises:
        DataError: the run failed, which says nothing of how its question should be researched.
    """
    _refuse_failed(trajectory)
    plan = trajectory.plans[-1].text if trajectory.plans else ""
    judged = {"judged_by": judgement.method, "judge": judgement.judge, "judge_prompt": judgement.prompt_hash}
    return Draft(
        question=trajectory.question.text,
        caption=trajectory.question.caption,
        workflow=workflow.text,
        plan=without_answer(_without_told(plan, trajectory), trajectory),
        outcome=judgement.outcome,
        modality=trajectory.question.modality,
        source_id=trajectory.question.id,
        trajectory_id=trajectory.id,
        provenance={**workflow.provenance, **{name: value for name, value in judged.items() if value}},
        trust=_TRUST.get(judgement.method, "unjudged"),
    )


def extract(trajectory: Trajectory) -> Workflow:
    """The workflow by rules: a step for each call that was answered, then the answer's; at most 300 words.

    Raises:
        DataError: the run failed, or none of its calls was answered.
    """
    lines = list(dict.fromkeys(_line(call, observation) for call, observation in _answered(trajectory)))
    end = "Answer from what was found." if lines else "Answer at once, without looking anything up."
    kept = [*_limited([f"{i}. {line}" for i, line in enumerate(lines, 1)], MAX_WORDS - len(end.split()) - 1)]
    numbered = "\n".join([*kept, f"{len(kept) + 1}. {end}"])
    return Workflow(without_answer(numbered, trajectory), {"summary": "extractive"})


async def summarise(model: ChatModel, trajectory: Trajectory, outcome: Outcome) -> Workflow:
    """The workflow as a model writes it; at most 300 words, cut at the end of a step or sentence.

    Raises:
        DataError: the run failed, or none of its calls was answered.
        ModelError: the model did not answer.
        ParseError: the reply holds no numbered step.
    """
    actions = [f"{i}. {_line(*pair)}{_excerpt(pair[1])}" for i, pair in enumerate(_answered(trajectory), 1)]
    template = prompt("manager/summarise")
    text = template.render(
        question=trajectory.question.text,
        actions="\n".join(actions) or "Nothing was looked up.",
        outcome=_RESULTS[outcome],
        words=str(MAX_WORDS),
    )
    reply = await model.generate([Message(role="user", text=text)], Sampling(max_tokens=_REPLY_TOKENS))
    steps = _steps(reply.text, cut=reply.finish_reason == "length")
    if not steps:
        raise ParseError(
            f"{model.name} wrote no numbered step: {reply.text[:200]!r}",
            remedy='use a stronger Manager model, or set memory.summary = "extractive"',
            code="no_workflow",
        )
    provenance = {"summary": "model", "model": reply.model or model.name, "prompt": template.hash}
    return Workflow(without_answer("\n".join(_limited(steps, MAX_WORDS)), trajectory), provenance)


def _refuse_failed(trajectory: Trajectory) -> None:
    if trajectory.failure is not None or trajectory.stop_reason == "failed":
        raise DataError(f"run {trajectory.id} failed", remedy="store only runs that came to an end", code="failed_run")


def _answered(trajectory: Trajectory) -> list[tuple[ToolCall, Observation]]:
    """The calls that were answered, with what came back. What failed is no experience and is left out."""
    _refuse_failed(trajectory)
    made, answered = 0, []
    for step in trajectory.steps:
        observations = {o.call_id: o for o in step.observations if o.failure is None}
        made += len(step.calls)
        answered += [(call, observations[call.id]) for call in step.calls if call.id in observations]
    if made and not answered:
        raise DataError(
            f"none of the {made} tool calls of run {trajectory.id} was answered",
            remedy="store only runs whose tools worked",
            code="empty_workflow",
        )
    return answered


def _line(call: ToolCall, observation: Observation) -> str:
    """`Search: capital of Austria (found: Vienna; Austria)`."""
    query = _words("; ".join(_texts(call.arguments.values())), _QUERY_WORDS)
    titles = list(dict.fromkeys(_words(hit.passage.title, _TITLE_WORDS) for hit in observation.hits))[:_TITLES]
    found = f"found: {'; '.join(titles)}" if titles else "found nothing" if "search" in call.name.lower() else ""
    name = _words(call.name.replace("_", " "), _TITLE_WORDS).capitalize()
    return f"{name}: {query}" + (f" ({found})" if found else "")


def _texts(values: Iterable[JsonValue]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str) and not value.startswith("data:"):
            yield value
        elif isinstance(value, list):
            yield from _texts(value)


def _excerpt(observation: Observation) -> str:
    text = _words(observation.hits[0].passage.text, _EXCERPT_WORDS) if observation.hits else ""
    return f"\n   {text}" if text else ""


def _words(text: str, most: int) -> str:
    """One line of so many words at most, none of them endless."""
    words = [word[:_LONGEST_WORD] for word in text.split()]
    return " ".join(words[:most]) + (" …" if len(words) > most else "")


def _steps(text: str, cut: bool) -> list[str]:
    """The numbered lines that a model wrote outside its thinking; the last one is dropped if it was cut off."""
    visible = _THINKING.sub("", text).rpartition("</think>")[2]
    steps = [line.strip() for line in visible.splitlines() if _NUMBERED.match(line)]
    return steps[:-1] if cut and len(steps) > 1 else steps


def _limited(lines: Sequence[str], words: int) -> Iterator[str]:
    """The first lines that have so many words at most; if not even one fits, its first sentences, else its words."""
    left = words
    for place, line in enumerate(lines):
        if len(line.split()) <= left:
            left -= len(line.split())
            yield line
            continue
        if place == 0:
            start = " ".join(line.split()[:words])
            yield start[: start.rfind(". ") + 1] if start.find(". ") != start.rfind(". ") else start
        return


def without_answer(text: str, trajectory: Trajectory) -> str:
    """The answer of a judged run may be the reference itself; what is stored tells the way to it, not the answer.

    An answer that stands in the question is left: to blot out one of two things to choose from would give it away.
    """
    answer = (trajectory.answer or "").split()
    plain = " ".join(answer).casefold()
    if len(plain) < 2 or plain in ("yes", "no") or plain in " ".join(trajectory.question.text.split()).casefold():
        return text
    words = r"\s+".join(map(re.escape, answer))
    return re.sub(rf"(?<!\w){words}(?!\w)", _ANSWER, text, flags=re.IGNORECASE)


def _without_told(plan: str, trajectory: Trajectory) -> str:
    """A plan without what the Planner only copied: lines of its prompts and of recalled memories."""
    recalled = trajectory.recalled, trajectory.recalled_again
    copied = [s.memory.workflow for r in recalled for s in (*r.successes, *r.failures, *r.unjudged)]
    copied += [message.text for step in trajectory.steps if step.role == "planner" for message in step.told]
    lines = {tuple(_BULLET.sub("", line).split()) for text in copied for line in text.splitlines()}
    lines.discard(tuple(trajectory.question.text.split()))
    for line in sorted((line for line in lines if len(line) >= _COPIED_WORDS), key=len, reverse=True):
        plan = re.sub(r"\s+".join(map(re.escape, line)), "", plan, flags=re.IGNORECASE)
    return "\n".join(line for line in plan.splitlines() if any(c.isalpha() for c in line))
