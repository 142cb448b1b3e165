"""The service that learns: answers with a version, feedback at any time, updates behind the answers' back, restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import tiny_models
from tests.streaming import running
from ttrl_streaming.schema import AskRequest, FeedbackItem

pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.chat_llama(tmp_path_factory.mktemp("model"), positions=4096)


async def asked(core: Any, count: int, start: int = 0, **more: Any) -> list[Any]:
    return [
        await core.ask(AskRequest(question=f"Is {n} lucky?", id=f"q{n}", **more)) for n in range(start, start + count)
    ]


def said(answers: list[Any], right: str = "yes") -> list[FeedbackItem]:
    """Whether the answer is the right one, as rewards."""
    return [FeedbackItem(id=each.id, reward=float(each.answer == right)) for each in answers]


async def test_feedback_makes_an_update_and_later_answers_say_so(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, streaming__memory=False) as (service, client):
        answers = await asked(client, 8)
        assert {each.version for each in answers} == {0}
        assert {each.answer for each in answers} == {"yes", "no"}
        taken = await client.feedback(said(answers))
        assert [each.outcome for each in taken] == ["queued"] * 8
        flushed = await client.flush()
        status = await client.status()
        assert flushed.queued == 0
        assert status.version == status.updates == flushed.version >= 1
        assert status.feedback["learned"] + status.feedback["refused"] == 8
        assert status.feedback["learned"] >= 4
        (again,) = await asked(client, 1, 100)
        assert again.version == status.version
        points = (await client.curve()).points
        assert [point.version for point in points] == list(range(1, status.version + 1))
        assert service.answerer.weights.loaded == [("default", status.version)]
