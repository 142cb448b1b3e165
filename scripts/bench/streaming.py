"""How long users wait for answers of the service that learns, with updates in the background and without.

Starts `mia serve stream` in a process of its own with a scripted Executor; so many users ask for a while. In the first
half nothing is said about the answers, in the second everything is, late and shuffled, so that updates follow
each other. Counts answers, updates and feedback; gives the median and the 95th percentile of an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from mia.cli import main as mia  # noqa: E402
from tests import tiny_models  # noqa: E402
from tests.doubles import chat_endpoint  # noqa: E402
from tests.evaluating import wire  # noqa: E402
from tests.streaming import executor  # noqa: E402
from ttrl_streaming.client import StreamingClient  # noqa: E402
from ttrl_streaming.schema import AskRequest, FeedbackItem  # noqa: E402

EXAMPLES = """examples:
  python scripts/bench/streaming.py --users 16 --updates 10
  python scripts/bench/streaming.py --model embedded: --users 4 --updates 2 --json
"""


async def asked(client: StreamingClient, name: str, seconds: list[float]) -> Any:
    """One answer, and how long it took."""
    started = time.perf_counter()
    answer = await client.ask(AskRequest(question=f"Is {name} lucky?", id=name))
    seconds.append(time.perf_counter() - started)
    return answer


async def half(client: StreamingClient, args: argparse.Namespace, teach: bool) -> dict[str, Any]:
    """Users ask until enough questions are answered, or, where they teach, enough updates were made."""
    seconds: list[float] = []
    waiting: list[FeedbackItem] = []
    said = 0
    order, count, over = random.Random(0), 0, asyncio.Event()

    async def user() -> None:
        nonlocal count, said
        while not over.is_set():
            count += 1
            answer = await asked(client, f"{'t' if teach else 'f'}{count}", seconds)
            if not teach:
                if len(seconds) >= args.answers:
                    over.set()
                continue
            waiting.append(FeedbackItem(id=answer.id, reward=float(answer.answer == "yes")))
            if len(waiting) >= args.users:
                late, waiting[:] = waiting[:], []
                order.shuffle(late)
                said += len(late)
                await client.feedback(late)
                if (await client.status()).version >= args.updates:
                    over.set()

    started = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(args.users)))
    cuts = statistics.quantiles(seconds, n=20)
    return {
        "answers": len(seconds), "said": said, "wall_s": round(time.perf_counter() - started, 1),
        "median_s": round(statistics.median(seconds), 3), "p95_s": round(cuts[18], 3),
    }  # fmt: skip


async def measure(url: str, args: argparse.Namespace) -> dict[str, Any]:
    """Both halves."""
    client = StreamingClient(url)
    for n in range(args.users):
        await asked(client, f"warm{n}", [])
    quiet = await half(client, args, teach=False)
    taught = await half(client, args, teach=True)
    status = await client.status()
    counted = status.feedback
    await client.aclose()
    return {
        "without": quiet, "with": taught, "ratio": round(taught["p95_s"] / quiet["p95_s"], 2),
        "updates": status.updates, "failed": status.failed,
        "feedback": {name: counted[name] for name in ("received", "learned", "remembered", "refused", "queued")},
    }  # fmt: skip


def main() -> None:
    """Print the numbers."""
    made = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    made.add_argument("--users", type=int, default=16, help="who ask at once (default: 16)")
    made.add_argument("--answers", type=int, default=200, help="answers of the half without updates (default: 200)")
    made.add_argument("--updates", type=int, default=10, help="updates of the other half (default: 10)")
    made.add_argument("--model", default="", help="the Planner (default: a tiny one of random weights)")
    made.add_argument("--json", action="store_true", help="print one line of JSON")
    args = made.parse_args()
    with tempfile.TemporaryDirectory() as scratch, chat_endpoint(wire(executor)) as endpoint:
        place = args.model or str(tiny_models.chat_llama(Path(scratch) / "model", positions=4096))
        corpus, index = Path(scratch) / "corpus.jsonl", Path(scratch) / "index"
        corpus.write_text(json.dumps({"id": "1", "contents": "Vienna\nVienna lies on the Danube."}) + "\n")
        mia(["index", "build", str(corpus), "--out", str(index), "--engines", "bm25"])
        flags = {
            "policy.path": place, "models.executor.url": endpoint, "agent.planner.max_tokens": 32,
            "agent.reflector.max_tokens": 8, "rollout.context": 4096, "rollout.limit": 4096, "streaming.batch": 8,
            "streaming.memory": "false", "streaming.gate.questions": 0, "grpo.learning_rate": 1e-3,
            "search.index": str(index),
        }  # fmt: skip
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "mia.cli", "serve", "stream", "ttrl/streaming_tiny", "--port", "0"]
        log = Path(scratch) / "log"
        with log.open("w") as file:
            server = subprocess.Popen([*command, "--out", f"{scratch}/run", *words], stderr=file)
        try:
            while (found := re.search(r"at (http://\S+)\n", log.read_text())) is None:
                if server.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.2)
            url = found.group(1)
            numbers = asyncio.run(measure(url, args))
        finally:
            server.kill()
            server.wait()
    print(json.dumps(numbers) if args.json else json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
