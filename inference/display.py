"""Showing runs to people: events as they happen, and whole trajectories, on a rich console."""

from __future__ import annotations

import re

from rich.console import Console
from rich.text import Text as RichText

from inference.events import (
    Answered,
    CallsMade,
    Degraded,
    Event,
    Judged,
    Noted,
    Observed,
    PlanMade,
    RecallDone,
    Reflected,
    Remembered,
)
from inference.executor import label
from inference.grammar import parse
from inference.runs import Run
from mia.types import Failure, Judgement, Memory, Observation, Plan, Recalled, Reflection, Step, ToolCall

MAX_TITLES = 3
MARGIN = 12


_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text without control characters, which could move the cursor, change colours or turn the reading order."""
    return _UNSEEN.sub("\ufffd", text)


def shorten(text: str, most: int) -> str:
    """One line of so many characters at most."""
    line = " ".join(printable(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


class Display:
    """Prints events and runs. Everything a model or a corpus wrote is printed literally."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def watch(self, event: Event) -> None:
        """Print one event."""
        if isinstance(event, RecallDone):
            self._recalled(event.recalled, event.revision)
        elif isinstance(event, PlanMade):
            self._plan(event.plan)
        elif isinstance(event, CallsMade):
            self._calls(event.calls, event.scripted)
        elif isinstance(event, Observed):
            self._observed(event.calls, event.observations)
        elif isinstance(event, Noted):
            self._line("note", event.reason, "yellow")
        elif isinstance(event, Reflected):
            self._reflection(event.reflection)
        elif isinstance(event, Answered):
            self._answer(event.answer, event.stop_reason)
        elif isinstance(event, Degraded):
            self._failure("degraded", event.failure)
        elif isinstance(event, Judged):
            self._judgement(event.judgement)
        elif isinstance(event, Remembered):
            self._remembered(event.action, event.memory_id)

    def run(self, run: Run) -> None:
        """Print a whole run."""
        self._line("run", f"{run.id}, {run.created:%Y-%m-%d %H:%M} UTC, {run.seconds:.1f} s", "bold")
        self._line("question", run.question.text, "bold")
        self._recalled(run.recalled)
        if run.recalled_again.ids:
            self._recalled(run.recalled_again, 1)
        plans = iter(run.plans)
        for step in run.steps:
            self._step(step, plans.__next__ if step.purpose in ("plan", "replan") and step.reply else None)
        for reflection in run.reflections:
            self._reflection(reflection)
        for failure in run.degraded:
            self._failure("degraded", failure)
        if run.failure is not None:
            self._failure("failed", run.failure)
        else:
            self._answer(run.answer, run.stop_reason)
        self.sources(run)
        if run.judgement is not None:
            self._judgement(run.judgement)
        if run.memory is not None:
            self._remembered(run.memory.action, run.memory.id)
        usage = run.usage
        counts = f"{usage.calls} model calls, {usage.prompt_tokens} + {usage.completion_tokens} tokens"
        self._line("cost", f"{counts}, {len(run.hits)} passages read", "dim")

    def sources(self, run: Run) -> None:
        """Print the titles of what was found, those first whose text holds the answer."""
        answer = (run.answer or "").lower()
        titles: dict[str, bool] = {}
        for hit in run.hits:
            holds = bool(answer) and answer in f"{hit.passage.title} {hit.passage.text}".lower()
            titles[hit.passage.title] = titles.get(hit.passage.title, False) or holds
        ordered = sorted(titles, key=lambda title: not titles[title])
        if ordered:
            self._line("sources", "; ".join(ordered[:5]), "blue")

    def failure(self, failure: Failure) -> None:
        """Print why a run failed."""
        self._failure("failed", failure)

    def _line(self, head: str, text: str, style: str) -> None:
        lines = [line for line in printable(text).splitlines() if line.strip()] or [""]
        self._console.print(f"[{style}]{head:>10}[/]  ", end="")
        self._console.print(RichText(f"\n{' ' * MARGIN}".join(lines)))

    def _block(self, text: str) -> None:
        lines = [f"{' ' * MARGIN}{line}" for line in printable(text).splitlines() if line.strip()]
        self._console.print(RichText("\n".join(lines), style="dim"))

    def _recalled(self, recalled: Recalled, revision: int = 0) -> None:
        for name, memories in (
            ("worked", recalled.successes),
            ("failed", recalled.failures),
            ("unjudged", recalled.unjudged),
        ):
            for scored in memories:
                self._line("recall", f"{name}: {_memory(scored.memory)} (score {scored.score:.2f})", "magenta")
        if not recalled.ids:
            self._line("recall", "nothing else" if revision else "nothing similar yet", "magenta")

    def _remembered(self, action: str, memory_id: str) -> None:
        what = {
            "stored": "stored as memory",
            "replaced": "put in place of what was there, as memory",
            "kept": "nothing new; it is already known as memory",
            "known": "this run is already stored as memory",
        }
        self._line("remember", f"{what.get(action, action)} {memory_id}", "magenta")

    def _plan(self, plan: Plan) -> None:
        self._line("replan" if plan.revision else "plan", plan.text, "cyan")

    def _calls(self, calls: tuple[ToolCall, ...], scripted: bool) -> None:
        for call in calls:
            self._line(call.name[:10], f"{label(call)}{' (first search, by config)' if scripted else ''}", "green")

    def _observed(self, calls: tuple[ToolCall, ...], observations: tuple[Observation, ...]) -> None:
        for call, obs in zip(calls, observations, strict=True):
            if obs.failure is not None:
                self._failure("failed", obs.failure)
                continue
            titles = "; ".join(hit.passage.title for hit in obs.hits[:MAX_TITLES]) or obs.text
            prefix = f"{label(call)}: " if len(calls) > 1 else ""
            self._line("found", f"{prefix}{titles}", "green")

    def _reflection(self, reflection: Reflection) -> None:
        verdict = "plan again" if reflection.replan else "keep the answer"
        self._line("reflect", f"{verdict}{': ' + reflection.reason if reflection.reason else ''}", "cyan")

    def _answer(self, answer: str | None, stop_reason: str) -> None:
        forced = "" if stop_reason == "answered" else f"   ({stop_reason.replace('_', ' ')})"
        self._line("answer", f"{answer if answer is not None else '(none)'}{forced}", "bold green")

    def _failure(self, head: str, failure: Failure) -> None:
        self._line(head, f"{failure.boundary}/{failure.code}: {failure.message}", "red")
        if failure.remedy:
            self._line("remedy", failure.remedy, "yellow")

    def _judgement(self, judgement: Judgement) -> None:
        score = "" if judgement.score is None else f", score {judgement.score:.2f}"
        self._line("judged", f"{judgement.outcome} ({judgement.method}{score})", "bold")

    def _step(self, step: Step, next_plan: object) -> None:
        if callable(next_plan):
            try:
                self._plan(next_plan())
            except StopIteration:
                self._block(step.reply.text if step.reply else "")
            return
        if step.reply is not None and step.role == "executor":
            parsed = parse(step.reply)
            if parsed.thinking:
                self._block(parsed.thinking)
            if not step.calls and parsed.answer is None:
                self._block(parsed.rest)
        self._calls(step.calls, step.purpose == "seed")
        if step.observations:
            self._observed(step.calls, step.observations)
        for bad in step.malformed:
            self._line("malformed", f"{bad.reason}: {bad.raw[:200]}", "yellow")
        if step.failure is not None:
            self._failure("failed", step.failure)


def _memory(memory: Memory) -> str:
    return f"{shorten(memory.question, 100)} [{memory.id}]"
