"""Errors of MIA: one small tree, each with a stable code and a remedy, the same class on both sides of HTTP.

    MiaError
    |- ConfigError       a setting is missing, unknown or contradictory          422
    |- DataError         a file or row cannot be used (names file, line, field)  422
    |- ModelError        a model endpoint or checkpoint did not answer           502
    |- ToolError         a search or another tool did not answer                 502
    |- MemoryStoreError  the memory store refused or lost its ground             503
    |- ParseError        what a model wrote cannot be read                       422
    '- JudgeError        a verdict cannot be given or read                       502

A failed call is recorded as a `Failure` of its boundary; its message never becomes text that a model sees.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel

from mia.types import Boundary, Failure, Text


class MiaError(Exception):
    """Base of all errors that MIA raises on purpose.

    Args:
        message: what went wrong, with the offending values.
        remedy: what the user can do about it.
        code: stable, machine-readable name of the kind.
        retryable: whether the same call may succeed later.
        status: HTTP status to answer with; the class's own if not given.
    """

    boundary: ClassVar[Boundary] = "data"
    default_code: ClassVar[str] = "error"
    default_status: ClassVar[int] = 500

    def __init__(
        self, message: str, *, remedy: str = "", code: str = "", retryable: bool = False, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code or self.default_code
        self.retryable = retryable
        self.status = status or self.default_status

    def __str__(self) -> str:
        return f"{self.message}\n  remedy: {self.remedy}" if self.remedy else self.message

    def failure(self) -> Failure:
        """The record of this error."""
        return Failure(
            boundary=self.boundary,
            code=self.code,
            message=self.message,
            remedy=self.remedy,
            retryable=self.retryable,
        )


class ConfigError(MiaError):
    """A setting is missing, unknown or contradictory."""

    boundary, default_code, default_status = "config", "bad_config", 422


class DataError(MiaError):
    """A file, a row or a request field cannot be used."""

    boundary, default_code, default_status = "data", "bad_data", 422


class ModelError(MiaError):
    """A model endpoint or checkpoint did not answer."""

    boundary, default_code, default_status = "model", "model_failed", 502


class ToolError(MiaError):
    """A search service or another tool did not answer."""

    boundary, default_code, default_status = "tool", "tool_failed", 502


class MemoryStoreError(MiaError):
    """The memory store cannot be reached, read or written."""

    boundary, default_code, default_status = "memory", "memory_failed", 503


class ParseError(MiaError):
    """What a model wrote cannot be read."""

    boundary, default_code, default_status = "parse", "unreadable", 422


class JudgeError(MiaError):
    """A verdict could not be given or read; the row stays unjudged."""

    boundary, default_code, default_status = "judge", "unjudged", 502


BY_BOUNDARY: dict[str, type[MiaError]] = {
    cls.boundary: cls
    for cls in (ConfigError, DataError, ModelError, ToolError, MemoryStoreError, ParseError, JudgeError)
}


def as_error(failure: Failure) -> MiaError:
    """The error that a failure records."""
    return BY_BOUNDARY[failure.boundary](
        failure.message, remedy=failure.remedy, code=failure.code, retryable=failure.retryable
    )


class ErrorBody(BaseModel):
    """An error on the wire."""

    boundary: Boundary
    code: str
    message: Text
    remedy: Text = ""
    retryable: bool = False
    request_id: str = ""


def to_body(error: MiaError, request_id: str = "") -> ErrorBody:
    """The wire form of an error."""
    return ErrorBody(
        boundary=error.boundary,
        code=error.code,
        message=error.message,
        remedy=error.remedy,
        retryable=error.retryable,
        request_id=request_id,
    )


def from_body(body: ErrorBody, status: int) -> MiaError:
    """The error that a wire form stands for, with its own class."""
    return BY_BOUNDARY[body.boundary](
        body.message, remedy=body.remedy, code=body.code, retryable=body.retryable, status=status
    )
