"""Runs one operation of an OpenAPI schema with many made-up requests, always the same ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings


def fuzz(operation: Any, examples: int, check: Callable[[Any, Any], None]) -> None:
    """Call an operation and check each response.

    Args:
        operation: of a schema that schemathesis has read.
        examples: how many requests.
        check: given the request and its response.
    """

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def run(case: Any) -> None:
        check(case, case.call())

    run()
