"""Which dataset is read, from where, and how."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from mia.config import Section

NAMES = (
    "2wikimultihopqa",
    "bamboogle",
    "fvqa",
    "gaia",
    "hotpotqa",
    "infoseek",
    "jsonl",
    "livevqa",
    "miniwiki",
    "mmsearch",
    "musique",
    "nq",
    "original",
    "popqa",
    "simpleqa",
    "simplevqa",
    "triviaqa",
)
"""The datasets there are."""


class Columns(Section):
    """Names of the columns of a file of one's own (dataset `jsonl`). A dot reaches into an object: `meta.topic`."""

    id: str = Field("id", description="id of the question; empty: its number in the file")
    question: str = Field("question", description="what is asked")
    answers: str = Field("answer", description="the right answer, or a list of all that are accepted")
    images: str = Field("", description="picture or list of pictures: base64, data URL, address, or file in `images`")
    caption: str = Field("", description="what the picture shows, in words")
    choices: str = Field("", description="list of the options of a multiple choice question")
    choice: str = Field("", description="letter of the right option")
    part: str = Field("", description="part of the dataset")
    type: str = Field("", description="kind of question")
    category: str = Field("", description="topic")
    level: str = Field("", description="difficulty")
    supporting_titles: str = Field("", description="list of the titles of the passages that state the answer")


class DatasetConfig(Section):
    """One dataset."""

    name: str = Field("miniwiki", description=f"which dataset: {', '.join(NAMES)}")
    path: Path | None = Field(
        None,
        description="its file (JSON, JSONL, CSV or Parquet; text also as .gz, .zst or .bz2), a folder of Parquet "
        "files, or the folder of LiveVQA; empty where it is bundled (miniwiki)",
    )
    split: str = Field(
        "",
        description="which part of it: miniwiki train, dev or test (default); livevqa News, Paper or Video; "
        "simplevqa EN or CN; mmsearch image or text; empty: all",
    )
    form: Literal["open", "choice"] = Field(
        "open", description="LiveVQA's questions as open ones (as the paper's tables), or with their options"
    )
    images: Path | None = Field(None, description="folder of the pictures; empty: the one beside the file")
    columns: Columns = Columns()
    strict: bool = Field(False, description="refuse a dataset with any bad row")

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in NAMES:
            close = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(NAMES)}"
            raise ValueError(f"no dataset {name!r}; {hint}")
        return name
