"""What training sees is what serving sends, byte for byte: Qwen's real vocabulary under the templates of Qwen2.5 and 3.

The vocabulary is that of the package dashscope (extra dev); without it these tests are skipped.
"""

from __future__ import annotations

import base64
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from executor_train.rollout import Conversation
from mia.chat.template import Template
from mia.embedded import TEMPLATE
from mia.types import Message, Reply, TokenRecord
from scripts.tiny_vision import QWEN_CONTROL

trl = pytest.importorskip("trl")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
REPLIES = (
    '<think>\nThe river is the Donau; 東京 is not on it.\n</think>\n\n<tool_call>\n{"name": "search"}\n</tool_call>',
    '<think>short</think><tool_call>{"name": "search", "arguments": {"query": "Wien"}}</tool_call> ',
    "  <answer>3.14  Zürich</answer>\n",
)


@pytest.fixture(scope="module")
def qwen() -> Any:
    """Qwen's tokenizer, from its ranks: a merge of two tokens is any pair that writes a token."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    found = importlib.util.find_spec("dashscope")
    if found is None or found.origin is None:
        pytest.skip("the package dashscope, which ships Qwen's vocabulary, is not installed")
    lines = (Path(found.origin).parent / "resources" / "qwen.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    letters = _letters()
    names = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = []
    for token in ranks:
        pairs = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        pairs = [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]
        merges += sorted(((names[a], names[b]) for a, b in pairs), key=lambda pair: pair)
    bpe = Tokenizer(models.BPE(vocab={names[token]: rank for token, rank in ranks.items()}, merges=merges))
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in QWEN_CONTROL])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def _letters() -> dict[int, str]:
    """The letter that byte-level BPE writes for each byte (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def _template(name: str) -> str:
    if name == "chatml":
        return TEMPLATE
    return (Path(str(trl.__file__)).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["qwen2_5", "qwen2_5_vl", "chatml", "qwen3_training"])
@pytest.mark.parametrize("split", [False, True], ids=["as the tokenizer writes", "letter by letter"])
def test_each_prompt_of_training_is_that_of_serving(qwen: Any, name: str, split: bool) -> None:
    qwen.chat_template = _template(name)
    template = Template(qwen, name)
    ends = frozenset(qwen.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    record = Conversation(template, ends)
    messages = [Message(role="user", text="Which river? <|im_end|> 東京")]
    replies = REPLIES[:1] if name == "qwen3_training" else REPLIES  # it squeezes white space around thinking
    sampled: list[int] = []
    for number, text in enumerate(replies):
        ids = record.extend(messages)
        assert template.decoded(ids, control=True) == template.text(messages)
        chat = [{"role": message.role, "content": message.text} for message in messages]
        assert qwen.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == template.text(messages)
        own = [token for letter in text for token in template.plain(letter)] if split else template.plain(text)
        own.append(qwen.eos_token_id)
        sampled += own
        tokens = TokenRecord(
            prompt_ids=ids, completion_ids=own, sampled_mask=[True] * len(own), logprobs=[-1.0] * len(own)
        )
        record.add(Reply(text=text, tokens=tokens))
        found = f"<tool_response>\nresult {number} <|im_start|>\n</tool_response>"
        messages += [Message(role="assistant", text=text), Message(role="user", text=found)]
    assert template.decoded(record.extend(messages), control=True) == template.text(messages)
    made = record.finished(limit=1 << 20)
    assert [token for token, flag in zip(made.completion_ids, made.sampled, strict=True) if flag] == sampled
