"""The verbs that look into recall and look after a memory: explain, export, import, compact, backup, undo, clear."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from memory_serve.cli import opened, parse_memory
from memory_serve.portable import is_lines, planner_rows, read_lines, read_original, walk, write_lines, write_original
from memory_serve.protocol import MAX_BATCH, Added, Change, Compacted, MemoryStore, Stored
from mia.cli import parser
from mia.errors import ConfigError, DataError
from mia.types import Question, Recalled


def explain(argv: Sequence[str]) -> int:
    """`mia memory explain "question"`."""
    args = parser(
        "memory explain",
        "Show what would be recalled for a question, and the terms each score is made of.",
        [
            'mia memory explain "Which river flows through Vienna?"',
            'mia memory explain "Which river flows through Vienna?" --k 5 --memory.score released --json',
        ],
    )
    args.add_argument("question", help="what would be asked")
    args.add_argument("--caption", default="", help="caption of a picture that would come with it")
    args.add_argument("--id", default="", help="id of the question; memories that stem from it are left out")
    args.add_argument("--k", type=int, help="memories of each outcome (default: memory.k)")
    args.add_argument("--skip", type=int, default=0, help="leave out that many of the best (default: 0)")
    args.add_argument("--json", action="store_true", help="print what was recalled as JSON")
    given, config = parse_memory(args, argv)
    question = Question(id=given.id, text=given.question, caption=given.caption)
    k = config.memory.k if given.k is None else given.k
    found = opened(config, lambda store: store.recall(question, k, given.skip))
    print(found.model_dump_json(indent=2) if given.json else _explained(found))
    return 0


def export(argv: Sequence[str]) -> int:
    """`mia memory export`."""
    args = parser(
        "memory export",
        "Write the memories of a namespace: as our JSON Lines, as a file of the original, or as training data.",
        [
            "mia memory export > memories.jsonl",
            "mia memory export --for original --out memory.json",
            "mia memory export --for planner --out planner.jsonl",
        ],
    )
    args.add_argument("--for", dest="kind", choices=("mia", "original", "planner"), default="mia", help="what to write")
    args.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: stdout)")
    args.add_argument("--json", action="store_true", help="the report as JSON (needs --out)")
    given, config = parse_memory(args, argv)

    async def gather(store: MemoryStore) -> list[Stored]:
        return [memory async for memory in walk(store)]

    memories, left = opened(config, gather), 0
    if given.kind == "original":
        text, left = write_original(memories)
    elif given.kind == "planner":
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in planner_rows(memories))
    else:
        text = "".join(line + "\n" for line in write_lines(memories))
    if given.out is None:
        sys.stdout.write(text)
    else:
        _write(given.out, text)
    report = {"memories": len(memories), "left_out": left}
    if given.out is not None and given.json:
        print(json.dumps(report))
    else:
        unjudged = f", {left} unjudged ones left out" if left else ""
        print(f"{len(memories)} memories{unjudged}", file=sys.stderr)
    return 0


def load(argv: Sequence[str]) -> int:
    """`mia memory import FILE`."""
    args = parser(
        "memory import",
        "Store the memories of a file as they are: our JSON Lines, or a file of the original (told apart by content).\n"
        "Their vectors are made anew. What is there already stays as it is.",
        ["mia memory import memories.jsonl", "mia memory import memory.json --memory.namespace team --json"],
    )
    args.add_argument("file", type=Path, metavar="FILE", help="file to read")
    args.add_argument("--json", action="store_true", help="print the report as JSON")
    given, config = parse_memory(args, argv)
    memories = _read(given.file, config.memory.namespace)

    async def store_all(store: MemoryStore) -> list[Added]:
        added = []
        for start in range(0, len(memories), MAX_BATCH):
            added += await store.load(memories[start : start + MAX_BATCH])
        return added

    actions = [added.action for added in opened(config, store_all, must_exist=False)]
    counts = {action: actions.count(action) for action in ("stored", "known", "kept")}
    text = f"{counts['stored']} stored, {counts['known']} known, {counts['kept']} kept as they are here"
    print(json.dumps(counts) if given.json else text)
    return 0


def compact(argv: Sequence[str]) -> int:
    """`mia memory compact`."""
    args = parser(
        "memory compact",
        "Apply the rules of [memory.keep] now: drop absorbed memories, merge what is nearly the same, evict.",
        [
            "mia memory compact --memory.keep.capacity 500 --memory.keep.merge 0.97",
            "mia memory compact --memory.keep.absorbed_uses 3 --json",
        ],
    )
    args.add_argument("--json", action="store_true", help="print the report as JSON")
    given, config = parse_memory(args, argv)
    done: Compacted = opened(config, lambda store: store.compact())
    if given.json:
        print(done.model_dump_json())
    else:
        rows = {"before": done.before, "absorbed": done.absorbed, "merged": done.merged, "evicted": done.evicted}
        print("\n".join(f"{name:10} {count}" for name, count in {**rows, "after": done.after}.items()))
    return 0


def backup(argv: Sequence[str]) -> int:
    """`mia memory backup FILE`."""
    args = parser(
        "memory backup",
        "Copy a memory file to a new file, while it is in use. To restore: stop what uses the memory, move memory.db,\n"
        "memory.db-wal and memory.db-shm away, and copy the backup to memory.db.",
        ["mia memory backup memory-monday.db", "mia memory backup /mnt/backup/team.db --memory.path team.db --json"],
    )
    args.add_argument("file", type=Path, metavar="FILE", help="file to write; must not exist")
    args.add_argument("--json", action="store_true", help="print the report as JSON")
    given, config = parse_memory(args, argv)
    memory = config.memory
    if memory.url:
        raise ConfigError("a service cannot write a file here", remedy="run this beside the file, with memory.path")
    if not memory.path.exists():
        raise DataError(f"no memory at {memory.path}", remedy="set memory.path", code="no_memory")
    from memory_serve.database import Database

    database = Database(memory.path, memory.synchronous, memory.busy_s)
    try:
        database.backup(given.file)
    finally:
        database.close()
    size = given.file.stat().st_size
    print(json.dumps({"file": str(given.file), "bytes": size}) if given.json else f"{given.file}: {size} bytes")
    return 0


def undo(argv: Sequence[str]) -> int:
    """`mia memory undo [N]`."""
    args = parser(
        "memory undo",
        "Take back a change: the last one, or the one of a number. An undo can be undone by its number.",
        ["mia memory undo", "mia memory undo --list", "mia memory undo 42 --json"],
    )
    args.add_argument("number", metavar="N", type=int, nargs="?", help="number of the change (default: the last)")
    args.add_argument("--list", action="store_true", help="only list the last changes")
    args.add_argument("--limit", type=int, default=20, help="how many to list (default: 20)")
    args.add_argument("--json", action="store_true", help="print changes as JSON")
    given, config = parse_memory(args, argv)
    if given.list:
        changes: Sequence[Change] = opened(config, lambda store: store.history(given.limit))
    else:
        changes = [opened(config, lambda store: store.undo(given.number))]
    if given.json:
        shown = [change.model_dump(mode="json") for change in changes]
        print(json.dumps(shown if given.list else shown[0]))
    else:
        print("\n".join(map(_change, changes)) or "no changes")
    return 0


def clear(argv: Sequence[str]) -> int:
    """`mia memory clear`."""
    args = parser(
        "memory clear",
        "Forget all memories of a namespace, which must be named, or of all. `mia memory undo` brings them back.",
        ["mia memory clear --namespace default", "mia memory clear --all --json"],
    )
    args.add_argument("--namespace", help="whose memories to forget")
    args.add_argument("--all", action="store_true", help="forget the memories of all namespaces")
    args.add_argument("--json", action="store_true", help="print the report as JSON")
    given, config = parse_memory(args, argv)
    if given.all == (given.namespace is not None):
        raise ConfigError("say what to clear", remedy="give either --namespace NAME or --all")
    count = opened(config, lambda store: store.scoped(given.namespace).clear(everything=given.all))
    print(json.dumps({"cleared": count}) if given.json else f"{count} memories forgotten")
    return 0


def _explained(found: Recalled) -> str:
    lines = []
    for name, part in (("worked", found.successes), ("failed", found.failures), ("unjudged", found.unjudged)):
        for rank, scored in enumerate(part, 1):
            terms = " + ".join(f"{term} {value:.4f}" for term, value in scored.terms.items())
            memory = scored.memory
            lines += [
                f"{name} {rank}   {scored.score:.4f} = {terms}   (raw similarity {scored.similarity:.4f}, "
                f"{memory.successes} of {memory.uses} right)",
                f"    {memory.id}   {' '.join(memory.question.split())}",
            ]
    return "\n".join(lines) or "nothing would be recalled"


def _change(change: Change) -> str:
    undone = f", undone by {change.undone}" if change.undone else ""
    count = len(change.memories)
    who = change.actor or "-"
    return f"{change.number:6} {change.at[:19]} {change.action:8} {count} memories, by {who}{undone}"


def _read(path: Path, namespace: str) -> list[Stored]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}", remedy="give a file of `mia memory export`") from error
    return read_lines(text) if is_lines(text) else read_original(text, namespace)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error}", remedy="give another --out") from error
