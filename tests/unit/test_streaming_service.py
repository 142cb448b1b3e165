"""The service that learns: answers with a version, feedback at any time, updates behind the answers' back, restarts."""

from __future__ import annotations

import asyncio
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from mia.errors import DataError, ModelError
from mia.types import Question
from tests import tiny_models
from tests.streaming import opened, running
from ttrl_streaming.records import Ask
from ttrl_streaming.schema import AskRequest, EpisodeItem, FeedbackItem
from ttrl_streaming.store import Store
from ttrl_streaming.trainer import Play, Step

pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.chat_llama(tmp_path_factory.mktemp("model"), positions=4096)


async def asked(core: Any, count: int, start: int = 0, **more: Any) -> list[Any]:
    return [
        await core.ask(AskRequest(question=f"Is {n} lucky?", id=f"q{n}", **more)) for n in range(start, start + count)
    ]


def rewards(answers: list[Any], right: str = "yes") -> list[FeedbackItem]:
    """Whether the answer is the right one, as rewards."""
    return [FeedbackItem(id=each.id, reward=float(each.answer == right)) for each in answers]


def steps(service: Any) -> list[Step]:
    return [command for command in service.learning.trainer.commands if isinstance(command, Step)]


async def test_feedback_makes_updates_and_later_answers_say_so(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, streaming__memory=False) as (service, client):
        answers = await asked(client, 8)
        assert {each.version for each in answers} == {0}
        assert {each.answer for each in answers} == {"yes", "no"}
        taken = await client.feedback(rewards(answers))
        assert [each.outcome for each in taken] == ["queued"] * 8
        flushed = await client.flush()
        status = await client.status()
        assert flushed.queued == 0
        assert status.version == status.updates == flushed.version == 2
        assert status.feedback["learned"] == 8
        (again,) = await asked(client, 1, 100)
        assert again.version == 2
        assert [point.version for point in (await client.curve()).points] == [1, 2]
        assert service.answerer.weights.loaded == [("default", 2)]


async def test_a_reference_makes_a_group_and_other_feedback_is_held_against_earlier_rewards(
    tiny: Path, tmp_path: Path
) -> None:
    async with running(tiny, tmp_path, streaming__memory=False, streaming__batch=8) as (service, client):
        answers = await asked(client, 5)
        told = [*rewards(answers[:4]), FeedbackItem(id="q4", label="yes")]
        await client.feedback(told)
        await client.flush()
        (step,) = steps(service)
        assert [len(group) for group in step.groups] == [1, 1, 1, 1, 3]
        official = service.store.ask("q4").rolled
        assert step.groups[4][0].tokens == official.tokens
        (play,) = [command for command in service.learning.trainer.commands if isinstance(command, Play)]
        assert [row.example.question.id for row in play.rows] == ["q4", "q4"]
        assert "(withheld)" in str(play.rows[0].example.reference)
        # 0.9 score + 0.1 format; the random Planner's verdicts cannot be read, so that its format is 0
        assert [group[0] for group in step.rewards[:4]] == [0.9 * float(each.answer == "yes") for each in answers[:4]]
        expected = [0.9 * float(rolled.run.answer == "yes") for rolled in step.groups[4] if rolled.run]
        assert list(step.rewards[4]) == expected
        known = [group[0] for group in step.rewards if group[0] is not None]
        assert step.baselines[4] is None
        for base in step.baselines[:4]:
            assert base is not None
            assert base.mean == pytest.approx(statistics.fmean(known))
            assert base.deviation == pytest.approx(statistics.stdev(known))


async def test_late_feedback_is_weighted_and_too_late_feedback_goes_to_memory_only(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, streaming__staleness=1) as (service, client):
        late = await asked(client, 8)
        for start in (10, 20):
            await client.feedback(rewards(await asked(client, 4, start)))
            await client.flush()
        assert (await client.status()).version == 2
        one_behind = await asked(client, 4, 30)
        await client.feedback(rewards(await asked(client, 4, 40)))
        await client.flush()
        await client.feedback(rewards([*late, *one_behind]))
        await client.flush()
        status = await client.status()
        last = steps(service)[-1]
        assert [group[0].version for group in last.groups] == [2] * 4
        assert last.folder.name == "000003"
        assert status.reasons == {"stale": 8}
        assert (status.feedback["learned"], status.feedback["remembered"], status.version) == (16, 8, 4)
        told = await service.learning.remembering.memory("default").list(100)
        assert {memory.trajectory_id for memory in told} <= {f"q{n}" for n in range(50)}
        assert len(told) >= 1


