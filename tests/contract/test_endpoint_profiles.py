"""The shipped profiles against endpoints as strict as the real ones: whole runs, by our grammar and by native calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference.agent import Agent
from inference.cli import read_config
from inference.config import RunConfig
from inference.runs import Run
from mia.cli import main
from mia.config import Models, load
from mia.types import Question
from tests.doubles import call, picture
from tests.endpoints import ANTHROPIC, GEMINI, OPENAI, VLLM, Rules, opened, part, pictures, strict
from web_tools.stub import serving

PROFILES = {"vllm": VLLM, "openai": OPENAI, "gemini": GEMINI, "anthropic": ANTHROPIC}
SAMPLING = {"top_p": 0.9, "temperature": 0.7, "presence_penalty": 1.1, "repetition_penalty": 1.05, "seed": 3}
"""All that a sampling can say, as the paper's Executor and its rollouts do."""


def said(body: dict[str, Any]) -> str | dict[str, Any]:
    """Caption, plan, one search, answer, and no second round; one endpoint is all roles."""
    name = part(body)
    if name != "act":
        return {"caption": "A river.", "plan": "1. Search for the river.", "reflect": "No."}[name]
    if len(body["messages"]) > 1:
        return "<answer>Danube</answer>"
    if "tools" in body:
        function = {"name": "search", "arguments": json.dumps({"query": "river Vienna"})}
        return {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    return f"<think>look</think>{call('river Vienna')}<tool_response>made up</tool_response>{call('more')}"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    row = {"id": "1", "contents": '"Vienna"\nVienna, the capital of Austria, lies on the Danube.'}
    (folder / "corpus.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert (
        main(["index", "build", str(folder / "corpus.jsonl"), "--out", str(folder / "made"), "--engines", "bm25"]) == 0
    )
    return folder / "made"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for rules in PROFILES.values():
        if rules.key:
            monkeypatch.setenv(rules.key, f"key of {rules.key}")


async def run(rules: Rules, config: RunConfig) -> tuple[Run, list[dict[str, Any]]]:
    """A run of a question with a picture, and what the endpoint was sent."""
    with serving(strict(rules, said)) as server:
        endpoint = config.models.default.model_copy(update={"url": f"{server.url}/v1", "retries": 0})
        agent = Agent.open(config.model_copy(update={"models": Models(default=endpoint)}))
        try:
            question = Question(id="q", text="Which river is this?", images=(picture("red", (3000, 200)),))
            return await agent.ask(question), [seen.json for seen in server.seen if seen.method == "POST"]
        finally:
            await agent.aclose()


def config(profile: str | None, index: Path, **more: Any) -> RunConfig:
    flags: dict[str, Any] = {
        f"agent.{role}.{name}": value for role in ("executor", "planner") for name, value in SAMPLING.items()
    }
    flags |= {"search.index": str(index), "search.mode": "bm25", "method.name": "plan_only", **more}
    return read_config(profile, flags) if profile else load(RunConfig, None, flags)


@pytest.mark.parametrize("tool_format", ["grammar", "native"])
@pytest.mark.parametrize("profile", PROFILES)
async def test_a_profile_sends_what_its_endpoint_takes(profile: str, tool_format: str, index: Path) -> None:
    settings = config(profile, index, **{"models.default.tool_format": tool_format})
    run_, bodies = await run(PROFILES[profile], settings)
    assert run_.failure is None, run_.failure
    assert run_.degraded == ()
    assert run_.answer == "Danube"
    assert [part(body) for body in bodies] == ["caption", "plan", "act", "act", "reflect"]
    (search,) = [step.calls for step in run_.steps if step.calls]  # nothing after the stop text was read
    assert [made.arguments for made in search] == [{"query": "river Vienna"}]
    for body in bodies:
        sizes = [opened(url).size for url in pictures(body["messages"][0])]
        assert sizes == ([(1568, 105)] if part(body) in ("caption", "act") else [])
    assert all(("tools" in body) == (tool_format == "native" and part(body) == "act") for body in bodies)


@pytest.mark.parametrize(
    ("profile", "refused"), [("openai", "temperature"), ("gemini", "presence_penalty"), ("anthropic", "temperature")]
)
async def test_without_its_profile_an_endpoint_refuses(profile: str, refused: str, index: Path) -> None:
    """So that the test above says something."""
    plain = config(None, index, **{"models.default.model": "m", "models.default.api_key_env": PROFILES[profile].key})
    run_, _ = await run(PROFILES[profile], plain)
    assert run_.failure is not None
    assert run_.failure.code == "http_400"
    assert refused in run_.failure.message
