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


def clean(value: Any) -> JsonValue:
    """The value with every text in it made valid Unicode.

    Raises:
        ParseError: it holds something that JSON has no form for.
    """
    if isinstance(value, str):
        return str(clean_text(value))
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {str(clean_text(key)): clean(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ParseError(f"{value!r:.40} is not a JSON value")


def read_arguments(value: Any) -> dict[str, JsonValue]:
    """Arguments as an object: an object itself, or a JSON text of one (some models write it so).

    Raises:
        ParseError: neither; the message says which form is wanted.
    """
    if isinstance(value, str):
        try:
            value = DECODER.decode(value.strip())
        except (ValueError, RecursionError) as error:
            raise ParseError(f"arguments are not valid JSON ({error})") from error
    if not isinstance(value, dict):
        kind = "null" if value is None else type(value).__name__
        raise ParseError(f"arguments must be a JSON object, not {kind}")
    return {str(clean_text(key)): clean(item) for key, item in value.items()}
