"""Command line of the bundled corpus: `python -m local_search.miniwiki --out DIR`.

It only writes files; building an index over them is the business of `local_search`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from local_search.miniwiki import TABLES, FactError, questions, write

EXAMPLES = """examples:
  python -m local_search.miniwiki --out data/miniwiki
      write corpus.jsonl and questions.train.jsonl, questions.dev.jsonl, questions.test.jsonl
  python -m local_search.miniwiki --out data/mine --tables my_tables --json
      the same from a copy of the tables with rows of your own, with a summary for machines
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m local_search.miniwiki",
        description="Write the bundled corpus and its questions as JSON lines.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write into")
    parser.add_argument(
        "--tables", type=Path, default=TABLES, metavar="DIR", help="folder of CSV tables (default: ours)"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Writes the files; exit code 0, or 1 with the reason on stderr."""
    arguments = _parser().parse_args(argv)
    try:
        rows = write(arguments.out, arguments.tables)
    except (FactError, OSError) as problem:
        print(f"miniwiki: {problem}", file=sys.stderr)
        return 1
    if arguments.json:
        kinds = Counter(f"{q.split}/{q.type}/{q.hops}" for q in questions(tables=arguments.tables))
        print(json.dumps({"out": str(arguments.out), "rows": rows, "questions": dict(sorted(kinds.items()))}))
    else:
        for name, count in rows.items():
            print(f"{count:6d}  {arguments.out / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
