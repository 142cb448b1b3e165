"""Rollouts of GRPO with a slow tool: this project's waves beside TRL's own tool loop, SmolLM2 on the CPU.

Groups of prompts each play two turns of a fixed number of tokens with one tool call between them; the tool sleeps.
Each side runs in a process of its own. TRL needs a model that calls tools; SmolLM2 does not, so its reader of replies
is told here that the first reply of each conversation is a call. Nothing else of TRL is touched. Processor seconds
stand beside those of the clock, because other work on the machine moves only the latter.

    python scripts/bench/rollouts.py                 # 2 prompts x 4 generations
    python scripts/bench/rollouts.py --prompts 8     # 32 rollouts
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait do not count as work
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

TOOL_S = 0.2
PASSAGE = (
    "The town lies where the river leaves the hills. Its bridge of nine arches was built by the guild of masons and "
    "rebuilt after the flood; the market beside it is held on the first Monday of each month. "
)
FOUND = "Results of the search:\n" + PASSAGE * 6


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=2, help="prompts of a batch")
    parser.add_argument("--generations", type=int, default=4, help="rollouts of each prompt")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of each of the two replies")
    parser.add_argument("--step", action="store_true", help="also take the optimiser step")
    parser.add_argument("--side", choices=("ours", "trl"), help="run one side and print its numbers as JSON")
    parser.add_argument("--out", type=Path, help="write the numbers to this file as JSON")
    return parser.parse_args()


def prompts(count: int, native: bool = False) -> list[str]:
    """Openings of the Executor's conversation, each with a plan and a question of its own.

    With `native` the tools are left to the chat template, as TRL has it.
    """
    from inference.config import AgentConfig
    from inference.episode import task_text
    from inference.tools import SearchTool
    from mia.types import Plan, Question

    class Nothing:
        name = "nothing"

    tools = (SearchTool(Nothing(), 3).spec,)  # type: ignore[arg-type]
    agent = AgentConfig(tool_format="native" if native else "grammar")
    plan = Plan(text="1. Search: the river of the town\n2. Search: who built its bridge\n3. Answer.")
    return [
        task_text(Question(id=str(n), text=f"Who built the bridge of town {n}? {PASSAGE}"), plan, tools, agent)
        for n in range(count)
    ]


def settings(args: argparse.Namespace, out: str) -> dict[str, Any]:
    """What both trainers are given."""
    return {
        "output_dir": out, "per_device_train_batch_size": args.prompts * args.generations,
        "num_generations": args.generations, "max_steps": 1, "report_to": [], "use_cpu": True, "bf16": False,
        "gradient_checkpointing": False, "save_strategy": "no", "disable_tqdm": True, "shuffle_dataset": False,
        "dataloader_pin_memory": False, "max_completion_length": 2 * args.tokens + 600,
    }  # fmt: skip


def loaded() -> tuple[Any, Any]:
    """SmolLM2 and its tokenizer, with an end token that it does not write, so that all replies have the same length."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from mia import embedded

    place = embedded.ensure()
    model = AutoModelForCausalLM.from_pretrained(place, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(place)
    tokenizer.eos_token = "<|endoftext|>"
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


def lora() -> Any:
    """The adapter that both train."""
    from peft import LoraConfig

    return LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def ours(args: argparse.Namespace, out: str) -> dict[str, Any]:
    """Play the batch by waves."""
    from trl.trainer.grpo_config import GRPOConfig

    from executor_train.game import Outcome, Row
    from executor_train.grpo import WaveTrainer
    from inference.runs import Run
    from mia.examples import Example, Reference
    from mia.types import Message, Question, Role, Sampling, as_message

    sampling = Sampling(temperature=1.0, max_tokens=args.tokens)
    numbers: dict[str, Any] = {}

    class Bench(WaveTrainer):
        @contextmanager
        def _sampler(self) -> Iterator[Any]:
            with super()._sampler() as sampler:
                sample = sampler.sample

                def timed(turns: Any) -> Any:
                    started = time.process_time()
                    made = sample(turns)
                    numbers["sampling_cpu_s"] = numbers.get("sampling_cpu_s", 0.0) + time.process_time() - started
                    return made

                sampler.sample = timed  # type: ignore[method-assign]
                yield sampler

        def _measure(self, mode: str, table: Any, rollouts: Any) -> None:
            numbers["sampling_s"] = sum(table.sampled_s)
            numbers["tools_s"] = table.between_s[1]
            numbers["sampled"] = sum(sum(rollout.sampled) for rollout in rollouts)
            numbers["prompt_tokens"] = len(rollouts[0].prompt_ids)
            numbers["peak_sampling_gb"] = peak()
            super()._measure(mode, table, rollouts)

    class Game:
        role: Role = "executor"
        weights: Mapping[str, float] = MappingProxyType({"correct": 1.0})

        async def play(self, row: Row, model: Any, training: bool) -> Outcome:
            told: tuple[Message, ...] = (Message(role="user", text=row.example.question.text),)
            first = await model.generate(told, sampling)
            await asyncio.sleep(TOOL_S)
            told = (*told, as_message(first), Message(role="user", text=f"<tool_response>\n{FOUND}\n</tool_response>"))
            await model.generate(told, sampling)
            run = Run(id="0", question=row.example.question, answer="x", stop_reason="answered")
            return Outcome(run, {"correct": len(first.text) % 7 / 7})

    rows = [
        Row(example=Example(question=Question(id=str(n), text=text), reference=Reference(answers=("x",))))
        for n, text in enumerate(prompts(args.prompts))
    ]
    model, tokenizer = loaded()
    trainer = Bench(
        Game(), model, tokenizer, GRPOConfig(**settings(args, out)), rows,
        context=4096, limit=4096, peft_config=lora(),
    )  # fmt: skip
    return measured(trainer, args, numbers)


def trl(args: argparse.Namespace, out: str) -> dict[str, Any]:
    """Play the batch in TRL's own tool loop."""
    import trl.trainer.grpo_trainer as grpo
    from datasets import Dataset
    from trl.chat_template_utils import add_response_schema
    from trl.trainer.grpo_config import GRPOConfig

    numbers: dict[str, Any] = {"sampling_s": 0.0, "sampling_cpu_s": 0.0, "tools_s": 0.0, "sampled": 0}

    async def search(query: str) -> str:
        """Find passages.

        Args:
            query: what to look for.
        """
        await asyncio.sleep(TOOL_S)
        return FOUND

    class Bench(grpo.GRPOTrainer):  # type: ignore[misc]  # TRL ships no types
        def _generate_single_turn(self, *given: Any, **named: Any) -> Any:
            started, cpu = time.perf_counter(), time.process_time()
            made = super()._generate_single_turn(*given, **named)
            numbers["sampling_s"] += time.perf_counter() - started
            numbers["sampling_cpu_s"] += time.process_time() - cpu
            numbers["sampled"] += sum(len(ids) for ids in made[0])
            numbers.setdefault("prompt_tokens", len(given[0][0]))
            numbers["peak_sampling_gb"] = peak()
            return made

        def _tool_call_loop(self, *given: Any, **named: Any) -> Any:
            started, before = time.perf_counter(), numbers["sampling_s"]
            made = super()._tool_call_loop(*given, **named)
            numbers["tools_s"] += time.perf_counter() - started - (numbers["sampling_s"] - before)
            return made

    def read(tokenizer: Any, ids: Any, prefix: Any = None, tools: Any = None) -> dict[str, Any]:
        text = tokenizer.decode(ids)
        if FOUND[:20] in tokenizer.decode(prefix):
            return {"role": "assistant", "content": text}
        calls = [{"type": "function", "function": {"name": "search", "arguments": {"query": "x"}}}]
        return {"role": "assistant", "content": text, "tool_calls": calls}

    grpo.parse_response = read
    model, tokenizer = loaded()
    template = Path(grpo.__file__).parents[1] / "chat_templates" / "qwen2_5.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    tokenizer = add_response_schema(tokenizer)
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in prompts(args.prompts, True)])
    fixed = {"min_new_tokens": args.tokens, "max_new_tokens": args.tokens}
    trainer = Bench(
        model, [lambda completions, **_: [float(len(c[0]["content"]) % 7) for c in completions]],
        GRPOConfig(**settings(args, out), generation_kwargs=fixed), data,
        processing_class=tokenizer, tools=[search], peft_config=lora(),
    )  # fmt: skip
    return measured(trainer, args, numbers)


