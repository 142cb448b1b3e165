"""The grammar parser on what real models write."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.grammar import WANTED, parse, split_thinking
from mia.prompts import prompt
from mia.types import Question, Reply, Step, ToolCall, Trajectory


def queries(text: str) -> list[object]:
    return [call.arguments.get("query") for call in parse(Reply(text=text)).calls]


CALL = '{"name": "search", "arguments": {"query": "Vienna river"}}'

ONE_CALL = {
    "brace in a string": (
        '<tool_call>\n{"name": "search", "arguments": {"query": "find -name a/{b,c"}}\n</tool_call>',
        ["find -name a/{b,c"],
    ),
    "closing tag in a string": (
        '<tool_call>{"name": "search", "arguments": {"query": "what is </tool_call> for"}}</tool_call>',
        ["what is </tool_call> for"],
    ),
    "arguments as a string": (
        '<tool_call>{"name": "search", "arguments": "{\\"query\\": \\"Rhine\\"}"}</tool_call>',
        ["Rhine"],
    ),
    "python literals": (
        """<tool_call>{'name': 'search', 'arguments': {'query': "St. John's"}}</tool_call>""",
        ["St. John's"],
    ),
    "surplus brace": (f"<tool_call>{CALL}}}</tool_call>", ["Vienna river"]),
    "missing brace": (f"<tool_call>{CALL[:-1]}</tool_call>", ["Vienna river"]),
    "raw newline": ('<tool_call>{"name": "search", "arguments": {"query": "a\nb"}}</tool_call>', ["a\nb"]),
    "prose after the object": (f"<tool_call>{CALL}\nso {{that}} is it }}</tool_call>", ["Vienna river"]),
    "prose after the tag": (f"<tool_call>{CALL}</tool_call>\nNow I wait. }}", ["Vienna river"]),
    "never closed": (f"<tool_call>{CALL}", ["Vienna river"]),
    "key twice": ('<tool_call>{"name": "search", "arguments": {"query": "A", "query": "B"}}</tool_call>', ["B"]),
    "two objects": (
        '<tool_call>{"name": "search", "arguments": {"query": "A"}}\n{"name": "search", "arguments": {"query": "B"}}'
        "</tool_call>",
        ["A", "B"],
    ),
    "array": (
        '<tool_call>[{"name": "search", "arguments": {"query": "A"}}, {"name": "search", "arguments": {"query": "B"}}]'
        "</tool_call>",
        ["A", "B"],
    ),
    "two tags": (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", ["Vienna river"] * 2),
    "lone surrogate": ('<tool_call>{"name": "search", "arguments": {"query": "x\\ud83d"}}</tool_call>', ["x\ufffd"]),
    "surrogate pair": ('<tool_call>{"name": "search", "arguments": {"query": "\\ud83d\\ude00"}}</tool_call>', ["😀"]),
    "call mused about": (
        f"<think>try <tool_call>{CALL}</tool_call>?</think>\n<tool_call>{CALL.replace('Vienna', 'B')}</tool_call>",
        ["B river"],
    ),
}


@pytest.mark.parametrize("case", ONE_CALL)
def test_calls_are_read(case: str) -> None:
    text, expected = ONE_CALL[case]
    parsed = parse(Reply(text=text))
    assert [c.arguments["query"] for c in parsed.calls] == expected
    assert parsed.malformed == ()
    assert parsed.answer is None


MALFORMED = {
    "other form": ('<tool_call>\n<function>search</function>\n{"query": "x"}\n</tool_call>', "a JSON object"),
    "null name": ('<tool_call>{"name": null, "arguments": null}</tool_call>', "name must be"),
    "list of arguments": ('<tool_call>{"name": "search", "arguments": ["x"]}</tool_call>', "not list"),
    "no arguments": ('<tool_call>{"name": "search"}</tool_call>', "arguments are missing"),
    "NaN": ('<tool_call>{"name": "search", "arguments": {"query": "A", "k": NaN}}</tool_call>', "NaN"),
    "infinite": ('<tool_call>{"name": "search", "arguments": {"query": "A", "k": 1e999}}</tool_call>', "inf"),
    "huge number": (
        f'<tool_call>{{"name": "search", "arguments": {{"k": {"9" * 5000}}}}}</tool_call>',
        "not valid JSON",
    ),
    "deep nesting": ("<tool_call>" + "[" * 100_000, "nested too deeply"),
    "python set": ("<tool_call>{'name': 'search', 'arguments': {'query': {1, 2}}}</tool_call>", "not a JSON value"),
    "array of texts": ('<tool_call>["search"]</tool_call>', "a JSON object"),
    "nothing": ("<tool_call></tool_call>", "a JSON object"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_cannot_be_read_is_named(case: str) -> None:
    text, reason = MALFORMED[case]
    parsed = parse(Reply(text=text))
    assert parsed.calls == ()
    assert len(parsed.malformed) == 1
    assert reason in parsed.malformed[0].reason
    told = prompt("executor/malformed").render(reason=parsed.malformed[0].reason, wanted=WANTED)
    assert len(told) < 300
    step = Step(role="executor", purpose="act", malformed=parsed.malformed)
    trajectory = Trajectory(id="t", question=Question(id="q", text="?"), stop_reason="failed", steps=(step,))
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
    json.loads(trajectory.model_dump_json(), parse_constant=lambda name: pytest.fail(f"{name} in the file"))


def test_one_bad_call_does_not_hide_the_good_one() -> None:
    parsed = parse(Reply(text=f"<tool_call>{{bad}}</tool_call><tool_call>{CALL}</tool_call>"), turn=3)
    assert [c.id for c in parsed.calls] == ["t3c1"]
    assert [m.id for m in parsed.malformed] == ["t3c0"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>Vienna</answer>", "Vienna"),
        ("<answer> Vienna \n</answer> trailing", "Vienna"),
        ("<think>perhaps <answer>Linz</answer> no</think><answer>Vienna</answer>", "Vienna"),
        (
            "<think>Some write <tool_call> without closing it, others <answer>.</think>\n<answer>Vienna</answer>",
            "Vienna",
        ),
        ("thinking opened in the prompt</think><answer>Vienna</answer>", "Vienna"),
        ("<answer>Vienna", "Vienna"),
        ("<answer>   </answer>", None),
        ("<think>never closed <answer>Vienna</answer>", None),
        ("Thought: stop. } trailing", None),
        ("＜answer＞Vienna＜/answer＞", None),
        ("", None),
    ],
)
def test_answers(text: str, answer: str | None) -> None:
    parsed = parse(Reply(text=text))
    assert parsed.answer == answer
    assert parsed.calls == ()
    assert parsed.malformed == ()


def test_the_first_tag_decides() -> None:
    answer_first = parse(Reply(text=f"<answer>Vienna</answer><tool_call>{CALL}</tool_call>"))
    assert (answer_first.answer, answer_first.calls) == ("Vienna", ())
    call_first = parse(Reply(text=f"<tool_call>{CALL}</tool_call><answer>Vienna</answer>"))
    assert (call_first.answer, len(call_first.calls)) == (None, 1)


def test_a_reply_cut_by_the_limit_is_named_as_cut() -> None:
    parsed = parse(Reply(text='<tool_call>{"name": "search", "argum', finish_reason="length"))
    assert parsed.cut
    assert parsed.malformed == ()
    assert parse(Reply(text="<answer>Vien", finish_reason="length")).cut
    assert parse(Reply(text=f"<tool_call>{CALL}", finish_reason="length")).calls
    assert not parse(Reply(text="plain prose")).cut


def test_native_calls_take_the_place_of_the_grammar() -> None:
    made = ToolCall(id="c1", name="search", arguments={"query": "x"})
    parsed = parse(Reply(text="<answer>no</answer>", tool_calls=(made,)))
    assert parsed.calls == (made,)
    assert parsed.answer is None


def test_reasoning_field_is_never_parsed() -> None:
    parsed = parse(Reply(text="", reasoning=f"<tool_call>{CALL}</tool_call>"))
    assert (parsed.calls, parsed.malformed, parsed.answer) == ((), (), None)


def test_thinking_is_split_off() -> None:
    assert split_thinking("<think> a </think> b") == ("a", " b")
    assert split_thinking("<think>a") == ("a", "")
    assert split_thinking("b <think>a") == ("a", "b ")
    assert split_thinking("plain") == ("", "plain")


def test_the_prompt_example_is_read_by_the_parser() -> None:
    example = next(line for line in prompt("executor/task").text.splitlines() if line.startswith("<tool_call>"))
    assert queries(example) == ["river through Budapest"]
    answer = next(line for line in prompt("executor/task").text.splitlines() if line.startswith("<answer>"))
    assert parse(Reply(text=answer)).answer == "Danube"


@given(st.text())
def test_any_text_is_parsed_without_exception(text: str) -> None:
    parse(Reply(text=text))
    parse(Reply(text=f"<tool_call>{text}"))


@given(st.text(min_size=1).filter(str.strip))
def test_any_query_is_read_back_exactly(query: str) -> None:
    call = json.dumps({"name": "search", "arguments": {"query": query}})
    assert queries(f"<tool_call>{call}</tool_call>") == [query]
