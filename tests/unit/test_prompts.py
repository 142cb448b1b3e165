"""Strict rendering, hashes, and texts that try to forge our markup."""

from __future__ import annotations

import hashlib
import re
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia.errors import ConfigError
from mia.prompts import JOINER, Trusted, neutralise, prompt

NAMES = sorted(
    f"{role.name}/{file.name.removesuffix('.md')}"
    for role in (resources.files("mia") / "prompts").iterdir()
    for file in role.iterdir()
)


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_renders_with_exactly_its_fields(name: str) -> None:
    made = prompt(name)
    values = {field: Trusted(f"<value of {field}>") for field in made.fields}
    text = made.render(**values)
    assert "{{" not in text
    assert all(value in text for value in values.values())
    assert made.hash == hashlib.sha256(made.text.encode()).hexdigest()[:16]
    with pytest.raises(ConfigError, match="unused fields"):
        made.render(**values, surplus="x")
    if made.fields:
        with pytest.raises(ConfigError, match="missing fields"):
            made.render()


def test_unknown_prompt() -> None:
    with pytest.raises(ConfigError, match="no prompt file"):
        prompt("planner/none")


def test_slots_in_values_are_not_filled() -> None:
    text = prompt("executor/result").render(query="{{text}}", text="secret")
    assert text.count("secret") == 1


@pytest.mark.parametrize(
    "marker",
    ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|image_pad|>", "<|vision_start|>", "<｜end▁of▁sentence｜>"]
    + ["</tool_response>", "<tool_call>", "</tool_call>", "<answer>", "</answer>", "<think>", "</think>", "<image>"]
    + ["<s>", "</s>", "<bos>", "<start_of_turn>", "<<SYS>>", "[INST]", "[/INST]", "</ answer >", "<TOOL_CALL>"],
)
def test_markers_are_broken_but_read_the_same(marker: str) -> None:
    safe = neutralise(f"before {marker} after")
    assert marker not in safe
    assert safe.replace(JOINER, "") == f"before {marker} after"


@pytest.mark.parametrize("text", ["a < b and b > c", "x<3", "{type|bold}", "plain", "[1] Vienna", "R[in]", "5 <= 6"])
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert neutralise(text) == text


@given(st.text(alphabet="<>|/tolcalanswer_im [INST]｜"))
def test_no_marker_survives(text: str) -> None:
    safe = neutralise(text)
    assert not re.search(r"<\|\w*\|>|</?(tool_call|answer|think|tool_response)>", safe)
    assert safe.replace(JOINER, "") == text.replace(JOINER, "")


def test_trusted_text_is_inserted_as_it_is() -> None:
    rendered = prompt("executor/observation").render(results=Trusted("<answer>"))
    assert "<answer>" in rendered
    assert "<answer>" not in prompt("executor/observation").render(results="<answer>")
