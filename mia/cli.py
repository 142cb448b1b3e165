"""The `mia` command: finds the verb, imports only that verb's module, turns errors into exit codes.

Exit codes: 0 ok, 1 work failed, 2 bad usage, 130 interrupted. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from mia.errors import MiaError

VERBS: dict[str, tuple[str, str]] = {
    "ask": ("inference.cli:ask", "answer one question with memory, plan and search"),
    "eval": ("inference.evaluation.cli:evaluate", "answer a dataset by one method and sum up"),
    "show": ("inference.cli:show", "print one trajectory, or the summary of an evaluation"),
    "compare": ("inference.evaluation.compare:main", "compare evaluations of the same questions"),
    "doctor": ("inference.doctor:main", "list what is there and what each missing thing would enable"),
    "index build": ("local_search.cli:build", "index a corpus for search"),
    "index adopt": ("local_search.cli:adopt", "use a ready-made corpus and FAISS index as they are"),
    "index info": ("local_search.cli:info", "describe an index"),
    "serve search": ("local_search.cli:serve", "serve an index over HTTP"),
    "serve memory": ("memory_serve.cli:serve", "serve a memory store over HTTP"),
    "serve stream": ("ttrl_streaming.cli:serve", "answer over HTTP and learn from feedback that comes later"),
    "serve web": ("web_tools.cli:serve", "serve online search over HTTP"),
    "memory list": ("memory_serve.cli:listing", "list what is remembered"),
    "memory show": ("memory_serve.cli:show", "print one memory"),
    "memory stats": ("memory_serve.cli:stats", "count what is remembered"),
    "memory explain": ("memory_serve.admin:explain", "show what a question would recall, and why"),
    "memory export": ("memory_serve.admin:export", "write memories to a file"),
    "memory import": ("memory_serve.admin:load", "read memories from a file"),
    "memory compact": ("memory_serve.admin:compact", "merge and evict memories by the rules"),
    "memory backup": ("memory_serve.admin:backup", "copy a memory file that is in use"),
    "memory undo": ("memory_serve.admin:undo", "take back a change"),
    "memory clear": ("memory_serve.admin:clear", "forget the memories of a namespace"),
    "train sft": ("executor_train.sft_cli:main", "warm start: train a role on recorded runs"),
    "train executor": ("executor_train.cli:main", "train the Executor by GRPO"),
    "quantize": ("executor_train.quantize_cli:main", "write an Executor in FP8, and check it"),
    "train planner": ("planner_train.cli:main", "train the Planner by GRPO against a frozen Executor"),
    "ttrl": ("ttrl.cli:main", "answer a stream of questions and learn from it at test time"),
    "ttrl replay": ("ttrl_streaming.cli:replay", "replay a dataset against a service that learns"),
    "ttrl chats": ("ttrl_streaming.cli:chats", "let a service that learns learn from conversations"),
    "ttrl stream": ("ttrl_streaming.cli:stream", "look after a service that learns: status, curve, flush, rollback"),
    "ttrl report": ("ttrl.report:main", "compare what parts of test-time learning add"),
    "model fetch": ("executor_train.hub_cli:fetch", "fetch models and data from the hub, or the embedded model"),
    "model push": ("executor_train.publish_cli:push", "publish a trained model on the hub, with its card"),
    "model merge": ("executor_train.merge_cli:merge", "add an adapter into its base: a whole checkpoint"),
}
"""Verb (one or two words) to (module:function, what it does). The function takes argv and returns the exit code."""

USAGE = """usage: mia VERB [options]      (mia VERB --help for each)

MIA, the Memory Intelligence Agent: recall, plan, search, answer, remember.

verbs:
{verbs}

examples:
  mia ask "Which river flows through the capital of Austria?"
  mia index build corpus.jsonl --out my-index
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `mia` command."""
    # Idle OpenMP threads would spin and starve other processes of the cores; it must be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        print(USAGE.format(verbs="\n".join(f"  {verb:16}{what}" for verb, (_, what) in VERBS.items())), end="")
        return 0
    if args[0] == "--version":
        from mia import __version__

        print(__version__)
        return 0
    verb = " ".join(args[:2]) if " ".join(args[:2]) in VERBS else args[0]
    if verb not in VERBS:
        return _unknown(args)
    module, function = VERBS[verb][0].split(":")
    run: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
    return _guarded(run, args[len(verb.split()) :])


def _unknown(args: Sequence[str]) -> int:
    import difflib

    nested = [verb for verb in VERBS if verb.split()[0] == args[0]]
    if nested:
        wants_help = len(args) > 1 and args[1] in ("-h", "--help")
        stream = sys.stdout if wants_help else sys.stderr
        print(f"usage: mia {args[0]} VERB [options]\n", file=stream)
        print("\n".join(f"  mia {verb:16} {VERBS[verb][1]}" for verb in nested), file=stream)
        return 0 if wants_help else 2
    close = difflib.get_close_matches(args[0], [verb.split()[0] for verb in VERBS], n=1)
    hint = f"; did you mean `mia {close[0]}`?" if close else "; `mia --help` lists the verbs"
    print(f"mia: no verb {args[0]!r}{hint}", file=sys.stderr)
    return 2


def _guarded(run: Callable[[Sequence[str]], int], args: Sequence[str]) -> int:
    import json

    from mia.errors import ConfigError, MiaError

    try:
        return run(args)
    except MiaError as error:
        if "--json" in args:
            print(json.dumps({"error": error.failure().model_dump()}, ensure_ascii=False))
        return report(error, code=2 if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1


def report(error: MiaError, code: int = 1) -> int:
    """Print an error with its remedy to stderr; returns the exit code."""
    print(f"error ({error.boundary}/{error.code}): {error}", file=sys.stderr)
    return code


def parser(verb: str, description: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """An argument parser in the house form: description, options, worked examples."""
    import argparse

    return argparse.ArgumentParser(
        prog=f"mia {verb}",
        description=description,
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def parse(made: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[argparse.Namespace, dict[str, object]]:
    """Parse a command line that also takes config flags (`--a.b VALUE`, `--a.b=VALUE`).

    Returns:
        The parsed options, and the config flags by dotted name.

    Raises:
        ConfigError: a config flag has no value.
    """
    from mia.errors import ConfigError

    flags: dict[str, object] = {}
    others: list[str] = []
    words = iter(argv)
    for word in words:
        name, has_value, value = word[2:].partition("=")
        if not word.startswith("--") or "." not in name or " " in name:
            others.append(word)
            continue
        given = value if has_value else next(words, None)
        if given is None:
            raise ConfigError(f"{word} needs a value", remedy=f"write {word} VALUE")
        flags[name.replace("-", "_")] = _json_or_text(given)
    return made.parse_args(others), flags


def _json_or_text(value: str) -> object:
    """Lists and tables are given as JSON, e.g. `--agent.executor.stop '["</answer>"]'`; all else is text."""
    import json

    if value[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


if __name__ == "__main__":
    sys.exit(main())
