"""Runs a command against a stub endpoint that checks what a model that sees is sent for LiveVQA's questions.

The stub speaks OpenAI's API on loopback and plays all roles. It reads the questions' files by itself and refuses, with
HTTP 400, each request that is not as it should be:

- the Executor is sent the question's own picture, as pixels that equal the file's, in its first message;
- the Planner is sent none, in no message;
- image search is run once at most; what it found comes as titles and pixels; a second call, which the stub makes on
  purpose, is refused.

Its answers are A, or a fixed text; --answers gives others by question. So it shows that the path works, not a score.
In COMMAND, {url} stands for the stub's address. Exit code: that of COMMAND, or 1 if a request was not right.

examples:
  python scripts/bench/stub_vision.py --questions livevqa -- mia eval eval/livevqa --dataset.path livevqa \\
      --models.default.url {url} --web.images.path my-pictures --out runs/stub
  python scripts/bench/stub_vision.py --questions livevqa --report checks.json -- my-program --url {url}
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mia.errors import DataError
from mia.pictures import decoded, from_data_url
from mia.prompts import prompt
from web_tools.stub import Answer, Seen, serving

OPEN_ANSWER = "a fixed answer"
_ROLES = {
    "manager/caption": "caption",
    "planner/plan": "planner",
    "executor/task": "executor",
    "executor/task_native": "executor",
    "executor/task_direct": "executor",
}
_LEVELS = {"level1_qa": "1", "level2_qa": "2"}
_NEAR = 6.0
"""Mean difference of the values (0 to 255) of two pictures that are the same but for scaling and JPEG."""


class BadRequest(Exception):
    """A request that is not as it should be."""


@dataclass(frozen=True)
class Asked:
    """A question as its file has it: `words` are its letters and digits; `file` is its picture's."""

    id: str
    words: str
    file: Path


def read_questions(path: Path, images: Path | None = None) -> list[Asked]:
    """The questions of a `benchmark.json`, or of all in a folder, that name a picture which is there.

    Args:
        path: the file or folder.
        images: where pictures are looked for; None: anywhere in the folder of the part.

    Raises:
        ValueError: a file is no JSON.
    """
    found = []
    for file in [path] if path.is_file() else sorted(path.rglob("benchmark.json")):
        part = file.absolute().parent.name if file.name == "benchmark.json" else ""
        pictures = [each for each in (images or file.parent).rglob("*") if each.is_file()]
        for item in filter(_is_table, json.loads(file.read_bytes())):
            for name, level in _LEVELS.items():
                asked = item.get(name)
                if not _is_table(asked) or not isinstance(asked.get("question"), str):
                    continue
                wanted = f"/{asked.get('img_path') or item.get('img_path')}"
                fitting = [each for each in pictures if f"/{each.as_posix()}".endswith(wanted)]
                if fitting:
                    identity = "-".join(filter(None, (part, str(item.get("id")), level)))
                    picture = min(fitting, key=lambda each: len(each.parts))
                    found.append(Asked(identity, _words(asked["question"]), picture))
    return found


