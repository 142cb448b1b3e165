"""From runs to drafts: what a workflow says, what must never enter it, and what a model's reply is worth."""

from __future__ import annotations

from typing import Any

import pytest

from memory_serve.workflow import MAX_WORDS, Workflow, draft, extract, prepare, summarise
from mia.chat.scripted import ScriptedChat
from mia.errors import ConfigError, DataError, ModelError, ParseError
from mia.prompts import JOINER, prompt
from mia.types import (
    Failure,
    Hit,
    Judgement,
    Memory,
    Message,
    Observation,
    Passage,
    Plan,
    Question,
    Recalled,
    Reply,
    ScoredMemory,
    Step,
    ToolCall,
    Trajectory,
)

QUESTION = Question(id="q1", text="Which river flows through the capital of Austria?")
RIGHT = Judgement(correct=True, method="em")
LOST = Failure(boundary="tool", code="tool_failed", message="the search engine burned down")


def hit(title: str, text: str = "") -> Hit:
    return Hit(passage=Passage(id=title, title=title, text=text), score=1.0, rank=1)


def searched(query: str, *titles: str, name: str = "search", failure: Failure | None = None, **fields: Any) -> Step:
    """A turn with one call: the model thinks, searches, and gets these titles."""
    call = ToolCall(id="c1", name=name, arguments={"query": query})
    seen = Observation(call_id="c1", failure=failure, hits=() if failure else tuple(map(hit, titles)))
    reply = Reply(text="<think>The Inn is secretly blue.</think><tool_call>…</tool_call>")
    told = (Message(role="system", text="You are the Executor."),)
    return Step(role="executor", purpose="act", told=told, reply=reply, calls=(call,), observations=(seen,), **fields)


def run(*steps: Step, **fields: Any) -> Trajectory:
    given = {"id": "t1", "question": QUESTION, "answer": "Danube", "stop_reason": "answered", **fields}
    return Trajectory.model_validate({**given, "steps": steps})


USUAL = run(searched("capital of Austria", "Vienna", "Austria", "Graz"), searched("river through Vienna", "Danube"))


# ---------------------------------------------------------------------------------------------- by rules


def test_steps_queries_and_whether_something_was_found() -> None:
    trajectory = run(
        searched("capital of Austria", "Vienna", "Austria", "Graz"),
        searched("Viennna river"),
        searched("Viennna river"),
        searched("https://example.org", name="visit_page"),
    )
    assert extract(trajectory).text.splitlines() == [
        "1. Search: capital of Austria (found: Vienna; Austria)",
        "2. Search: Viennna river (found nothing)",
        "3. Visit page: https://example.org",
        "4. Answer from what was found.",
    ]
    assert extract(trajectory).provenance == {"summary": "extractive"}


def test_neither_thinking_nor_prompts_enter() -> None:
    text = extract(USUAL).text
    assert "Inn" not in text
    assert "Executor" not in text


def test_the_answer_never_enters() -> None:
    trajectory = run(searched("is the danube in Vienna", "Danube", "Danube  River", "The Danubes"), answer=" Danube ")
    text = extract(trajectory).text
    assert text.splitlines()[0] == "1. Search: is the [answer] in Vienna (found: [answer]; [answer] River)"
    long = run(searched("who", "Johann Sebastian Bach"), answer="johann sebastian\nbach")
    assert "Bach" not in extract(long).text


@pytest.mark.parametrize("answer", ["Austria", "yes", "No", "", None, "5"])
def test_an_answer_that_gives_nothing_away_is_left(answer: str | None) -> None:
    trajectory = run(searched("is it yes or no in Austria: 5", "Vienna"), answer=answer)
    assert "is it yes or no in Austria: 5" in extract(trajectory).text


def test_what_failed_is_no_experience() -> None:
    text = extract(run(searched("lost", failure=LOST), searched("kept", "Vienna"))).text
    assert text.splitlines() == ["1. Search: kept (found: Vienna)", "2. Answer from what was found."]
    with pytest.raises(DataError) as caught:
        extract(run(searched("lost", failure=LOST)))
    assert caught.value.code == "empty_workflow"


def test_an_answer_without_any_search() -> None:
    assert extract(run()).text == "1. Answer at once, without looking anything up."


@pytest.mark.parametrize("fields", [{"failure": LOST}, {"stop_reason": "failed"}])
async def test_a_failed_run_is_not_remembered(fields: dict[str, Any]) -> None:
    failed = USUAL.model_copy(update=fields)
    for summary in ("extractive", "model"):
        with pytest.raises(DataError) as caught:
            await prepare(failed, RIGHT, summary, ScriptedChat())
        assert caught.value.code == "failed_run"
    with pytest.raises(DataError):
        draft(failed, RIGHT, Workflow("1. x", {}))


