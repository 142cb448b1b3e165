"""`mia model push`: a trained folder and its card to the Hugging Face hub."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mia.cli import parser
from mia.errors import ConfigError

if TYPE_CHECKING:
    from executor_train import publish


def push(argv: Sequence[str]) -> int:
    """`mia model push`."""
    args = push_words().parse_args(argv)
    from executor_train import card, publish
    from mia import checkpoints, hub

    source = hub.parse_source(args.repo)
    if source.folder or source.kind != "model":
        raise ConfigError(f"{args.repo!r} is no repository of a model", remedy="write owner/name")
    folder = _checkpoint_folder(args.folder)
    found = checkpoints.read(folder)
    checkpoints.check_files(found)
    known = card.facts(found, args.base, args.licence, args.eval)
    text = card.written(folder) or card.card(known, args.repo)
    parcel = publish.pack(found, known.base, text, args.dtype)
    if args.to is not None:
        publish.write(parcel, args.to)
        print(json.dumps({"folder": str(args.to), "files": list(parcel.contents)}) if args.json else args.to)
        return 0
    if args.dry_run:
        _show(parcel, text, args.repo, args.json)
        return 0
    message = args.message or f"{folder.parent.name}/{folder.name} by mia model push"
    address = publish.push(args.repo, parcel, private=args.private, revision=args.revision, message=message)
    print(json.dumps({"address": address, "files": list(parcel.contents)}) if args.json else address)
    return 0


def push_words() -> argparse.ArgumentParser:
    """The parser of the command."""
    made = parser(
        "model push",
        "Publish a trained model on the Hugging Face hub, with a model card: base model, licence, command, seed,\n"
        "dataset, curve, evaluations. A README.md in the folder is taken as the card instead, unless it is a\n"
        "library's blank form. HF_TOKEN says who publishes, HF_ENDPOINT names another hub.",
        [
            "mia model push runs/grpo/final owner/my-executor --dry-run",
            "mia model push runs/grpo/final owner/my-executor --private --eval runs/eval-grpo",
            "mia model push runs/grpo/final owner/my-executor --dtype bfloat16 --to packed",
        ],
    )
    made.add_argument("folder", type=Path, metavar="DIR", help="folder `final` of a run: an adapter, or a whole model")
    made.add_argument("repo", metavar="REPO", help="owner/name; made if there is none")
    made.add_argument("--eval", type=Path, action="append", default=[], metavar="RUN", help="folder of `mia eval`")
    made.add_argument("--base", default="", help="base model's name on the hub (default: as the folder has it)")
    made.add_argument("--licence", default="", help="licence by its name on the hub (default: the base model's)")
    made.add_argument("--private", action="store_true", help="make the repository private")
    made.add_argument("--revision", default="main", help="branch (default main); made if there is none")
    made.add_argument("--message", default="", help="message of the commit")
    made.add_argument("--dtype", default="", choices=("bfloat16", "float16"), help="round the weights to this type")
    made.add_argument("--to", type=Path, metavar="FOLDER", help="write the files into a new folder; send nothing")
    made.add_argument("--dry-run", action="store_true", help="print the card and the files; send nothing")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def _checkpoint_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}", remedy="give the folder `final` of a run")
    if (folder / "final").is_dir() and not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is the folder of a run", remedy=f"give {folder / 'final'}")
    return folder.absolute()


def _show(parcel: publish.Parcel, text: str, repo: str, as_json: bool) -> None:
    sizes = {name: parcel.size(name) for name in parcel.contents}
    if as_json:
        print(json.dumps({"repo": repo, "card": text, "files": sizes, "left_out": list(parcel.left_out)}))
        return
    print(text)
    for name, size in sizes.items():
        print(f"{size:>14,}  {name}", file=sys.stderr)
    for name in parcel.left_out:
        print(f"      left out  {name}", file=sys.stderr)
    print(f"{repo}: {len(sizes)} files, {sum(sizes.values()) / 1e9:.3f} GB; nothing was sent", file=sys.stderr)
