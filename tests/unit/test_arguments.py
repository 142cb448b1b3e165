"""Arguments that models write: what is read, what is refused, and that everything read can be stored and printed."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia.chat.arguments import read_arguments
from mia.errors import ParseError
from mia.types import ToolCall

READ: list[tuple[Any, dict[str, Any]]] = [
    ({"query": "sea"}, {"query": "sea"}),
    ('{"query": "sea"}', {"query": "sea"}),
    ('  {"query": "sea"}\n', {"query": "sea"}),
    ("{}", {}),
    ('{"query": "line one\nline two\ttabbed"}', {"query": "line one\nline two\ttabbed"}),
    ('{"query": "first", "query": "second"}', {"query": "second"}),
    (
        '{"n": 3, "x": 1.5, "on": true, "none": null, "list": [1, {"a": "b"}]}',
        {"n": 3, "x": 1.5, "on": True, "none": None, "list": [1, {"a": "b"}]},
    ),
    ('{"query": "caf\\u00e9 \\ud83d\\ude00"}', {"query": "café 😀"}),
    ('{"query": "caf\\ud83d"}', {"query": "caf\ufffd"}),
    ({"query": "caf\ud83d"}, {"query": "caf\ufffd"}),
    ({"deep": [{"k\ude00": ["\ud83d", "\ud83d\ude00"]}]}, {"deep": [{"k\ufffd": ["\ufffd", "😀"]}]}),
    ({"k\ud83d": 1}, {"k\ufffd": 1}),
]


@pytest.mark.parametrize(("raw", "wanted"), READ)
def test_objects_are_read_and_can_be_stored_and_printed(raw: Any, wanted: dict[str, Any]) -> None:
    arguments = read_arguments(raw)
    assert arguments == wanted
    call = ToolCall(id="1", name="search", arguments=arguments)
    assert ToolCall.model_validate_json(call.model_dump_json()) == call
    json.dumps(arguments, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ('{"n": NaN}', "NaN"),
        ('{"n": Infinity}', "Infinity"),
        ('{"n": -Infinity}', "-Infinity"),
        ({"n": float("nan")}, "nan"),
        ({"n": [{"m": float("inf")}]}, "inf"),
        ('{"n": 1e999}', "inf"),
        (None, "not null"),
        ("null", "not null"),
        ("", "not valid JSON"),
        ("[1, 2]", "not list"),
        ([1], "not list"),
        ('"text"', "not valid JSON"),
        ("3", "not int"),
        (True, "not bool"),
        ('{"query": "sea"', "not valid JSON"),
        ('{"query": "sea"} and more', "not valid JSON"),
        ("{'query': 'sea'}", "not valid JSON"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "not valid JSON"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "not valid JSON"),
        ('{"a": ' + "[" * 700 + "]" * 700 + "}", "deeper than 64"),
        ('{"a": ' + "[" * 64 + "]" * 64 + "}", "deeper than 64"),
        (json.dumps(json.dumps(json.dumps({}))), "not str"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_everything_else_is_refused_with_the_reason(raw: Any, reason: str) -> None:
    with pytest.raises(ParseError) as refused:
        read_arguments(raw)
    assert reason in refused.value.message


def test_an_object_written_as_text_of_text_is_read() -> None:
    assert read_arguments(json.dumps(json.dumps({"query": "sea"}))) == {"query": "sea"}


def test_as_many_levels_as_are_read_can_be_stored() -> None:
    arguments = read_arguments('{"a": ' + "[" * 63 + "]" * 63 + "}")
    call = ToolCall(id="1", name="search", arguments=arguments)
    assert ToolCall.model_validate_json(call.model_dump_json()) == call


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values, max_size=4))
def test_what_json_writes_is_read_back(arguments: dict[str, Any]) -> None:
    assert read_arguments(json.dumps(arguments)) == arguments
    assert read_arguments(arguments) == arguments


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ParseError):
        assert isinstance(read_arguments(text), dict)
