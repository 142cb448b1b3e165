"""Makes a picture index of LiveVQA's own pictures, so that image search works without a key; prints its folder.

A picture's title says where it is from (part and source), never what it shows: an index must not know more about the
questions than the picture itself tells. It stands in for a reverse image search, and finds a picture itself; give
`mia eval` another folder (--web.images.path), or Serper Lens, where scores are to mean something.

examples:
  python scripts/bench/livevqa_pictures.py livevqa                    # in the cache; made only if it is not there
  python scripts/bench/livevqa_pictures.py livevqa/News/benchmark.json --out my-pictures
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from inference.datasets import DatasetConfig, load_dataset
from mia.errors import DataError, MiaError
from mia.examples import Example
from mia.paths import cache
from mia.pictures import decoded, from_data_url, is_data_url


def rows_of(examples: tuple[Example, ...]) -> dict[str, tuple[bytes, str]]:
    """Bytes and title of each picture that can be read, by a file name made of its contents."""
    found: dict[str, tuple[bytes, str]] = {}
    for example in examples:
        for url in filter(is_data_url, example.question.images):
            data = from_data_url(url)
            name = f"{hashlib.sha256(data).hexdigest()[:24]}.{url[11 : url.index(';')]}"  # data:image/KIND;
            if name in found:
                continue
            try:
                decoded(data)
            except DataError as error:
                print(f"left out: the picture of {example.question.id}: {error.message}", file=sys.stderr)
                continue
            source = example.category or "a source that is not named"
            found[name] = (data, f"Picture from {source}{f' ({example.part})' if example.part else ''}")
    return found


def write(rows: dict[str, tuple[bytes, str]], folder: Path) -> None:
    """Write an index, whole or not at all.

    Raises:
        DataError: it cannot be written, or something is there.
    """
    if folder.exists():
        raise DataError(f"{folder} is there already", remedy="give another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        lines = [json.dumps({"file": name, "title": title}, ensure_ascii=False) for name, (_, title) in rows.items()]
        (part / "pictures.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        for name, (data, _) in rows.items():
            (part / name).write_bytes(data)
        os.replace(part, folder)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise DataError(f"cannot write {folder}: {error.strerror}", remedy="free space, or give --out") from error


def main() -> int:
    """Make the index and print its folder."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("questions", type=Path, help="folder of the parts, or a part's file")
    made.add_argument("--images", type=Path, help="folder of the pictures, if it is not beside the questions")
    made.add_argument("--out", type=Path, help="folder of the index (default: in the cache)")
    args = made.parse_args()
    try:
        rows = rows_of(load_dataset(DatasetConfig(name="livevqa", path=args.questions, images=args.images)).examples)
        digest = hashlib.sha256(json.dumps({name: title for name, (_, title) in rows.items()}).encode()).hexdigest()
        folder = args.out or cache() / "livevqa-pictures" / digest[:16]
        if args.out or not folder.is_dir():
            write(rows, folder)
    except MiaError as error:
        print(f"error ({error.boundary}/{error.code}): {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
