"""Watches jobs that ask for autoscaling and asks for other process counts on their behalf, as a
user's `:scale` would. What is wanted is decided in `gateway.autoscale`; here are its memory, its
metrics and its words.

The memory is this gateway's own: after a change of leader a reason must hold for a whole window
again. The cool-down is in the record, so it outlives every gateway. One thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from gateway import autoscale, commands
from gateway.actions import Emit
from gateway.autoscale import Observation, Wish
from gateway.metrics import AutoscaleMetrics
from gateway.record import JobRecord
from services.api.autoscale import Autoscale
from services.api.views import JobState
from services.kit.discovery import Member, Phase, Role

_LOOKS = 30  # observations in a window


class Autoscaler:
    """Of all jobs of one gateway."""

    def __init__(self, metrics: AutoscaleMetrics) -> None:
        self._metrics = metrics
        self._seen: dict[str, tuple[int, deque[Observation]]] = {}  # job -> generation, window

    def consider(
        self, record: JobRecord, members: Sequence[Member], now: float
    ) -> tuple[JobRecord, tuple[Emit, ...]]:
        """The record, with other process counts asked for if the policy wants them, and what to
        say about that.
        """
        policy = record.job_spec.autoscale if record.state == JobState.RUNNING else None
        if policy is None or self._settled(record, members):
            self._forget(record.id)
            return record, ()
        history = self._noted(record, policy, members, now)
        resources = record.job_spec.resources
        present = {Role.TRAINER: resources.trainers, Role.SPARSE_PS: resources.sparse_ps}
        wishes = autoscale.decide(policy, history, present, now, record.scale_at)
        changes = {role: w for role, w in wishes.items() if w.replicas != present[role]}
        for role, wish in wishes.items():
            self._metrics.show(record.id, str(role), wish.replicas, wish.load)
        if not changes:
            return record, ()
        for role, wish in changes.items():
            self._metrics.decided(str(role), up=wish.replicas > present[role])
        asked = commands.scale(
            record,
            _replicas(changes, Role.TRAINER),
            now,
            sparse_ps=_replicas(changes, Role.SPARSE_PS),
        )
        return asked, (Emit("autoscale", _words(changes, present)),)

    def keep_only(self, jobs: Collection[str]) -> None:
        """Forgets all other jobs."""
        for job in self._seen.keys() - set(jobs):
            self._forget(job)

    def reset(self) -> None:
        """Another gateway leads, or this one begins to: what was seen is no longer of use."""
        self.keep_only(())

    def _settled(self, record: JobRecord, members: Sequence[Member]) -> bool:
        """Whether a change is under way, or the job is about to end by itself."""
        return record.scaling or any(
            m.role == Role.TRAINER and m.phase == Phase.DONE for m in members
        )

    def _noted(
        self, record: JobRecord, policy: Autoscale, members: Sequence[Member], now: float
    ) -> deque[Observation]:
        generation, history = self._seen.get(record.id, (record.generation, deque()))
        if generation != record.generation:
            history = deque()
        self._seen[record.id] = record.generation, history
        while history and now - history[0].time > policy.window:
            history.popleft()
        if not history or now - history[-1].time >= policy.window / _LOOKS:
            history.append(autoscale.observe(members, now))
        return history

    def _forget(self, job: str) -> None:
        if self._seen.pop(job, None) is not None:
            self._metrics.hide(job)


def _replicas(changes: dict[Role, Wish], role: Role) -> int | None:
    return changes[role].replicas if role in changes else None


def _words(changes: dict[Role, Wish], present: dict[Role, int]) -> str:
    parts = [
        f"{role} {present[role]} -> {wish.replicas}: {wish.reason}"
        for role, wish in changes.items()
    ]
    return "; ".join(parts) + "; by a checkpoint and a restart from it"