async def test_said_twice_changed_unknown_and_contradicted(tiny: Path, tmp_path: Path) -> None:
    """What was said last counts until the weights have learned from it; then only memory is changed, and it says so."""
    async with running(tiny, tmp_path, streaming__batch=100) as (service, client):
        answers = await asked(client, 4)
        first = FeedbackItem(id="q0", reward=1.0)
        told = [first, first, FeedbackItem(id="q0", reward=0.0), FeedbackItem(id="q0", label="no"),
                FeedbackItem(id="nope", reward=1.0)]  # fmt: skip
        taken = await client.feedback(told)
        assert [each.outcome for each in taken] == ["queued", "known", "replaced", "replaced", None]
        assert taken[-1].error.code == "not_found"
        await client.feedback(rewards(answers[1:]))
        await client.flush()
        memory = service.learning.remembering.memory("default")
        before = {m.trajectory_id: m.outcome for m in await memory.list(100)}
        changed = [FeedbackItem(id=each.id, reward=float(each.answer != "yes")) for each in answers[1:]]
        taken = await client.feedback(changed)
        assert {each.outcome for each in taken} <= {"remembered", None}
        assert all(each.outcome or each.error.code == "contradicted" for each in taken)
        assert [each.outcome for each in await client.feedback(changed)].count("known") == sum(
            each.outcome == "remembered" for each in taken
        )
        version = (await client.status()).version
        await client.flush()
        after = {m.trajectory_id: m.outcome for m in await memory.list(100)}
        turned = {each.id for each in taken if each.outcome == "remembered"}
        assert turned
        assert all((before[name] != after[name]) == (name in turned) for name in before)
        status = await client.status()
        assert status.version == version
        counted = status.feedback
        assert counted["received"] == sum(value for name, value in counted.items() if name != "received")
        assert (counted["unknown"], counted["replaced"]) == (1, 2)
        assert counted["contradicted"] == 3 + sum(each.outcome is None for each in taken)


async def test_ten_thousand_at_once(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, streaming__memory=False) as (service, client):
        await asked(client, 2)
        assert service.healthy
        taken = await client.feedback([FeedbackItem(id=f"q{n}", reward=1.0) for n in range(10_000)])
        assert [each.outcome for each in taken[:2]] == ["queued"] * 2
        assert {each.error.code for each in taken[2:]} == {"not_found"}
        status = await client.status()
        assert status.feedback["received"] == 10_000
        assert status.feedback["unknown"] == 9_998
        with pytest.raises(DataError, match="1 to 10000"):
            await service_post(client, {"items": [{"id": "q0", "reward": 1}] * 10_001})


async def service_post(client: Any, body: Any) -> Any:
    """A raw request."""
    from ttrl_streaming.schema import FeedbackAnswer

    class Raw:
        def model_dump_json(self) -> str:
            return json.dumps(body)

    return await client._service.call("POST", "/v1/feedback", FeedbackAnswer, Raw())


@pytest.mark.parametrize(
    "body",
    [{"id": "q0"}, {"id": "q0", "reward": "NaN"}, {"id": "q0", "reward": 1e9}, {"id": "q0", "reward": True},
     {"id": "q0", "reward": 1, "label": "right"}, {"id": "q0", "label": ""}, {"id": "q0", "label": []},
     {"id": "q0", "mark": 1}, {"reward": 1}, {"id": "../q0", "reward": 1}, {"id": "q0", "correction": " "}],
)  # fmt: skip
async def test_malformed_feedback_is_refused_and_counted(tmp_path: Path, body: Any) -> None:
    from ttrl_streaming.app import _given

    service = opened(tmp_path, tmp_path / "out", streaming__memory=False)
    try:
        (taken,) = await _given(service, [body])
        assert taken.error is not None
        assert taken.error.code == "bad_request"
        assert (await service.status()).feedback["malformed"] == 1
    finally:
        await service.aclose()


async def test_the_same_question_is_answered_once(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, streaming__memory=False) as (_, client):
        request = AskRequest(question="Is it lucky?", id="mine")
        both = await asyncio.gather(client.ask(request), client.ask(request))
        assert both[0] == both[1] == await client.ask(request)
        with pytest.raises(DataError, match="another question"):
            await client.ask(AskRequest(question="Another?", id="mine"))
        assert (await client.status()).asked == 1


