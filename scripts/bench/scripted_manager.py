"""A Manager made of rules, behind an OpenAI-compatible endpoint: for benchmarks where no capable model is at hand.

It writes what the methods ask of a Manager (facts, descriptions, links, rules, lessons, summaries, categories), and
what the panel's reviewers and chair are asked, in the form that is wanted, from the words of the prompt alone. It shows
that a method works, not how good it is: a table made with it must say so. What the prompt is for is told by the words
it begins with. A prompt that it does not know is answered with HTTP 400.

examples:
  python scripts/bench/scripted_manager.py                 # serves on a free port; the first line of stdout is its URL
  python scripts/bench/scripted_manager.py --port 8010     # then: mia eval CONFIG --models.manager.url http://127.0.0.1:8010/v1
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mia.prompts import prompt

_NAME = re.compile(r"\b[A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*")
_SENTENCE = re.compile(r"[A-Z][^.\n]{20,200}\.")
_RESULT = re.compile(r"^Result: (.*?)(?=\n\n(?:Executor: |Call )|\Z)", re.MULTILINE | re.DOTALL)
_NO_NAMES = {"Question", "Call", "Result", "Answer", "Tags", "Keywords", "Context", "First", "What", "Which", "Who"}
_RULES = (
    "Search for the unnamed thing in the question first, and then for what is asked about it.",
    "Keep a query to the names and the one property that is wanted.",
    "Compare every detail of the question with a result before resting on it.",
    "When a result does not help, ask for the same thing in other words.",
)


def answer(messages: Sequence[Mapping[str, str]]) -> str:
    """The reply to a conversation.

    Args:
        messages: role and content of each.

    Raises:
        ValueError: the prompt is none of those that methods and panel send.
    """
    text = messages[-1]["content"] if messages[-1]["role"] == "user" else ""
    first = next(message["content"] for message in messages if message["role"] == "user")
    if messages[0]["role"] == "system" and "## New Messages" in text:
        return _facts(text)
    for name, write in _WRITERS.items():
        if first.startswith(prompt(name).text.partition("{{")[0]):
            return write(first)
    raise ValueError(f"no rule for this prompt: {first[:80]!r}")


def _names(text: str, most: int) -> list[str]:
    """The first names in a text, each once."""
    found = dict.fromkeys(name for name in _NAME.findall(text) if name.split()[0] not in _NO_NAMES)
    return list(found)[:most] or ["question"]


def _between(text: str, start: str, end: str) -> str:
    return text.partition(start)[2].partition(end)[0]


def _facts(text: str) -> str:
    """Sentences of the results in the new messages, as Mem0 wants them."""
    results = "\n".join(re.findall(r"^(?:user: )?Result: (.*)$", _between(text, "## New Messages", "\n## "), re.M))
    facts = list(dict.fromkeys(_SENTENCE.findall(results)))[:3]
    return json.dumps(
        {"memory": [{"id": str(n), "text": t, "attributed_to": "assistant"} for n, t in enumerate(facts)]}
    )


def _description(text: str) -> str:
    names = _names(_between(text, "Question:", "Reply with"), 6)
    context = f"A question about {names[0]} was researched by searching."
    return json.dumps({"keywords": names, "context": context, "tags": ["research", names[0]]})


def _evolution(text: str) -> str:
    """The first neighbour is linked; nothing is rewritten."""
    return json.dumps({"links": [1] if "\n[1] " in text else [], "tags": [], "updates": []})


def _operations(text: str) -> str:
    """The first rules one by one, then votes for them in turn by the length of the trial."""
    known = len(re.findall(r"^\d+\. ", _between(text, "The rules so far:", "Reply with"), re.M))
    if known < len(_RULES):
        return json.dumps({"operations": [{"operation": "ADD", "text": _RULES[known]}]})
    return json.dumps({"operations": [{"operation": "AGREE", "rule": 1 + len(text) % known}]})


def _lessons(text: str) -> str:
    failed = text.startswith(prompt("reasoningbank/failure").text.partition("{{")[0])
    rule = _RULES[2 if failed else 0]
    item = {"title": "Check details" if failed else "One step at a time", "description": rule, "content": rule}
    return json.dumps({"why": "told by the outcome", "items": [item]})


def _summary(text: str) -> str:
    actions = re.findall(r"^\d+\. (.+)$", _between(text, "What was done:", "The result was"), re.M)
    steps = [*actions, "Answer from what was found."]
    return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))


def _category(_: str) -> str:
    return json.dumps({"category": "others"})


def _supported(text: str) -> str:
    """A reviewer of the panel: high if a result names the answer."""
    given = _between(text, "Its answer:", "\n\n").strip()
    results = "\n".join(_RESULT.findall(_between(text, "What the agent did:", "Its answer:")))
    found = bool(given) and given.casefold() in results.casefold()
    return _review(given, 9 if found else 3, "named" if found else "not named")


def _valid(text: str) -> str:
    """A reviewer of the panel: high if the answer is short."""
    given = _between(text, "\nAnswer:", "\n\n").strip()
    short = 0 < len(given.split()) <= 12
    return _review(given, 9 if short else 3, "short" if short else "long or missing")


def _review(given: str, score: int, how: str) -> str:
    return json.dumps({"quote": given or "Question", "reason": f"The answer is {how}.", "score": score})


def _decision(text: str) -> str:
    """The chair of the panel: by the weighted score."""
    score = float(_between(text, "Weighted score: ", " of 10"))
    return json.dumps({"reason": f"The score is {score}.", "verdict": "accept" if score >= 6 else "reject"})


_WRITERS: Mapping[str, Callable[[str], str]] = {
    "amem/describe": _description,
    "amem/evolve": _evolution,
    "expel/update": _operations,
    "reasoningbank/success": _lessons,
    "reasoningbank/failure": _lessons,
    "manager/summarise": _summary,
    "manager/classify": _category,
    "judge/panel_logic": _supported,
    "judge/panel_sourcing": _supported,
    "judge/panel_validity": _valid,
    "judge/panel_chair": _decision,
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": [{"id": "scripted-manager", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            message = {"role": "assistant", "content": answer(body["messages"])}
        except ValueError as error:
            self._send(400, {"error": {"message": str(error)}})
            return
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        words = {
            "prompt_tokens": sum(len(m["content"].split()) for m in body["messages"]),
            "completion_tokens": len(message["content"].split()),
        }
        self._send(200, {"id": "x", "model": "scripted-manager", "choices": [choice], "usage": words})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


def main() -> None:
    """Serve until the process is ended."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--port", type=int, default=0, help="port on loopback; 0: a free one")
    server = ThreadingHTTPServer(("127.0.0.1", made.parse_args().port), _Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
