"""Test doubles of methods: finished runs, verdicts, and notebooks in a folder."""

from __future__ import annotations

import json
from pathlib import Path

from inference.methods.notebook import Notebook
from inference.methods.protocol import Method
from inference.runs import Run
from memory_serve.hashing import HashEncoder
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
    Step,
    ToolCall,
)

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
