"""What every store asks of its arguments, so that all refuse the same things in the same words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memory_serve.protocol import MAX_BATCH, MAX_CHARACTERS, MAX_K, Draft, Edit, Stored
from mia.errors import DataError
from mia.types import Question, clean_text

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OFFSETS = 2**63


def check_namespace(name: object) -> str:
    """A name of 1 to 64 letters a-z A-Z, digits, `_`, `-` or `.`, the first a letter or digit; nothing is trimmed.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(name, str) or not _NAMESPACE.fullmatch(name):
        raise DataError(
            f"{name!r:.100} is no namespace",
            remedy="give 1 to 64 letters a-z A-Z, digits, `_`, `-` or `.`, the first a letter or digit",
            code="bad_namespace",
        )
    return name


def check_question(question: Question, k: int, skip: int = 0) -> None:
    """Bounds of a recall."""
    if not 1 <= k <= MAX_K:
        raise DataError(f"k is {k}", remedy=f"give a k from 1 to {MAX_K}")
    if not 0 <= skip <= MAX_BATCH:
        raise DataError(f"skip is {skip}", remedy=f"give a skip from 0 to {MAX_BATCH}")
    if not question.text.strip():
        raise DataError("the question is blank")
    check_length(question.id, question.text, question.caption)


def check_drafts(drafts: Sequence[Draft]) -> list[Draft]:
    """Drafts as they can be stored."""
    check_size(drafts, "drafts")
    cleaned = [_clean(draft) for draft in drafts]
    for number, draft in enumerate(cleaned):
        _check_blank(f"draft {number}", draft)
        provenance = [text for pair in draft.provenance.items() for text in pair]
        own = (draft.question, draft.caption, draft.workflow, draft.plan, draft.source_id, draft.trajectory_id)
        check_length(*own, *provenance)
    return cleaned


MAX_COUNT = 2**53
"""Counters of imported memories, at most: what every store and every reader of JSON can hold exactly."""


def check_memories(memories: Sequence[Stored]) -> list[Stored]:
    """Exported memories as they can be stored."""
    check_size(memories, "memories")
    for number, memory in enumerate(memories):
        _check_blank(f"memory {number}", memory)
        if not memory.id.strip():
            raise DataError(f"memory {number} has a blank id", remedy="export gives every memory its id")
        if max(memory.uses, memory.version) > MAX_COUNT:
            raise DataError(f"memory {number} has a counter beyond {MAX_COUNT}", remedy="correct uses or version")
    cleaned = [Stored.model_validate(_storable_tree(memory.model_dump())) for memory in memories]
    for memory in cleaned:
        check_length(memory.model_dump_json())
    return cleaned


def check_edit(edit: Edit) -> Edit:
    """An edit as it can be stored."""
    cleaned = Edit.model_validate(_storable_tree(edit.model_dump()))
    for name in ("question", "workflow"):
        text = getattr(cleaned, name)
        if text is not None and not text.strip():
            raise DataError(f"the new {name} is blank", remedy="store only what tells something")
    check_length(*(text for text in cleaned.model_dump().values() if text))
    return cleaned


def check_size(items: Sequence[object], what: str) -> None:
    """At most `MAX_BATCH` items in one call."""
    if isinstance(items, str) or len(items) > MAX_BATCH:
        raise DataError(f"{len(items)} {what} in one call", remedy=f"give a list of at most {MAX_BATCH}")


def check_page(limit: int, offset: int = 0) -> None:
    """Bounds of a page."""
    if not 1 <= limit <= MAX_BATCH or not 0 <= offset < _OFFSETS:
        raise DataError(f"limit {limit}, offset {offset}", remedy=f"give a limit from 1 to {MAX_BATCH}")


def check_length(*texts: str) -> None:
    """At most `MAX_CHARACTERS` in all."""
    length = sum(map(len, texts))
    if length > MAX_CHARACTERS:
        raise DataError(f"{length} characters", remedy=f"shorten the texts to {MAX_CHARACTERS} characters in all")


def storable(text: str) -> str:
    """Valid Unicode without NUL, which PostgreSQL refuses and other programs take for the end."""
    cleaned: str = clean_text(text)
    return cleaned.replace("\0", "\ufffd") if "\0" in cleaned else cleaned


def _check_blank(what: str, memory: Draft | Stored) -> None:
    for name in ("question", "workflow"):
        if not getattr(memory, name).strip():
            raise DataError(f"{what} has a blank {name}", remedy="store only what tells something")


def _clean(draft: Draft) -> Draft:
    changed: dict[str, object] = {}
    for name in ("question", "caption", "workflow", "plan", "source_id", "trajectory_id"):
        text = getattr(draft, name)
        if (stored := storable(text)) != text:
            changed[name] = stored
    provenance = {storable(name): storable(value) for name, value in draft.provenance.items()}
    if provenance != draft.provenance:
        changed["provenance"] = provenance
    return draft.model_copy(update=changed) if changed else draft


def _storable_tree(value: object) -> object:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {_storable_tree(name): _storable_tree(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable_tree(item) for item in value]
    return value