async def test_answers_go_on_while_an_update_runs(tiny: Path, tmp_path: Path) -> None:
    """The trainer is held up in the middle of a step; questions are answered by the old version meanwhile."""
    async with running(tiny, tmp_path, streaming__memory=False) as (service, client):
        answers = await asked(client, 4)
        trainer = service.learning.trainer
        trainer.held.clear()
        await client.feedback(rewards(answers))
        await trainer.going.wait()
        assert {each.version for each in await asked(client, 3, 50)} == {0}
        assert (await client.status()).feedback["queued"] == 4
        contradicted = FeedbackItem(id="q0", reward=-1.0)
        assert (await client.feedback([contradicted]))[0].error.code == "contradicted"
        trainer.held.set()
        await client.flush()
        assert (await asked(client, 1, 60))[0].version == 1


async def test_a_seed_gives_the_same_answer_and_an_answer_keeps_its_version(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, streaming__memory=False) as (service, client):
        one = await client.ask(AskRequest(question="Is it lucky?", seed=7))
        two = await client.ask(AskRequest(question="Is it lucky?", seed=7))
        assert (one.plan, one.answer) == (two.plan, two.answer)
        assert one.id != two.id
        tokens = [service.store.ask(each.id).rolled.tokens for each in (one, two)]
        assert tokens[0].completion_ids == tokens[1].completion_ids
        assert tokens[0].logprobs == pytest.approx(tokens[1].logprobs, abs=1e-4)


async def test_rollback_brings_back_the_same_answers(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, streaming__memory=False) as (_, client):
        fixed = [AskRequest(question=f"Is {n} lucky?", seed=n) for n in range(6)]
        answers = await asked(client, 4)
        await client.feedback(rewards(answers))
        await client.flush()
        before = [await client.ask(each) for each in fixed]
        await client.feedback(rewards(await asked(client, 8, 20)))
        await client.flush()
        between = [await client.ask(each) for each in fixed]
        assert [each.plan for each in before] != [each.plan for each in between]
        back = await client.rollback(version=1)
        assert back.version == (await client.status()).version == 1
        after = [await client.ask(each) for each in fixed]
        assert [(each.plan, each.answer, each.version) for each in after] == [
            (each.plan, each.answer, each.version) for each in before
        ]
        await client.feedback(rewards(await asked(client, 4, 40)))
        await client.flush()
        assert (await client.status()).version == 4  # numbers are not given twice
        assert (await client.curve()).points[-1].parent == 1
        with pytest.raises(DataError, match="no version"):
            await client.rollback(version=9)


async def test_checkpoints_are_whole_and_made_once(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path) as (_, client):
        first = await client.checkpoint()
        assert (first.version, first.name) == (0, "checkpoints/default-000000")
        assert first == await client.checkpoint()
        place = tmp_path / first.name
        assert (place / "adapter_model.safetensors").is_file()
        assert (place / "memory.db").is_file()


async def test_namespaces_are_kept_apart(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path) as (service, client):
        fixed = AskRequest(question="Is it lucky?", seed=3, namespace="other")
        before = await client.ask(fixed)
        await client.feedback(rewards(await asked(client, 4)))
        await client.flush()
        after = await client.ask(fixed)
        assert (after.version, after.plan) == (0, before.plan)
        assert (await client.status()).version == 1
        assert (await client.status("other")).asked == 2
        assert await service.learning.remembering.memory("other").list(10) == []
        others = [
            await client.ask(AskRequest(question=f"{n}?", id=f"o{n}", namespace="other", seed=n)) for n in range(4)
        ]
        await client.feedback(rewards(others, "no"))
        await client.flush("other")
        assert steps(service)[-1].folder == tmp_path / "versions" / "start"
        assert (await client.status("other")).version == 1


async def test_a_restart_loses_nothing(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, streaming__memory=False) as (service, client):
        answers = await asked(client, 8)
        await client.feedback(rewards(answers[:4]))
        await client.flush()
        await client.feedback(rewards(answers[4:7]))
        fixed = await client.ask(AskRequest(question="Is it lucky?", seed=3))
        version = (await client.status()).version
    async with running(tiny, tmp_path, streaming__memory=False) as (service, client):
        status = await client.status()
        assert (status.version, status.answered, status.feedback["queued"]) == (version, 9, 3)
        again = await client.ask(AskRequest(question="Is it lucky?", seed=3))
        assert (again.plan, again.version) == (fixed.plan, version)
        await client.feedback(rewards(answers[7:]))
        await client.flush()
        assert (await client.status()).version == version + 1
        assert steps(service)[0].folder.name == f"{version:06d}"


