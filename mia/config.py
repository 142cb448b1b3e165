"""Config: TOML files and overrides become frozen pydantic models. Precedence: defaults < file < `MIA__A__B` < flags.

Each folder declares the section it uses as a `Section`; a run's whole config is a `Config` made of sections. Unknown
keys are refused with a suggestion. Secrets are never values here, only names of environment variables.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from mia.errors import ConfigError
from mia.types import Role

ENV_PREFIX = "MIA__"


SHARED_SECTIONS = {"models", "search", "web", "memory", "agent", "method", "judge", "panel", "runs", "dataset", "eval"}
SHARED_SECTIONS |= {"policy", "validation", "rollout", "reward", "grpo", "traces", "sft", "learn", "streaming"}
"""Top-level names that some commands use and others do not: one file and one environment serve all commands."""


class Section(BaseModel):
    """A part of the config: frozen, unknown keys forbidden."""

    model_config = ConfigDict(frozen=True, extra="forbid")


SamplingField = Literal["temperature", "top_p", "stop", "presence_penalty", "repetition_penalty", "seed"]


class Endpoint(Section):
    """A model and where it answers."""

    url: str = Field(
        "embedded:",
        description="`embedded:` (small built-in model), `local:PATH_OR_NAME` (Hugging Face checkpoint in-process) "
        "or the base URL of an OpenAI-compatible endpoint",
    )
    model: str = Field("", description="model name at the endpoint; empty: the first one it lists")
    api_key_env: str = Field("", description="name of the environment variable that holds the key; empty: no key")
    timeout_s: float = Field(600.0, gt=0, description="time limit of one call, in seconds")
    retries: int = Field(3, ge=0, description="repetitions of a call that failed for a passing reason")
    context: int = Field(32768, ge=256, description="context window in tokens (prompt and reply)")
    tool_format: Literal["grammar", "native"] = Field(
        "grammar", description="how tools are called: our <tool_call> grammar, or the endpoint's native tool calling"
    )
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="what the endpoint calls the limit of a reply's length"
    )
    omit: tuple[SamplingField, ...] = Field(
        (), description="fields of the sampling that the endpoint refuses; `stop` is then kept to on our side"
    )
    extra_body: dict[str, Any] = Field(default_factory=dict, description="further fields of the request body")
    image_side: int = Field(1568, ge=28, description="longest side of a picture as it is sent, in pixels")
    image_bytes: int = Field(
        5 * 1024 * 1024, ge=10_000, description="largest picture as it is sent: length of its data URL, in bytes"
    )

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str) -> str:
        if not url.startswith(("embedded:", "local:", "http://", "https://")):
            raise ValueError("must be embedded:, local:PATH_OR_NAME or an address that begins with http:// or https://")
        return url

    @field_validator("api_key_env")
    @classmethod
    def _name_of_a_variable(cls, name: str) -> str:
        if name and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError("must be the name of an environment variable, not the key itself (value not shown)")
        return name

    @property
    def text_only(self) -> bool:
        """Whether the model is known to read no pictures; of others, only asking them tells."""
        return self.url == "embedded:"


class Models(Section):
    """Which endpoint plays which role; a role without its own uses `default`."""

    default: Endpoint = Endpoint()
    manager: Endpoint | None = None
    planner: Endpoint | None = None
    executor: Endpoint | None = None
    judge: Endpoint | None = None
    router: Endpoint | None = None

    def of(self, role: Role) -> Endpoint:
        """The endpoint of a role."""
        endpoint: Endpoint | None = getattr(self, role)
        return endpoint or self.default


class Config(BaseSettings):
    """Base of a run's whole config; subclasses name their sections."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter="__")


C = TypeVar("C", bound=Config)


class _Table(PydanticBaseSettingsSource):
    """A parsed TOML table as a settings source."""

    def __init__(self, settings: type[BaseSettings], table: dict[str, Any]) -> None:
        super().__init__(settings)
        self._table = table

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return self._table.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._table


def load(kind: type[C], file: Path | None = None, flags: Mapping[str, Any] | None = None) -> C:
    """Read a config.

    Args:
        kind: the config class.
        file: TOML file; None for defaults only.
        flags: dotted names to values, as given on the command line; they win.

    Raises:
        ConfigError: the file is missing or no TOML, a key is unknown, or a value does not fit.
    """
    table = _read_toml(file) if file else {}
    table = {name: value for name, value in table.items() if name in kind.model_fields or name not in SHARED_SECTIONS}
    _check_environment(kind)

    class Bound(kind):  # type: ignore[misc, valid-type]  # the file is known only now
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (
                init_settings,
                env_settings,
                _Table(settings_cls, table),
            )

    try:
        bound = Bound(**_nest(flags or {}))
    except ValidationError as error:
        raise ConfigError(_explain(kind, error), remedy=_where(file), code="bad_config") from error
    except SettingsError as error:
        raise ConfigError(f"{error}; a whole section or list is written as JSON", remedy=_where(file)) from error
    return cast(C, kind.model_construct(**{name: getattr(bound, name) for name in kind.model_fields}))


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"no config file {file}", remedy="check the path; configs/ holds examples") from error
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", remedy="give a readable TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}", remedy="mend the named line") from error


def _where(file: Path | None) -> str:
    places = ["the flags", f"{ENV_PREFIX}* environment variables"]
    return f"look at {', '.join([str(file), *places] if file else places)}"


def _nest(flags: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` to `{"a": {"b": 1}}`."""
    nested: dict[str, Any] = {}
    for dotted, value in flags.items():
        *parents, leaf = dotted.split(".")
        table = nested
        for name in parents:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--{dotted} and a flag for all of {name} are both given", remedy="leave one of them")
        if isinstance(table.get(leaf), dict):
            raise ConfigError(f"--{dotted} and flags for parts of it are both given", remedy="leave one of them")
        table[leaf] = value
    return nested


def _check_environment(kind: type[Config]) -> None:
    known = {name.lower() for name in kind.model_fields} | SHARED_SECTIONS
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX):
            section = name[len(ENV_PREFIX) :].split("__")[0].lower()
            if section not in known:
                raise ConfigError(f"environment variable {name}: no section {section!r}{_did_you_mean(section, known)}")


def _did_you_mean(word: str, known: Sequence[str] | set[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(known))}"


def _explain(kind: type[BaseModel], error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        location = [str(part) for part in item["loc"]]
        text = f"{'.'.join(location)}: {item['msg']}"
        if item["type"] == "extra_forbidden":
            text = f"{'.'.join(location)}: unknown key{_did_you_mean(location[-1], _fields_at(kind, location[:-1]))}"
        lines.append(text)
    return "\n".join(lines)


def _fields_at(kind: type[BaseModel], location: Sequence[str]) -> set[str]:
    """Names of the fields that the model at a dotted location has."""
    for name in location:
        field = kind.model_fields.get(name)
        candidates = [field.annotation, *get_args(field.annotation)] if field else []
        models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not models:
            return set()
        kind = models[0]
    return set(kind.model_fields)
