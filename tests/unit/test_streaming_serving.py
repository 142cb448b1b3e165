"""The weights that answer: no cache of other weights, one version for each answer, old ones go when they may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mia.chat.engine import Engine, Job
from mia.errors import ModelError
from mia.types import Message, Reply, Sampling, as_message
from tests import tiny_models
from ttrl_streaming.serving import Weights

torch = pytest.importorskip("torch")
pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("default")
GREEDY = Sampling(temperature=0.0, max_tokens=12)
LONG = "You plan. " * 40


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.chat_llama(tmp_path_factory.mktemp("model"), positions=4096)


@pytest.fixture(scope="module")
def adapters(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two adapters that change every answer."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        settings = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny), settings)
        folder = tmp_path_factory.mktemp("adapter")
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)
        made.append(folder)
    return made


@pytest.fixture
async def weights(tiny: Path) -> AsyncIterator[Weights]:
    made = Weights(str(tiny), True, "float32", 4096, 8)
    yield made
    await made.aclose()


def plain(tiny: Path, adapter: Path, said: Reply) -> Any:
    """What a freshly loaded model with the adapter merged in writes after the same tokens, with nothing kept."""
    engine = Engine.load(str(tiny), "plain", 4096, "cpu", "float32", adapter=adapter)
    assert said.tokens is not None
    job = Job((), GREEDY, given=list(said.tokens.prompt_ids))
    engine.run([job])
    return job.future.result()


def user(text: str) -> Message:
    return Message(role="user", text=text)


async def test_an_answer_keeps_its_version_and_no_cache_crosses_to_another(
    tiny: Path, adapters: list[Path], weights: Weights
) -> None:
    """Two answers in flight on two versions, turn by turn, each as if its version were alone and had read nothing."""
    first, second = user(f"{LONG}Where?"), user(f"{LONG}When?")
    async with weights.seat("a", 1, adapters[0], 0) as (old, served):
        one = await old.generate([first], GREEDY)
        await weights.take("a", 2, adapters[1])
        async with weights.seat("a", 2, adapters[1], 0) as (new, later):
            two = await new.generate([first], GREEDY)
            assert weights.loaded == [("a", 1), ("a", 2)]
            turns = await asyncio.gather(
                old.generate([first, as_message(one), second], GREEDY),
                new.generate([first, as_message(two), second], GREEDY),
            )
        assert (served.version, later.version) == (1, 2)
        assert weights.loaded == [("a", 1), ("a", 2)]  # somebody still sits at the old one
    await weights.take("a", 2, adapters[1])
    assert weights.loaded == [("a", 2)]
    assert one.text != two.text
    for adapter, replies in ((adapters[0], (one, turns[0])), (adapters[1], (two, turns[1]))):
        for said in replies:
            expected = plain(tiny, adapter, said)
            assert said.tokens is not None
            assert said.tokens.completion_ids == expected.tokens.completion_ids
            assert said.tokens.logprobs == pytest.approx(expected.tokens.logprobs, abs=1e-3)


async def test_going_back_gives_the_same_tokens(adapters: list[Path], weights: Weights) -> None:
    async def said(version: int, folder: Path) -> Any:
        await weights.take("a", version, folder)
        async with weights.seat("a", version, folder, 5) as (seat, _):
            return (await seat.generate([user(LONG)], Sampling(temperature=1.0, max_tokens=12))).tokens

    first = await said(1, adapters[0])
    second = await said(2, adapters[1])
    again = await said(1, adapters[0])
    assert first == again
    assert first.completion_ids != second.completion_ids


async def test_whole_models_are_versions_too(tiny: Path, tmp_path: Path) -> None:
    other = tiny_models.chat_llama(tmp_path / "other", seed=9, positions=4096)
    weights = Weights("unused", False, "float32", 4096, 8)
    try:
        texts = []
        for version, folder in ((0, tiny), (1, other)):
            async with weights.seat("a", version, folder, 0) as (seat, _):
                texts.append((await seat.generate([user("Where?")], GREEDY)).text)
        assert texts[0] != texts[1]
    finally:
        await weights.aclose()


async def test_a_version_that_is_missing_is_an_error(tmp_path: Path, weights: Weights) -> None:
    with pytest.raises(ModelError):
        async with weights.seat("a", 1, tmp_path / "none", 0):
            pass


async def test_closed_weights_answer_nobody(adapters: list[Path], tiny: Path) -> None:
    weights = Weights(str(tiny), True, "float32", 4096, 8)
    async with weights.seat("a", 1, adapters[0], 0) as (seat, _):
        await weights.aclose()
        with pytest.raises(ModelError, match="closed"):
            await seat.generate([user("Where?")], GREEDY)