async def test_what_was_being_answered_is_answered_again_after_a_restart(tmp_path: Path, tiny: Path) -> None:
    store = Store(tmp_path / "queue.db")
    question = Question(id="cut", text="Is it lucky?")
    assert store.begin(Ask(id="cut", namespace="default", question=question, seed=1)) is None
    assert store.take([FeedbackItem(id="cut", reward=1.0)]) == ["unanswered"]
    store.close()
    async with running(tiny, tmp_path, streaming__memory=False) as (_, client):
        assert (await client.status()).failed == 1
        answer = await client.ask(AskRequest(question="Is it lucky?", id="cut"))
        assert answer.answer in ("yes", "no")
        assert (await client.status()).failed == 0


async def test_a_trainer_that_fails_loses_no_feedback(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, streaming__memory=False) as (service, client):
        answers = await asked(client, 4)
        service.learning.trainer.failing = ModelError("out of memory", code="trainer")
        await client.feedback(rewards(answers))
        with pytest.raises(ModelError, match="out of memory"):
            await client.flush()
        status = await client.status()
        assert (status.feedback["queued"], status.last_failure.code) == (4, "trainer")
        service.learning.trainer.failing = None
        await client.flush()
        assert (await client.status()).feedback["learned"] == 4


async def test_without_learning_feedback_is_remembered(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, streaming__learn=False) as (service, client):
        await client.feedback(rewards(await asked(client, 4)))
        await client.flush()
        status = await client.status()
        assert status.version == 0
        assert steps(service) == []
        assert status.feedback["remembered"] + status.feedback["refused"] == 4
        assert status.reasons == {"learning_off": 4}


async def test_old_batches_are_learned_without_a_flush(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, streaming__memory=False, streaming__partial_s=0.05) as (service, client):
        answers = await asked(client, 3)
        await client.feedback(rewards(answers, right=answers[0].answer))
        async with asyncio.timeout(120):
            while (await client.status()).feedback["queued"]:
                pass
        assert len(steps(service)) == 1


async def test_words_are_read_by_the_judge(tiny: Path, tmp_path: Path) -> None:
    def judge(first: str, last: str) -> str:
        words = first.partition("said next: ")[2]
        verdict = "right" if words.startswith("thanks") else "wrong" if words.startswith("no,") else "unclear"
        return json.dumps({"reason": "It says so.", "verdict": verdict, "answer": ""})

    async with running(tiny, tmp_path, judge=judge, streaming__memory=False) as (service, client):
        answers = await asked(client, 3)
        words = ["thanks", "no, it is not", "what is the weather?"]
        said = [FeedbackItem(id=each.id, correction=text) for each, text in zip(answers, words, strict=True)]
        await client.feedback(said)
        await client.flush()
        (step,) = steps(service)
        assert step.rewards == ((0.9,), (0.0,))
        assert (await client.status()).reasons == {"no_reward": 1}


async def test_conversations_of_others_are_learned_from_by_what_the_user_said(tiny: Path, tmp_path: Path) -> None:
    def judge(first: str, last: str) -> str:
        words = first.partition("said next: ")[2]
        verdict = "right" if words.startswith("thanks") else "wrong" if words.startswith("It is no.") else "unclear"
        return json.dumps({"reason": "It says so.", "verdict": verdict, "answer": "no" if verdict == "wrong" else ""})

    async with running(tiny, tmp_path, judge=judge, streaming__batch=8, streaming__n=4) as (service, client):
        episodes = [
            EpisodeItem(id="c0", question="Is 0 lucky?", answer="yes", said="thanks"),
            EpisodeItem(id="c1", question="Is 1 lucky?", answer="yes", said="It is no."),
            EpisodeItem(id="c2", question="Is 2 lucky?", answer="yes", said="And the weather?"),
        ]
        assert [each.outcome for each in await client.episodes(episodes, "ann")] == ["queued"] * 3
        assert [each.outcome for each in await client.episodes(episodes, "ann")] == ["known"] * 3
        await client.flush("ann")
        (step,) = steps(service)
        assert [len(group) for group in step.groups] == [4, 4]
        for group, given, right in zip(step.groups, step.rewards, ("yes", "no"), strict=True):
            assert list(given) == [0.9 * float(rolled.run.answer == right) for rolled in group if rolled.run]
        status = await client.status("ann")
        assert status.reasons.get("unclear") == 1
        assert status.version <= 1


async def test_nothing_is_learned_from_equal_rewards(tiny: Path, tmp_path: Path) -> None:
    async with running(tiny, tmp_path, streaming__memory=False) as (_, client):
        answers = await asked(client, 4)
        await client.feedback([FeedbackItem(id=each.id, reward=1.0) for each in answers])
        await client.flush()
        status = await client.status()
        assert (status.version, status.feedback["refused"], status.reasons) == (0, 4, {"no_difference": 4})
