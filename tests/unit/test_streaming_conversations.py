"""Chat logs as episodes: OpenAI's form and OpenClaw's sessions; what is no log is refused by line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mia.errors import DataError
from ttrl_streaming.conversations import read_episodes


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def told(path: Path) -> list[tuple[str, str, str]]:
    return [(e.question, e.answer, e.said) for e in read_episodes(path)]


def test_openai_messages(tmp_path: Path) -> None:
    calls = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function"}]}
    one = [
        {"role": "system", "content": "Be brief."}, user("Which river?"), calls,
        {"role": "tool", "tool_call_id": "c", "content": "Danube"}, {"role": "assistant", "content": "The Rhine."},
        user([{"type": "text", "text": "No, the Danube."}, {"type": "image_url", "image_url": {"url": "x"}}]),
        {"role": "assistant", "content": "Right, the Danube."}, user("Thanks!"),
    ]  # fmt: skip
    path = written(tmp_path / "log.jsonl", {"messages": one}, "", {"messages": [user("Alone?")]})
    assert told(path) == [
        ("Which river?", "The Rhine.", "No, the Danube."),
        ("No, the Danube.", "Right, the Danube.", "Thanks!"),
    ]


def test_an_openclaw_session(tmp_path: Path) -> None:
    def line(role: str, *content: Any) -> dict[str, Any]:
        return {"type": "message", "id": "a", "parentId": "b", "timestamp": "2026-04-08T01:03:43.107Z",
                "message": {"role": role, "content": list(content), "timestamp": 1}}  # fmt: skip

    def text(words: str) -> dict[str, str]:
        return {"type": "text", "text": words}

    path = written(
        tmp_path / "session.jsonl",
        {"type": "session", "version": 3, "id": "s", "timestamp": "2026-04-08T01:03:43.107Z", "cwd": "/home/ann"},
        {"type": "model_change", "id": "1", "parentId": None, "provider": "x", "modelId": "y"},
        line("user", text("Which river?")),
        line("assistant", {"type": "thinking", "thinking": "Hm."}, text("Wait."), {"type": "toolCall", "id": "t"}),
        line("toolResult", text("Danube")),
        {"type": "custom", "customType": "model-snapshot", "data": {}},
        line("assistant", text("The Danube.")),
        line("user", text("Thanks.")),
    )  # fmt: skip
    assert told(path) == [("Which river?", "The Danube.", "Thanks.")]


def test_ids_follow_from_the_content(tmp_path: Path) -> None:
    talk = {"messages": [user("a"), {"role": "assistant", "content": "b"}, user("c")]}
    first = read_episodes(written(tmp_path / "one.jsonl", talk, talk))
    second = read_episodes(written(tmp_path / "two.jsonl", talk))
    assert first == second
    assert len(first) == 1


@pytest.mark.parametrize(
    ("line", "fault"),
    [("{", "line 2: no JSON"), ([1], "line 2: no JSON object"), ({"text": "x"}, "line 2: neither"),
     ({"messages": [{"content": "x"}]}, "line 2: message.role"), ({"messages": [user(3)]}, "line 2: message.content")],
)  # fmt: skip
def test_what_is_no_log_is_refused(tmp_path: Path, line: Any, fault: str) -> None:
    path = written(tmp_path / "log.jsonl", {"messages": []}, line)
    with pytest.raises(DataError, match=fault):
        read_episodes(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        read_episodes(tmp_path / "none.jsonl")
