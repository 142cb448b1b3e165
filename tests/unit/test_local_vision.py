"""Pictures read in this process: a tiny random Qwen2.5-VL against transformers' own processor and generate."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mia.chat.local import LocalChat
from mia.config import Endpoint
from mia.errors import DataError, ModelError
from mia.types import Message, Reply, Sampling
from scripts.tiny_vision import qwen_vl
from tests.doubles import picture

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

AREA = 1280 * 28 * 28


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_vl(tmp_path_factory.mktemp("vl"))


@pytest.fixture
async def chat(tiny: Path) -> AsyncIterator[LocalChat]:
    model = LocalChat(Endpoint(url=f"local:{tiny}"))
    yield model
    await model.aclose()


def ask(text: str, *images: str) -> list[Message]:
    return [Message(role="user", text=text, images=images)]


class Oracle:
    """transformers by itself: its processor (without videos, which need torchvision), its model, its generate."""

    def __init__(self, folder: Path) -> None:
        class Processor(transformers.Qwen2_5_VLProcessor):  # type: ignore[misc, name-defined]
            @classmethod
            def get_attributes(cls) -> list[str]:
                return ["image_processor", "tokenizer"]

            def __init__(self, image_processor: Any, tokenizer: Any) -> None:
                self.image_token = "<|image_pad|>"
                self.video_token = "<|video_pad|>"
                self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
                self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
                transformers.ProcessorMixin.__init__(
                    self, image_processor, tokenizer, chat_template=tokenizer.chat_template
                )

        images = transformers.Qwen2VLImageProcessorPil.from_pretrained(folder, max_pixels=AREA)
        self.processor = Processor(images, transformers.AutoTokenizer.from_pretrained(folder))
        load = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained
        self.model = load(folder, dtype=torch.float32).eval()

    def inputs(self, messages: Sequence[Message]) -> Any:
        turns = [
            {"role": m.role, "content": [*({"type": "image"} for _ in m.images), {"type": "text", "text": m.text}]}
            for m in messages
        ]
        text = self.processor.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        urls = [url for m in messages for url in m.images]
        pictures = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB") for url in urls]
        return self.processor(text=[text], images=pictures or None, return_tensors="pt")

    def writes(self, messages: Sequence[Message], count: int) -> tuple[list[int], list[int]]:
        """Ids of the prompt and of the greedy reply."""
        inputs = self.inputs(messages)
        with torch.no_grad():
            out = self.model.generate(**inputs, max_new_tokens=count, do_sample=False)
        length = inputs["input_ids"].shape[1]
        return out[0, :length].tolist(), out[0, length:].tolist()


@pytest.fixture(scope="module")
def oracle(tiny: Path) -> Oracle:
    return Oracle(tiny)


def same(reply: Reply, wanted: tuple[list[int], list[int]]) -> bool:
    assert reply.tokens is not None
    return (list(reply.tokens.prompt_ids), list(reply.tokens.completion_ids)) == wanted


def placeholders(reply: Reply, tiny: Path) -> int:
    assert reply.tokens is not None
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny)
    return reply.tokens.prompt_ids.count(tokenizer.convert_tokens_to_ids("<|image_pad|>"))


async def test_a_batch_of_pictures_of_different_sizes_is_answered_as_one_by_one(
    chat: LocalChat, oracle: Oracle
) -> None:
    conversations = [
        ask("What is it?", picture("red", (56, 84))),
        ask("And this one, which is larger?", picture("green", (300, 170), dot="white")),
        ask("No picture at all."),
        ask("Two of them", picture("blue", (84, 84)), picture("yellow", (200, 60))),
        [
            *ask("first", picture("red", (140, 28))),
            Message(role="assistant", text="A bar."),
            *ask("second", picture("black", (90, 140), dot="red")),
        ],
    ]
    replies = await asyncio.gather(
        *[chat.generate(c, Sampling(max_tokens=10 + n)) for n, c in enumerate(conversations)]
    )
    for number, (conversation, reply) in enumerate(zip(conversations, replies, strict=True)):
        assert same(reply, oracle.writes(conversation, 10 + number)), number


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        ((56, 84), 2 * 3),
        ((28, 28), 2 * 2),  # enlarged to the least area, 56 x 56
        ((280, 100), 10 * 4),  # sides are rounded to multiples of 28
        ((2800, 1400), 50 * 25),  # 5,000 tokens, shrunk by two to what is allowed
    ],
)
async def test_a_picture_takes_as_many_tokens_as_it_has_features(
    chat: LocalChat, tiny: Path, size: tuple[int, int], tokens: int
) -> None:
    reply = await chat.generate(ask("?", picture("red", size)), Sampling(max_tokens=1))
    assert placeholders(reply, tiny) == tokens


async def test_bounds_of_the_area_are_settings(tiny: Path) -> None:
    options = {"min_pixels": 112 * 112, "max_pixels": 56 * 112}
    for option, size, tokens in (("min_pixels", (28, 28), 16), ("max_pixels", (1000, 2000), 8)):
        model = LocalChat(Endpoint(url=f"local:{tiny}", extra_body={option: options[option]}))
        reply = await model.generate(ask("?", picture("red", size)), Sampling(max_tokens=1))
        await model.aclose()
        assert placeholders(reply, tiny) == tokens


async def test_the_pixels_decide(chat: LocalChat) -> None:
    async def logprobs(*images: str) -> tuple[float, ...]:
        reply = await chat.generate(ask("What is it?", *images), Sampling(max_tokens=3))
        assert reply.tokens is not None
        return reply.tokens.logprobs

    red = await logprobs(picture("red"))
    assert await logprobs(picture("blue")) != pytest.approx(red, abs=1e-3)
    assert await logprobs(picture("red", dot="white")) != pytest.approx(red, abs=1e-5)
    assert await logprobs(picture("red")) == pytest.approx(red, abs=1e-4)
    two = await logprobs(picture("red"), picture("blue"))
    assert await logprobs(picture("blue"), picture("red")) != pytest.approx(two, abs=1e-3)


async def test_a_conversation_with_pictures_goes_on_from_what_was_read(chat: LocalChat, oracle: Oracle) -> None:
    conversation = ask("What is it?", picture("red"))
    for colour in ("green", "blue", ""):
        reply = await chat.generate(conversation, Sampling(max_tokens=6))
        assert same(reply, oracle.writes(conversation, 6))
        images = (picture(colour, (100, 60)),) if colour else ()
        conversation = [*conversation, Message(role="assistant", text="Yes."), *ask("And now?", *images)]
    other = [*ask("What is it?", picture("red")), Message(role="assistant", text="Yes.")]
    other += ask("And now?", picture("white", (100, 60)))  # as before up to the second picture, of the same size
    assert same(await chat.generate(other, Sampling(max_tokens=6)), oracle.writes(other, 6))


async def test_typed_placeholders_are_only_characters(chat: LocalChat, tiny: Path) -> None:
    text = "<|image_pad|> <image> <|vision_start|><|image_pad|><|vision_end|>"
    reply = await chat.generate(ask(text, picture("red")), Sampling(max_tokens=1))
    assert placeholders(reply, tiny) == 6
    reply = await chat.generate(ask(text), Sampling(max_tokens=1))
    assert placeholders(reply, tiny) == 0


async def test_what_cannot_be_read_fails_alone(chat: LocalChat) -> None:
    bad = {
        "data:image/png;base64,AAAA": "picture 2: not a usable picture",
        "data:text/plain,hello": "picture 2: not a usable picture",
        picture("red", (2, 900)): "picture 2: .*aspect ratio",
    }
    calls = [chat.generate(ask("?", picture(), image), Sampling(max_tokens=1)) for image in bad]
    *failed, fine = await asyncio.gather(
        *calls, chat.generate(ask("?", picture()), Sampling(max_tokens=1)), return_exceptions=True
    )
    assert isinstance(fine, Reply)
    for error, pattern in zip(failed, bad.values(), strict=True):
        assert isinstance(error, DataError)
        assert error.code == "bad_picture"
        with pytest.raises(DataError, match=pattern):
            raise error
    with pytest.raises(ModelError, match="fetches no URL") as refused:
        await chat.generate(ask("?", "https://example.org/a.png"), Sampling())
    assert refused.value.code == "picture_url"


async def test_pictures_count_in_the_window(tmp_path: Path) -> None:
    model = LocalChat(Endpoint(url=f"local:{qwen_vl(tmp_path, positions=128)}"))
    assert model.context == 128
    with pytest.raises(ModelError) as full:
        await model.generate(ask("?", picture("red", (560, 280))), Sampling(max_tokens=1))
    await model.aclose()
    assert full.value.code == "context_length"


async def test_a_template_that_ignores_pictures_is_named(tiny: Path, tmp_path: Path) -> None:
    folder = qwen_vl(tmp_path)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}{% endfor %}", encoding="utf-8")
    model = LocalChat(Endpoint(url=f"local:{folder}"))
    with pytest.raises(ModelError, match="0 placeholders for 1 pictures"):
        await model.generate(ask("?", picture()), Sampling(max_tokens=1))
    await model.aclose()
