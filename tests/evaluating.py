"""Evaluations for tests: a dataset, a model whose every reply depends on all it was sent, and an opener of agents.

The model answers yes or no by a hash of its conversation, so an answer changes with any plan, memory or passage it saw.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from inference.agent import Agent
from inference.datasets import Dataset, load_dataset
from inference.evaluation.answering import Here
from inference.evaluation.config import EvalConfig
from inference.evaluation.finish import finish
from inference.evaluation.folder import open_folder
from inference.evaluation.row import Row
from inference.evaluation.runner import Runner
from inference.evaluation.stream import stream
from inference.methods.open import open_method
from inference.runs import RunStore
from inference.search import Search
from inference.tools import SearchTool
from memory_serve.hashing import HashEncoder
from mia.chat import ChatModel
from mia.chat.metered import Metered
from mia.chat.scripted import ScriptedChat
from mia.config import load
from mia.errors import MiaError
from mia.types import Message, Role
from scripts.bench import scripted_manager
from tests.doubles import FixedSearch, call, scripted

Brain = Callable[[str, str], str]
"""A model: its first message and its last one to its reply."""


def oracle(first: str, last: str) -> str:
    """Plans, searches once, answers yes or no; every word depends on what it was sent."""
    mark = hashlib.sha256(f"{first}\n{last}".encode()).hexdigest()[:8]
    if "another round" in last:
        return f"{'yes' if mark < '4' else 'no'}, {mark}"
    if last.rstrip().endswith("Plan:") or "upplementary" in last[-200:]:
        return f"1. Look up Vienna {mark}.\n2. Answer."
    if "<tool_response>" not in last:
        return call(f"Vienna {mark}")
    return f"<answer>{'yes' if mark < '8' else 'no'}</answer>"


def chat(brain: Brain) -> ScriptedChat:
    """A scripted chat model with a brain."""

    def answer(messages: Sequence[Message]) -> str:
        return brain(messages[0].text, messages[-1].text)

    return ScriptedChat(always=answer)


def wire(brain: Brain) -> Callable[[list[dict[str, Any]]], str]:
    """A brain for `chat_endpoint`."""
    return lambda messages: brain(messages[0]["content"], messages[-1]["content"])


def manager_of_rules(messages: Sequence[Message]) -> str:
    """The Manager (and panel) that benchmarks use."""
    return scripted_manager.answer([{"role": message.role, "content": message.text} for message in messages])


def write_questions(path: Path, count: int, answer: str = "yes") -> Path:
    """A file of questions, all of which have one answer; every third is of type `odd`."""
    rows = [
        {"id": f"q{n}", "question": f"Is number {n} of {hashlib.sha256(str(n).encode()).hexdigest()[:6]} lucky?",
         "answer": answer, "type": "odd" if n % 3 == 0 else "even"}
        for n in range(count)
    ]  # fmt: skip
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def settings(questions: Path, **flags: object) -> EvalConfig:
    """A config over a file of questions; flags are dotted names with `__` for the dots."""
    named = {name.replace("__", "."): value for name, value in flags.items()}
    columns = {"dataset.name": "jsonl", "dataset.path": str(questions), "dataset.columns.type": "type"}
    return load(EvalConfig, None, {**columns, **named})


class World:
    """Opens agents over doubles, and remembers what they asked.

    Args:
        brain: the model of Planner and Executor.
        judge: the judge's brain.
        search: what is searched.
    """

    def __init__(self, brain: Brain = oracle, judge: Brain | None = None, search: FixedSearch | None = None) -> None:
        self.model = chat(brain)
        self.judge = chat(judge) if judge else ScriptedChat()
        self.manager = ScriptedChat(always=manager_of_rules)
        self.search = search or FixedSearch()
        self.opened = 0

    def open(self, config: EvalConfig) -> Here:
        """An agent with a memory of its own in the place the config names."""
        self.opened += 1
        models: Mapping[Role, ChatModel] = scripted(self.model, self.model, manager=self.manager, judge=self.judge)
        meter = Metered(models["manager"])
        method = open_method(config, HashEncoder(), {**models, "manager": meter})
        tools = Search(self.search, (SearchTool(self.search, 3),))
        return Here(Agent(config, models, tools, method, RunStore(config.runs or config.memory.path.parent), meter))

    async def run(self, config: EvalConfig, out: Path, resume: bool = False) -> tuple[dict[str, Any], MiaError | None]:
        """Run to the end or to an error; gives the summary and the error."""
        dataset: Dataset = load_dataset(config.dataset)
        folder = open_folder(out, config, dataset, resume)
        items = stream(dataset, config.eval)
        seen: list[Row] = []
        ended: MiaError | None = None
        try:
            await Runner(config, items, folder, self.open, seen.append).run()
        except MiaError as error:
            ended = error
        finally:
            await folder.aclose()
        expected = sum(map(len, items))
        return finish(out, expected, ended.failure() if ended else None, config.eval.keep_traces), ended


def texts(chat_model: ScriptedChat) -> list[str]:
    """All that a scripted model was sent."""
    return ["\n".join(message.text for message in messages) for messages in chat_model.history]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]
