"""Prompts are files: `prompts/<role>/<name>.md`, rendered strictly, hashed, and safe against text that forges markup.

A prompt file holds `{{field}}` slots. Values are untrusted by default: anything in them that looks like one of our tags
(`<tool_call>`, `</answer>`…) or a chat template's control token (`<|im_end|>`…) is broken by an invisible word joiner,
so that it reads the same to a person but can neither close nor open anything. Wrap text of our own in `Trusted`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from mia.errors import ConfigError

_SLOT = re.compile(r"\{\{(\w+)\}\}")
_TAG = re.compile(r"<(?=[|｜]|/?\s*[A-Za-z_][\w\-]*\s*/?>|<SYS>>|</SYS>>)|\[(?=/?INST\])", re.IGNORECASE)
JOINER = "\u2060"
"""Word joiner: no width, no line break; splits a tag for a tokenizer but not for the eye."""


class Trusted(str):
    """Text written by this project; inserted in a prompt as it is."""


def neutralise(text: str) -> str:
    """Break every tag and control token in a text that we did not write."""
    return _TAG.sub(lambda match: match.group() + JOINER, text) if "<" in text or "[" in text else text


@dataclass(frozen=True)
class Prompt:
    """A prompt file: its text, the fields it wants, and the hash that rides on every record made with it."""

    name: str
    text: str
    fields: frozenset[str]
    hash: str

    def render(self, **values: str) -> str:
        """Fill the slots in one pass; values are neutralised unless `Trusted`.

        Raises:
            ConfigError: a field is missing, or one is given that the prompt does not use.
        """
        if values.keys() != self.fields:
            missing, unused = self.fields - values.keys(), values.keys() - self.fields
            raise ConfigError(f"prompt {self.name}: missing fields {sorted(missing)}, unused fields {sorted(unused)}")
        safe = {name: value if isinstance(value, Trusted) else neutralise(value) for name, value in values.items()}
        return _SLOT.sub(lambda match: safe[match.group(1)], self.text)


@cache
def prompt(name: str) -> Prompt:
    """The shipped prompt `<role>/<name>`, e.g. `planner/plan`.

    Raises:
        ConfigError: there is no such file.
    """
    path = resources.files("mia") / "prompts" / f"{name}.md"
    if not path.is_file():
        raise ConfigError(f"no prompt file {name}.md", remedy="see mia/prompts for the names there are")
    text = path.read_text(encoding="utf-8").strip("\n")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Prompt(name=name, text=text, fields=frozenset(_SLOT.findall(text)), hash=digest)