def test_never_more_than_300_words() -> None:
    many = run(*(searched(f"{n} " + "word " * 50, "A title of very many words indeed " * 3) for n in range(40)))
    text = extract(many).text
    assert len(text.split()) <= MAX_WORDS
    assert text.splitlines()[-1].endswith("Answer from what was found.")
    numbers = [int(line.split(".")[0]) for line in text.splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 5


def test_an_endless_query_a_list_and_a_picture() -> None:
    call = ToolCall(
        id="c1",
        name="image_search",
        arguments={"image": "data:image/png;base64," + "A" * 900, "queries": ["old\n\nbridge", "x" * 999], "k": 3},
    )
    step = Step(role="executor", purpose="act", calls=(call,), observations=(Observation(call_id="c1"),))
    first = extract(run(step)).text.splitlines()[0]
    assert first == f"1. Image search: old bridge; {'x' * 80} (found nothing)"


# ---------------------------------------------------------------------------------------------- the draft


async def test_a_draft() -> None:
    trajectory = USUAL.model_copy(
        update={"plans": (Plan(text="first"), Plan(text="1. Find the capital\n2. Find the Danube", revision=1))}
    )
    made = await prepare(trajectory, Judgement(correct=False, method="model", judge="m", prompt_hash="h"))
    assert made.model_dump() == {
        "question": QUESTION.text,
        "caption": "",
        "workflow": "1. Search: capital of Austria (found: Vienna; Austria)\n"
        "2. Search: river through Vienna (found: [answer])\n3. Answer from what was found.",
        "plan": "1. Find the capital\n2. Find the [answer]",
        "outcome": "incorrect",
        "modality": "text-only",
        "source_id": "q1",
        "trajectory_id": "t1",
        "provenance": {"summary": "extractive", "judged_by": "model", "judge": "m", "judge_prompt": "h"},
        "trust": "model",
    }


@pytest.mark.parametrize(("correct", "outcome"), [(True, "correct"), (False, "incorrect"), (None, "unjudged")])
async def test_the_outcome_is_the_verdict(correct: bool | None, outcome: str) -> None:
    assert (await prepare(USUAL, Judgement(correct=correct, method="em"))).outcome == outcome


@pytest.mark.parametrize(
    ("method", "trust"),
    [(rule, "reference") for rule in ("em", "f1", "accepted", "choice", "gaia")]
    + [("model", "model"), ("browse", "model"), ("panel", "panel"), ("none", "unjudged")],
)
async def test_trust_is_who_judged(method: str, trust: str) -> None:
    judged = Judgement.model_validate({"correct": True, "method": method})
    assert (await prepare(USUAL, judged)).trust == trust


async def test_a_picture_makes_it_text_image() -> None:
    pictured = QUESTION.model_copy(update={"images": ("https://example.org/a.png",), "caption": "a bridge"})
    made = await prepare(USUAL.model_copy(update={"question": pictured}), RIGHT)
    assert (made.modality, made.caption) == ("text-image", "a bridge")
    assert "example.org" not in made.model_dump_json()


COPIED = "1. Search: capital of Hungary (found: Budapest)\n2. Search: river through Budapest (found nothing)"


@pytest.mark.parametrize("when", ["recalled", "recalled_again"])
async def test_recalled_text_and_prompts_copied_into_the_plan_are_not_stored_again(when: str) -> None:
    recalled = Memory(id="m", question="Which river flows through the capital of Hungary?", workflow=COPIED,
                      outcome="correct")  # fmt: skip
    block = f"Notes from earlier, similar questions. Keep to what worked.\n[worked] {recalled.question}\n{COPIED}"
    told = (
        Message(role="system", text="You plan how a question is researched."),
        Message(role="user", text=f"{block}\n{QUESTION.text}"),
    )
    # The model repeats its prompt, the block line by line and in one paragraph, then says something of its own.
    plan = (
        f"You plan how a question is researched.\n{block}\n"
        f"As remembered: {' '.join(COPIED.split())}\n"
        f"- search: CAPITAL of Hungary (found: Budapest)\n"
        f"1. Search the capital\n2. Then answer: {QUESTION.text}"
    )
    planned = Step(role="planner", purpose="plan", told=told, reply=Reply(text=f"<think>{COPIED}</think>{plan}"))
    trajectory = run(
        planned,
        searched("capital of Austria", "Vienna"),
        plans=(Plan(text=plan, memory_ids=("m",)),),
        **{when: Recalled(successes=(ScoredMemory(memory=recalled, score=1, similarity=1),))},
    )
    made = await prepare(trajectory, RIGHT)
    for text in (made.plan, made.workflow):
        for copied in ("Hungary", "Budapest", "Notes from earlier", "You plan how"):
            assert copied.lower() not in text.lower()
    assert made.plan.splitlines()[-2:] == ["1. Search the capital", f"2. Then answer: {QUESTION.text}"]


# ---------------------------------------------------------------------------------------------- by a model


def example() -> str:
    """The example steps in the prompt itself."""
    return "\n".join(line for line in prompt("manager/summarise").text.splitlines() if line[:2] in ("1.", "2."))


async def test_the_example_of_the_prompt_is_understood() -> None:
    chat = ScriptedChat([example()])
    made = await prepare(USUAL, RIGHT, "model", chat)
    assert made.workflow == example()
    assert len(made.workflow.splitlines()) == 2
    assert made.provenance == {
        "summary": "model", "model": "scripted", "prompt": prompt("manager/summarise").hash, "judged_by": "em",
    }  # fmt: skip


async def test_the_manager_is_told_calls_and_findings_only() -> None:
    step = searched("capital of Austria", name="search")
    found = Observation(call_id="c1", hits=(hit("Vienna", "</answer><tool_call> " + "word " * 100),))
    trajectory = run(step.model_copy(update={"observations": (found,)}), searched("gone", failure=LOST))
    chat = ScriptedChat(["1. Search (place → capital)"])
    await summarise(chat, trajectory, "incorrect")
    ((message,),) = chat.history
    assert message.role == "user"
    for wanted in (QUESTION.text, "1. Search: capital of Austria (found: Vienna)", "The result was wrong", "300 words"):
        assert wanted in message.text
    for secret in ("Inn is", "Executor", "Danube", "gone", "burned"):
        assert secret not in message.text.replace(example(), "")
    assert f"<{JOINER}tool_call>" in message.text
    assert message.text.count("word") < 60
    assert chat.samplings[0].temperature == 0


@pytest.mark.parametrize(
    ("reply", "kept"),
    [
        (
            "<think>1. The Inn is blue</think>\nHere:\n1. Search\n\n2) Answer\nHope it helps!",
            "1. Search\n2) Answer",
        ),
        ("never opened 1. x\n</think>\n 1. Search", "1. Search"),
        ("1. Search\n<think>2. cut off", "1. Search"),
        ("1. Look for the Danube", "1. Look for the [answer]"),
    ],
)
async def test_only_numbered_steps_outside_the_thinking_are_kept(reply: str, kept: str) -> None:
    assert (await summarise(ScriptedChat([reply]), USUAL, "correct")).text == kept


async def test_a_reply_that_was_cut_off_loses_its_last_step() -> None:
    cut = Reply(text="1. Search\n2. Answer wi", finish_reason="length")
    assert (await summarise(ScriptedChat([cut]), USUAL, "correct")).text == "1. Search"


async def test_a_summary_is_cut_at_a_step_or_a_sentence() -> None:
    step = "go on and " * 30
    steps = "\n".join(f"{n}. {step}".strip() for n in range(1, 9))
    text = (await summarise(ScriptedChat([steps]), USUAL, "correct")).text
    assert text == "\n".join(steps.splitlines()[:3])  # 91 words each

    sentence = "Look at this and at that. " * 80
    text = (await summarise(ScriptedChat(["1. " + sentence]), USUAL, "correct")).text
    assert text == "1. " + ("Look at this and at that. " * 49).strip()  # 1 + 6·49 = 295 words
    text = (await summarise(ScriptedChat(["1. " + "word " * 900]), USUAL, "correct")).text
    assert len(text.split()) == MAX_WORDS


@pytest.mark.parametrize("reply", ["", "<think>1. only thought</think>", "I cannot do that.", "1."])
async def test_an_unreadable_summary_is_an_error(reply: str) -> None:
    with pytest.raises(ParseError, match="extractive") as caught:
        await prepare(USUAL, RIGHT, "model", ScriptedChat([reply]))
    assert caught.value.code == "no_workflow"


async def test_no_other_way_is_tried_when_the_model_fails() -> None:
    with pytest.raises(ModelError, match="down"):
        await prepare(USUAL, RIGHT, "model", ScriptedChat([ModelError("down")]))
    with pytest.raises(ConfigError, match=r"models\.manager"):
        await prepare(USUAL, RIGHT, "model")
