"""Config: precedence, unknown keys with suggestions, environment, and the flags of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.config import RunConfig
from mia.cli import parse, parser
from mia.config import Endpoint, load
from mia.errors import ConfigError


def write(path: Path, text: str) -> Path:
    file = path / "run.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_defaults_then_file_then_environment_then_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(RunConfig).agent.max_turns == 10
    file = write(tmp_path, "[agent]\nmax_turns = 3\nmax_calls = 4\nmax_parallel = 2\n")
    assert load(RunConfig, file).agent.max_turns == 3
    monkeypatch.setenv("MIA__AGENT__MAX_TURNS", "5")
    monkeypatch.setenv("MIA__AGENT__MAX_CALLS", "6")
    config = load(RunConfig, file, {"agent.max_turns": "7"})
    assert (config.agent.max_turns, config.agent.max_calls, config.agent.max_parallel) == (7, 6, 2)


def test_one_setting_of_a_section_leaves_the_others(tmp_path: Path) -> None:
    file = write(tmp_path, '[models.default]\nurl = "http://127.0.0.1:1/v1"\n[agent.planner]\nmax_tokens = 9\n')
    config = load(RunConfig, file, {"models.default.model": "m"})
    assert config.models.default == Endpoint(url="http://127.0.0.1:1/v1", model="m")
    assert config.agent.planner.max_tokens == 9
    assert config.agent.executor.stop == ("<tool_response>",)


def test_roles_share_the_default_endpoint() -> None:
    config = load(RunConfig, None, {"models.judge.url": "http://127.0.0.1:9/v1"})
    assert config.models.of("judge").url == "http://127.0.0.1:9/v1"
    assert config.models.of("planner") == config.models.default


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[agent]\nmax_turn = 3\n", r"agent\.max_turn: unknown key; did you mean 'max_turns'\?"),
        ("[agents]\nmax_turns = 3\n", r"agents: unknown key; did you mean 'agent'\?"),
        ("[models.default]\nurls = 'x'\n", r"models\.default\.urls: unknown key; did you mean 'url'\?"),
        ("[models.planner]\nurls = 'x'\n", r"models\.planner\.urls: unknown key; did you mean 'url'\?"),
        ("[agent]\nmax_turns = 0\n", r"agent\.max_turns: .*greater than or equal to 1"),
        ("[agent\n", "not valid TOML"),
        ("[models.default]\nurl = '127.0.0.1:11434'\n", "begins with http://"),
        ("[models.default]\napi_key_env = 'sk-secret-123'\n", r"name of an environment variable.*not shown"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(RunConfig, write(tmp_path, text))


def test_a_key_given_by_mistake_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(RunConfig, write(tmp_path, "[models.default]\napi_key_env = 'sk-secret-123'\n"))
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"models.default": "x", "models.default.url": "http://x"}, "both given"),
        ({"models.default.url": "http://x", "models.default": "x"}, "both given"),
    ],
)
def test_flags_that_contradict(flags: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(RunConfig, None, flags)


@pytest.mark.parametrize("name", ["MIA__AGENT", "MIA__MODELS", "MIA__AGENT__EXECUTOR__STOP"])
def test_environment_that_is_no_json(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "foo")
    with pytest.raises(ConfigError):
        load(RunConfig)


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(RunConfig, tmp_path)


def test_lists_and_tables_are_given_as_json() -> None:
    argv = ["--agent.executor.stop", '["</answer>"]', '--models.default.extra_body={"a": 1}', "--search.index", "[x]"]
    _, flags = parse(parser("ask", "x", []), argv)
    config = load(RunConfig, None, flags)
    assert config.agent.executor.stop == ("</answer>",)
    assert config.models.default.extra_body == {"a": 1}
    assert str(config.search.index) == "[x]"


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config file"):
        load(RunConfig, tmp_path / "none.toml")


def test_unknown_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIA__AGNET__MAX_TURNS", "5")
    with pytest.raises(ConfigError, match=r"MIA__AGNET__MAX_TURNS.*did you mean 'agent'"):
        load(RunConfig)


def test_unknown_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIA__AGENT__MAX_TURN", "5")
    with pytest.raises(ConfigError, match="did you mean 'max_turns'"):
        load(RunConfig)


def test_config_is_frozen() -> None:
    config = load(RunConfig)
    with pytest.raises(ValueError, match="frozen"):
        config.agent.max_turns = 3  # type: ignore[misc]


def test_flags_may_stand_anywhere() -> None:
    made = parser("ask", "x", [])
    made.add_argument("question")
    made.add_argument("--json", action="store_true")
    args, flags = parse(made, ["--search.index", "dir", "why?", "--agent.max-turns=3", "--json"])
    assert (args.question, args.json) == ("why?", True)
    assert flags == {"search.index": "dir", "agent.max_turns": "3"}


def test_a_flag_without_value() -> None:
    with pytest.raises(ConfigError, match=r"--search\.index needs a value"):
        parse(parser("ask", "x", []), ["--search.index"])
