"""Test doubles of methods: finished runs, verdicts, notebooks in a folder, and agents over models that go by rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inference.agent import Agent
from inference.config import RunConfig
from inference.methods.config import MethodConfig, Name
from inference.methods.notebook import Notebook
from inference.methods.open import open_method
from inference.methods.protocol import Method
from inference.runs import Run, RunStore
from inference.search import Search
from inference.tools import SearchTool
from memory_serve.config import MemoryConfig
from memory_serve.hashing import HashEncoder
from mia.chat.scripted import ScriptedChat
from mia.prompts import prompt
from mia.types import (
    Failure,
    Hit,
    Judgement,
    Message,
    Observation,
    Passage,
    Plan,
    Question,
    Reply,
    Role,
    Step,
    ToolCall,
)
from scripts.bench.scripted_manager import answer
from tests.doubles import FixedSearch, call

RIGHT = Judgement(correct=True, method="em")
WRONG = Judgement(correct=False, method="em")
UNJUDGED = Judgement(correct=None, method="none")
PROMPT = "Answer the question with the help of tools."
ROOM = 20_000


def notebook(folder: Path, method: str = "m") -> Notebook:
    """A notebook of a method in a folder."""
    return Notebook(folder / f"{method}.db", method, HashEncoder())


def finished(
    name: str,
    question: str,
    answer: str | None = "Danube",
    query: str = "capital of Austria",
    found: str = "Vienna is the capital of Austria.",
    plan: str = "",
) -> Run:
    """The run `run-NAME` for the question `q-NAME`, of two turns: thinking and a search, then the answer."""
    call = ToolCall(id="c1", name="search", arguments={"query": query})
    hit = Hit(passage=Passage(id="1", title="Vienna", text=found), score=1.0, rank=1)
    said = f"<think>secret thought</think>First words.<tool_call>{json.dumps({'name': 'search'})}</tool_call>"
    steps = (
        Step(
            role="executor",
            purpose="act",
            told=(Message(role="user", text=PROMPT),),
            reply=Reply(text=said),
            calls=(call,),
            observations=(Observation(call_id="c1", text=found, hits=(hit,)),),
        ),
        Step(role="executor", purpose="act", reply=Reply(text=f"<answer>{answer}</answer>" if answer else "I give up")),
    )
    return Run(
        id=f"run-{name}",
        question=Question(id=f"q-{name}", text=question),
        plans=(Plan(text=plan),) if plan else (),
        steps=steps,
        answer=answer,
        stop_reason="answered" if answer else "no_answer",
    )


def failed(run: Run) -> Run:
    """The run, had it failed."""
    failure = Failure(boundary="model", code="model_failed", message="no endpoint")
    return run.model_copy(update={"failure": failure, "stop_reason": "failed", "answer": None})


async def shown(method: Method, question: str, k: int = 3, asked: str = "new") -> list[str]:
    """Texts of the notes that a question is shown."""
    recalled = await method.recall(Question(id=asked, text=question), k)
    assert recalled.ids == ()
    return [note.text for note in recalled.notes]


def manager() -> ScriptedChat:
    """A Manager that answers every prompt of every method by rule."""
    return ScriptedChat(always=lambda messages: answer([{"role": m.role, "content": m.text} for m in messages]))


def planner(replan: bool = False) -> ScriptedChat:
    """A Planner that plans a search for the capital, and thinks every answer good, or none."""

    def write(messages: Sequence[Message]) -> str:
        if asks(messages[-1].text, "planner/reflect"):
            return "yes, look again" if replan else "no, it is supported"
        return "1. Look again." if asks(messages[-1].text, "planner/replan") else "1. Find the capital."

    return ScriptedChat(always=write)


def executor(reply: str = "Danube") -> ScriptedChat:
    """An Executor that searches once for each plan if it has tools, then gives its answer."""

    def write(messages: Sequence[Message]) -> str:
        if asks(messages[0].text, "executor/task_direct") or "Results for" in messages[-1].text:
            return f"<think>I see.</think><answer>{reply}</answer>"
        return f"<think>Let me see.</think>I look it up. {call('Vienna')}"

    return ScriptedChat(always=write)


def judging(grade: str = "A", accept: bool = True) -> ScriptedChat:
    """A judge model that gives one grade, and reviews as one."""

    def write(messages: Sequence[Message]) -> str:
        text = messages[-1].text
        if asks(text, "judge/grade"):
            return grade
        if asks(text, "judge/panel_chair"):
            return json.dumps({"reason": "so it is", "verdict": "accept" if accept else "reject"})
        return json.dumps({"quote": "Question", "reason": "so it is", "score": 9 if accept else 2})

    return ScriptedChat(always=write)


def asks(text: str, name: str) -> bool:
    """Whether a text is made of a prompt: begins with its words before the first slot."""
    return text.startswith(prompt(name).text.partition("{{")[0])


def agent(
    folder: Path, name: Name, models: Mapping[Role, ScriptedChat] | None = None, k: int = 3, **sections: Any
) -> Agent:
    """An agent of a method, opened by its name as a config does, over scripted models; files in a folder."""
    config = RunConfig(
        method=MethodConfig(name=name, k=k, feedback=sections.pop("feedback", None), path=folder / f"{name}.db"),
        memory=MemoryConfig(path=folder / "memory.db"),
        **sections,
    )
    chats: dict[Role, ScriptedChat] = {"manager": manager(), "planner": planner(), "executor": executor()}
    chats |= {"judge": judging(), "router": ScriptedChat()}
    chats |= models or {}
    search = FixedSearch()
    opened = open_method(config, HashEncoder(), chats)
    return Agent(config, chats, Search(search, (SearchTool(search, 3),)), opened, RunStore(folder / "runs"))