def measured(trainer: Any, args: argparse.Namespace, numbers: dict[str, Any]) -> dict[str, Any]:
    """Run a trainer's batch and complete its numbers."""
    if args.step:
        started = time.perf_counter()
        trainer.train()
        numbers["step_s"] = time.perf_counter() - started
    else:
        trainer.model.train()
        batch = next(iter(trainer.get_train_dataloader()))
        trainer._generate_and_score_completions(batch)
    numbers["tokens_per_s"] = numbers["sampled"] / numbers["sampling_s"]
    numbers["tokens_per_cpu_s"] = numbers["sampled"] / numbers["sampling_cpu_s"]
    numbers["peak_gb"] = peak()
    return numbers


def peak() -> float:
    """The most memory this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def main() -> int:
    """Run both sides and print them."""
    args = arguments()
    if args.side:
        with tempfile.TemporaryDirectory() as out:
            print(json.dumps(ours(args, out) if args.side == "ours" else trl(args, out)))
        return 0
    found = {}
    for side in ("ours", "trl"):
        done = subprocess.run(
            [sys.executable, *sys.argv, "--side", side], stdout=subprocess.PIPE, check=True, text=True
        )
        found[side] = json.loads(done.stdout.splitlines()[-1])
    print(f"{args.prompts} x {args.generations} rollouts, two turns of {args.tokens} tokens, tool {TOOL_S} s")
    for name in found["trl"]:
        print(f"{name:18} ours {found['ours'].get(name, 0):10.2f}   TRL {found['trl'][name]:10.2f}")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
