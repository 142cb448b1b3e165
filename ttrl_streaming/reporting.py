"""What the service tells of itself: counters that add up, the learning curve, alarms of drift and collapse."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from executor_train.reward import planner_format
from ttrl_streaming.config import AlarmConfig
from ttrl_streaming.schema import Alarm, Curve, Point, Status
from ttrl_streaming.store import Store

if TYPE_CHECKING:
    from ttrl_streaming.learning import Learning

_COUNTED = ("known", "replaced", "contradicted", "unknown", "malformed")


def status_of(store: Store, learning: Learning, namespace: str, working: int) -> Status:
    """The status of a namespace."""
    asks, told, reasons, kept = store.counts(namespace)
    feedback = {state: told.get(state, 0) for state in ("learned", "remembered", "refused")}
    feedback["queued"] = told.get("waiting", 0) + told.get("scored", 0)
    feedback |= {name: kept.get(name, 0) for name in _COUNTED}
    updates = store.updates(namespace)
    return Status(
        namespace=namespace,
        version=store.version(namespace),
        asked=sum(count for state, count in asks.items() if state != "elsewhere"),
        answered=asks.get("answered", 0),
        failed=asks.get("failed", 0),
        working=working,
        feedback={"received": sum(feedback.values()), **feedback},
        reasons=reasons,
        held_back=len(store.held(namespace)),
        updates=sum(version is not None for _, _, _, version, _ in updates),
        refused_updates=sum(version is None for _, _, _, version, _ in updates),
        trainer=learning.trainer.state,
        last_gate=updates[-1][4].gate if updates else None,
        last_failure=learning.last_failure,
        alarms=alarms_of(store, learning.settings.alarms, namespace, learning.settings.window),
    )


def alarms_of(store: Store, bounds: AlarmConfig, namespace: str, window: int) -> tuple[Alarm, ...]:
    """What a person should look at. `drift` needs two windows of answers with a reward, each of 8 at least."""
    found = []
    rewards = store.rewards(namespace, 2 * window)
    half = min(window, len(rewards) // 2)
    if half >= 8:
        loss = statistics.fmean(rewards[half : 2 * half]) - statistics.fmean(rewards[:half])
        if loss > bounds.drift:
            found.append(Alarm(kind="drift", value=loss, bound=bounds.drift))
    updates = store.updates(namespace)
    entropy = updates[-1][4].update.metrics.get("entropy") if updates else None
    if entropy is not None and entropy < bounds.entropy:
        found.append(Alarm(kind="entropy", value=entropy, bound=bounds.entropy))
    runs = [ask.rolled.run for ask, _ in store.recent(namespace, window) if ask.rolled is not None and ask.rolled.run]
    if len(runs) >= 8:
        share = 1 - statistics.fmean(planner_format(run) for run in runs)
        if share > bounds.malformed:
            found.append(Alarm(kind="malformed", value=share, bound=bounds.malformed))
    return tuple(found)


def curve_of(store: Store, namespace: str) -> Curve:
    """All updates of a namespace."""
    points = [
        Point(
            number=place, at=at, parent=parent, version=version, questions=step.questions,
            trained=step.update.trained, reward=step.update.reward, answered=step.answered, loss=step.update.loss,
            gradient=step.update.gradient, entropy=step.update.metrics.get("entropy"), gate=step.gate,
        )
        for place, (_, at, parent, version, step) in enumerate(store.updates(namespace), 1)
    ]  # fmt: skip
    return Curve(points=tuple(points))
