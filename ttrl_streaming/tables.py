"""The tables of the queue, and how their rows become records; used by `ttrl_streaming.store` only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mia.types import Failure, Question
from ttrl.records import Rolled
from ttrl_streaming.records import Ask, Entry
from ttrl_streaming.schema import FeedbackItem

SCHEMA = """
CREATE TABLE IF NOT EXISTS asks (
  id TEXT PRIMARY KEY, namespace TEXT NOT NULL, question TEXT NOT NULL, seed INTEGER NOT NULL, state TEXT NOT NULL,
  version INTEGER NOT NULL DEFAULT 0, rolled TEXT, failure TEXT, elsewhere TEXT NOT NULL DEFAULT '',
  seconds REAL NOT NULL DEFAULT 0, created REAL NOT NULL);
CREATE INDEX IF NOT EXISTS asks_by_state ON asks (namespace, state);
CREATE TABLE IF NOT EXISTS feedback (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE REFERENCES asks (id), namespace TEXT NOT NULL,
  item TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', reward REAL, reference TEXT,
  held INTEGER NOT NULL DEFAULT 0, memory TEXT NOT NULL DEFAULT '', amended TEXT, received REAL NOT NULL);
CREATE INDEX IF NOT EXISTS feedback_by_state ON feedback (namespace, state, number);
CREATE TABLE IF NOT EXISTS counters (
  namespace TEXT NOT NULL, name TEXT NOT NULL, value INTEGER NOT NULL, PRIMARY KEY (namespace, name));
CREATE TABLE IF NOT EXISTS versions (
  namespace TEXT NOT NULL, number INTEGER NOT NULL, parent INTEGER NOT NULL, PRIMARY KEY (namespace, number));
CREATE TABLE IF NOT EXISTS serving (namespace TEXT PRIMARY KEY, version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS updates (
  number INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, parent INTEGER NOT NULL, version INTEGER,
  body TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS held (
  id TEXT NOT NULL, namespace TEXT NOT NULL, version INTEGER NOT NULL, reward REAL NOT NULL, PRIMARY KEY (id, version));
"""
ASK = "id, namespace, question, seed, state, version, rolled, failure, elsewhere, seconds"
ENTRY = "f.number, f.item, f.state, f.reward, f.reference, f.memory"


def ask_of(row: Sequence[Any]) -> Ask:
    """A question from the columns `ASK`."""
    name, namespace, question, seed, state, version, rolled, failure, elsewhere, seconds = row
    return Ask(
        id=name, namespace=namespace, question=Question.model_validate_json(question), seed=seed, state=state,
        version=version, rolled=Rolled.model_validate_json(rolled) if rolled else None,
        failure=Failure.model_validate_json(failure) if failure else None, elsewhere=elsewhere, seconds=seconds,
    )  # fmt: skip


def entry_of(row: Sequence[Any]) -> Entry:
    """Feedback from the columns `ENTRY` and `ASK`."""
    number, item, state, reward, reference, memory = row[:6]
    answers = tuple(json.loads(reference)) if reference else None
    return Entry(number, ask_of(row[6:]), FeedbackItem.model_validate_json(item), state, reward, answers, memory)