@dataclass
class Checker:
    """Checks requests and answers them. Safe to call from many threads.

    Args:
        questions: what may be asked.
        answers: what to answer, by question id.
    """

    questions: Sequence[Asked]
    answers: Mapping[str, str] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)
    searched: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def respond(self, request: Seen) -> Answer:
        """The stub's answer, for `web_tools.stub.serving`."""
        if request.method == "GET":
            return Answer({"object": "list", "data": [{"id": "stub", "object": "model"}]})
        messages = request.json["messages"]
        try:
            role, text = self._reply(messages)
        except (BadRequest, DataError) as error:
            with self._lock:
                self.faults.append(str(error))
            return Answer({"error": {"message": str(error), "type": "invalid_request_error"}}, status=400)
        with self._lock:
            self.requests[role] += 1
        for stop in request.json.get("stop", ()):
            text = text.partition(stop)[0]
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        tokens = sum(len(_text(message)) for message in messages) // 4 + 300 * sum(map(len, map(_pictures, messages)))
        usage = {"prompt_tokens": tokens, "completion_tokens": len(text) // 4}
        return Answer({"id": "x", "object": "chat.completion", "model": "stub", "choices": [choice], "usage": usage})

    def report(self) -> dict[str, Any]:
        """What was seen, as counts, and what was wrong."""
        return {
            "requests": dict(sorted(self.requests.items())),
            "pictures_seen": len(self.seen),
            "image_searches": len(self.searched),
            "second_searches_refused": len(self.refused),
            "faults": self.faults,
        }

    def _reply(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        first = _text(messages[0])
        begins = {name: prompt(name).text.partition("{{")[0] for name in _ROLES}
        role = next((_ROLES[name] for name, begin in begins.items() if first.startswith(begin)), None)
        if role is None:
            raise BadRequest(f"no rule for this prompt: {first[:80]!r}")
        if role == "planner":
            if any(map(_pictures, messages)) or "data:image" in json.dumps(messages):
                raise BadRequest("the Planner was sent a picture")
            reflects = "another round" in _text(messages[-1])
            return role, "No, it is supported." if reflects else "1. Search by the picture.\n2. Answer."
        asked = self._asked(messages[0])
        with self._lock:
            self.seen.add(asked.id)
        if role == "caption":
            picture = _opened(_pictures(messages[0])[0])
            return role, f"A picture of {picture.shape[1]} by {picture.shape[0]} pixels."
        return role, self._act(messages, asked)

    def _asked(self, message: Mapping[str, Any]) -> Asked:
        """The question of a message, told by its words and its picture."""
        sent = _pictures(message)
        if len(sent) != 1:
            raise BadRequest(f"{len(sent)} pictures in the first message: {_text(message)[-200:]!r}")
        words = _words(_text(message))
        fitting = [asked for asked in self.questions if asked.words in words]
        longest = max((len(asked.words) for asked in fitting), default=0)
        fitting = [asked for asked in fitting if len(asked.words) == longest]
        if not fitting:
            raise BadRequest(f"no question of the files: {_text(message)[-200:]!r}")
        for asked in fitting:
            if _same(sent[0], asked.file):
                return asked
        raise BadRequest(f"not the picture of {' or '.join(asked.id for asked in fitting)}")

    def _act(self, messages: Sequence[Mapping[str, Any]], asked: Asked) -> str:
        """Search by the picture, try it again beside a search for words, answer; look at what came of it."""
        said = [message for message in messages if message["role"] == "assistant"]
        later = [message for message in messages[1:] if _pictures(message)]
        for message in later:
            for url in _pictures(message):
                _opened(url)
        if len(later) > 1:
            raise BadRequest(f"{asked.id}: image search was run {len(later)} times")
        told = _text(messages[-1])
        offered = "- image_search(" in _text(messages[0])
        if not offered or len(said) >= 2 or "No further call is possible" in told:
            if offered and len(said) >= 2:
                self._check_refused(messages, asked)
            default = "A" if "letter of the right option" in _text(messages[0]) else OPEN_ANSWER
            return f"<answer>{self.answers.get(asked.id, default)}</answer>"
        if not said:
            return _call("image_search", picture=1)
        if not later or "Picture 1:" not in told:
            raise BadRequest(f"{asked.id}: image search found no picture: {told[:200]!r}")
        with self._lock:
            self.searched.add(asked.id)
        return _call("image_search", picture=1) + _call("search", query=_text(messages[0])[-80:])

    def _check_refused(self, messages: Sequence[Mapping[str, Any]], asked: Asked) -> None:
        if not any("can be used once" in _text(message) for message in messages[1:]):
            raise BadRequest(f"{asked.id}: the second image search was not refused: {_text(messages[-1])[:200]!r}")
        with self._lock:
            self.refused.add(asked.id)


def _call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _words(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _pictures(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    return [part["image_url"]["url"] for part in _parts(content) if part["type"] == "image_url"]


def _parts(content: Any) -> Iterator[Mapping[str, Any]]:
    yield from content if isinstance(content, list) else ()


@lru_cache(32)
def _opened(url: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Pixels (height, width, 3) of a data URL. Raises DataError when it is no picture."""
    return np.asarray(decoded(from_data_url(url)))


@lru_cache(32)
def _same(url: str, file: Path) -> bool:
    """Whether a picture is that of a file, perhaps scaled down."""
    sent = _opened(url)
    source = decoded(file.read_bytes())
    source.thumbnail((max(sent.shape[:2]), max(sent.shape[:2])))
    wanted = np.asarray(source)
    return wanted.shape == sent.shape and float(np.abs(wanted.astype(int) - sent.astype(int)).mean()) < _NEAR


def main() -> int:
    """Run the command; see the module."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--questions", type=Path, required=True, help="folder of the parts, or a part's file")
    made.add_argument("--images", type=Path, help="folder of the pictures, if it is not beside the questions")
    made.add_argument("--answers", type=Path, help="JSON object: question id (PART-ID-LEVEL) to answer")
    made.add_argument("--report", type=Path, help="where to write the counts and faults as JSON")
    made.add_argument("command", nargs="+", metavar="COMMAND", help="what to run, behind --")
    args = made.parse_args()
    answers = json.loads(args.answers.read_bytes()) if args.answers else {}
    try:
        checker = Checker(read_questions(args.questions, args.images), answers)
    except (OSError, ValueError) as error:
        print(f"error: {args.questions} is not in LiveVQA's released form: {error}", file=sys.stderr)
        return 1
    with serving(checker.respond) as server:
        url = f"{server.url}/v1"
        code = subprocess.run([word.replace("{url}", url) for word in args.command], check=False).returncode
    report = checker.report()
    if args.report and report["requests"]:  # else the command did not come so far
        args.report.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    counts = ", ".join(f"{name} {value}" for name, value in report.items() if name != "faults")
    print(f"stub: {counts}, {len(checker.faults)} requests not right", file=sys.stderr)
    for fault in checker.faults[:10]:
        print(f"stub: {fault}", file=sys.stderr)
    return code or int(bool(checker.faults))


if __name__ == "__main__":
    sys.exit(main())
