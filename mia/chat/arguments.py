"""Reading JSON that a model wrote as tool arguments: strict about what runs, clear about what is wrong."""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic import JsonValue

from mia.errors import ParseError
from mia.types import clean_text


def _refuse_constant(name: str) -> Any:
    raise ParseError(f"{name} is not a JSON value")


DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)
"""Lets raw newlines stand inside strings; refuses NaN and Infinity."""


DEPTH = 64
"""Levels of nesting that are read; records with more than about 200 could not be stored."""


def clean(value: Any, levels: int = DEPTH) -> JsonValue:
    """The value with every text in it made valid Unicode.

    Raises:
        ParseError: it holds something that JSON has no form for, or nests deeper than `levels`.
    """
    if isinstance(value, str):
        return str(clean_text(value))
    if isinstance(value, list | dict) and not levels:
        raise ParseError(f"arguments nest deeper than {DEPTH} levels")
    if isinstance(value, list):
        return [clean(item, levels - 1) for item in value]
    if isinstance(value, dict):
        return {str(clean_text(key)): clean(item, levels - 1) for key, item in value.items()}
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ParseError(f"{value!r:.40} is not a JSON value")


def read_arguments(value: Any) -> dict[str, JsonValue]:
    """Arguments as an object: an object itself, or a JSON text of one, or (some models write it so) a text of a text.

    Raises:
        ParseError: none of them; the message says which form is wanted.
    """
    for _ in range(2):
        if isinstance(value, str):
            try:
                value = DECODER.decode(value.strip())
            except (ValueError, RecursionError) as error:
                raise ParseError(f"arguments are not valid JSON ({error})") from error
    if not isinstance(value, dict):
        kind = "null" if value is None else type(value).__name__
        raise ParseError(f"arguments must be a JSON object, not {kind}")
    return {str(clean_text(key)): clean(item, DEPTH - 1) for key, item in value.items()}
