"""What is written when a run ends, early or not: predictions and summary; the report is made from them.

`predictions.jsonl` holds only what is the same for the same run: no times, no token counts, no random ids.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inference.evaluation.folder import JOURNALS, read_config, read_dataset, read_learned, read_rows, write_file
from inference.evaluation.row import Row
from inference.evaluation.summary import summarise
from mia.types import Failure


def finish(path: Path, expected: int, ended: Failure | None = None, keep_traces: bool = True) -> dict[str, Any]:
    """Write what a run came to, from its journals; returns the summary.

    Args:
        path: the folder; its journals are closed.
        expected: rows of the whole run.
        ended: why it ended early, if it did.
        keep_traces: keep the trajectories of a complete run. They are kept while anything is left to do.

    Raises:
        DataError: something cannot be written.
    """
    rows = read_rows(path)
    settings, dataset = read_config(path), read_dataset(path)
    summary = summarise(settings, dataset, rows, read_learned(path), expected, ended)
    write_file(path / "predictions.jsonl", "".join(f"{_line(prediction(row))}\n" for row in rows))
    write_file(path / "summary.json", json.dumps(summary, ensure_ascii=False, indent=1) + "\n")
    if summary["complete"]:
        write_file(path / "rows.jsonl", "".join(f"{row.model_dump_json()}\n" for row in rows))
        if not keep_traces and not any(row.judge_failed or row.failure for row in rows):
            (path / f"{JOURNALS[0]}.jsonl").unlink(missing_ok=True)
    return summary


def prediction(row: Row) -> dict[str, Any]:
    """A row without what differs between two runs alike."""
    verdict = row.judgement
    return {
        "id": row.id,
        "repeat": row.repeat,
        "answer": row.answer,
        "stop_reason": row.stop_reason,
        **row.metrics,
        "judge": None if verdict is None else verdict.correct,
        "judge_score": None if verdict is None else verdict.score,
        "degraded": list(row.degraded),
        "codes": list(row.codes),
        "failure": None if row.failure is None else f"{row.failure.boundary}/{row.failure.code}",
    }


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
