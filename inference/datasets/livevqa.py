"""LiveVQA: questions on pictures of news, papers and videos, in two levels, with options and accepted answers.

An item of a part's `benchmark.json`, a list:

    {"id": "0_2025…", "img_path": "cnn_….jpg", "source": "CNN Politics", "time": "2025-05-08T…",
     "level1_qa": {"question": "…", "question_type": "person", "options": ["A. …", "B. …"], "Ground_Truth": "B",
                   "Ground_Truth_List": ["…", "…"], "img_path": "cnn_….jpg"},
     "level2_qa": {…}}

An item makes two examples, `PART-ID-1` and `PART-ID-2`. `path` is a part's file or the folder that holds the parts.
Pictures are files of `images`, `PART_imgs` or `PART_images` beside a part's file, or of the folder that `images` names
(or its folder PART). With `form = "open"` (as the makers and the paper's tables do) an answer is held against
`Ground_Truth_List`; with `form = "choice"` the options stand in the question, the letter is in the reference, and the
text of the right option is accepted too. Also read: the original's lines with base64 pictures (see `original`).

Fu et al. 2025, arXiv 2504.05288; https://github.com/fumingyang2004/LIVEVQA (MIT; data for research use). The current
release has 350 items of News, 500 of Paper and 342 of Video: 2,384 questions, as in the paper's tables. `time` and
`img_url` are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inference.datasets import original
from inference.datasets.choices import letter_of, options_of, with_options
from inference.datasets.config import DatasetConfig
from inference.datasets.images import Images
from inference.datasets.rows import BadRow, Context, LeftOut, Row, example
from mia.errors import ConfigError, DataError
from mia.examples import Example

VERSION = "1"
_LEVELS = {"level1_qa": "1", "level2_qa": "2"}
_FILE = "benchmark.json"


def sources(config: DatasetConfig, path: Path) -> Iterator[tuple[Path, str, Images]]:
    """The files to read, each with its part's name and pictures.

    Raises:
        ConfigError: there is no part of the name that `split` gives.
        DataError: the folder holds no `benchmark.json`.
    """
    files = [path] if path.is_file() else sorted(path.glob(_FILE)) or sorted(path.glob(f"*/{_FILE}"))
    if not files:
        raise DataError(f"{path} holds no {_FILE}", remedy="give the folder of the parts, or a part's file")
    parts = {_part(file): file for file in files}
    if config.split and config.split not in parts:
        raise ConfigError(f"livevqa has no part {config.split!r} there", remedy=f"known: {', '.join(parts)}")
    for part, file in parts.items():
        if config.split in ("", part):
            yield file, part, _images(config, file, part, path if path.is_dir() else file.parent)


def _part(file: Path) -> str:
    """News, Paper, Video: the name of the folder of a `benchmark.json`; other files have no part."""
    return file.absolute().parent.name if file.name.startswith("benchmark.") else ""


def _images(config: DatasetConfig, file: Path, part: str, base: Path) -> Images:
    folders: tuple[Path, ...]
    if config.images is not None:
        folders = (config.images / part, config.images) if part else (config.images,)
    else:
        folders = tuple(file.parent / name for name in ("images", f"{part}_imgs", f"{part}_images"))
    return Images(next((folder for folder in folders if folder.is_dir()), None), folders, base)


def examples(row: Row, context: Context) -> Iterator[Example]:
    """The examples of an item: those of its levels that can be used; the others are noted in the context.

    Raises:
        BadRow: nothing of the item can be used.
        LeftOut: it has no question of either level.
    """
    if "question" in row or "messages" in row:
        yield from original.examples(row, context)
        return
    identity = row.id("id")
    levels = [name for name in _LEVELS if name in row]
    if not levels:
        raise row.bad("level1_qa", "missing, and level2_qa too")
    for name in levels:
        try:
            yield _level(row, name, identity, context)
        except BadRow as bad:
            context.broken.append(bad)
    if len(levels) < len(_LEVELS):
        raise LeftOut(f"no {next(name for name in _LEVELS if name not in levels)}")


def _level(row: Row, name: str, identity: str, context: Context) -> Example:
    level = row.part(name)
    text = level.text("question")
    answers = level.texts("Ground_Truth_List")
    choices: tuple[str, ...] = ()
    choice = ""
    if context.config.form == "choice":
        choices = options_of(level, "options")
        choice = letter_of(level, "Ground_Truth", choices)
        right = choices[ord(choice) - ord("A")]
        answers = tuple(dict.fromkeys((*answers, right)))
        text = with_options(text, choices)
    elif not answers:
        raise level.bad("Ground_Truth_List", "missing or blank")
    return example(
        context,
        id="-".join(filter(None, (context.part, identity, _LEVELS[name]))),
        text=text,
        answers=answers,
        images=(_picture(level if "img_path" in level else row, context),),
        choices=choices,
        choice=choice,
        type=level.label("question_type"),
        category=row.label("source"),
        level=_LEVELS[name],
    )


def _picture(row: Row, context: Context) -> str:
    name = row.text("img_path")
    try:
        return context.images.file(name)
    except DataError as error:
        if error.code != "bad_picture":
            raise
        raise row.bad("img_path", error.message) from error
