"""The autoscaler's memory, words and metrics around the policy, and how the reconciler changes the
number of shards.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import prometheus_client
import pytest

from gateway import commands
from gateway.autoscaler import Autoscaler
from gateway.checkpoints import Call
from gateway.metrics import AutoscaleMetrics
from gateway.reconciler import SCALE, Limits, Seen, step
from gateway.record import JobRecord
from gateway.targets import Process
from services.api import spec as jobspec
from services.api.views import CheckpointView, JobState
from services.kit.discovery import Member, Phase, Role, Run
from services.kit.errors import InvalidInput

LIMITS = Limits(start=100.0, stop=10.0, silence=30.0, checkpoint=60.0)
AUTOSCALE = {
    "trainers": {"max": 4, "lag": 100},
    "sparse_ps": {"max": 4},
    "window": 30,
    "cooldown": 100,
}


def record(**changes: Any) -> JobRecord:
    spec = jobspec.validate(
        {
            "name": "a",
            "model": {"name": "lr"},
            "data": {"source": "synthetic://criteo"},
            "features": {"sparse": {"C1": {}}},
            "resources": {"sparse_ps": 1, "dense_ps": 1, "trainers": 1},
            "checkpoint": {"to": "file://c"},
            "autoscale": AUTOSCALE,
        }
    ).model_dump(mode="json")
    base = JobRecord("a-1", "a", spec, created=0.0, updated=0.0, since=0.0, generation=3)
    return dataclasses.replace(base, state=JobState.RUNNING, **changes)


def members(
    phase: Phase = Phase.READY, *, memory: float = 0.5, wait: float = 0.3
) -> tuple[Member, ...]:
    def of(role: Role, **status: float) -> Member:
        return Member("a-1", 3, role, 0, phase=phase, status=status)

    return (
        of(Role.SPARSE_PS, memory_share=memory, cpu_share=0.6),
        of(Role.DENSE_PS, memory_share=0.99),
        of(Role.TRAINER, wait_share=wait, lag=0.0),
    )


class Rig:
    """An autoscaler that looks once a second."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self.autoscaler = Autoscaler(AutoscaleMetrics(self.registry))
        self.now = 1_000.0
        self.said: list[str] = []

    def look(self, job: JobRecord, seconds: int, **status: Any) -> JobRecord:
        """The record after so many looks, or once something is asked for."""
        for _ in range(seconds):
            self.now += 1.0
            asked, said = self.autoscaler.consider(job, members(**status), self.now)
            self.said += [f"{emit.event}: {emit.message}" for emit in said]
            if asked is not job:
                return asked
        return job

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"embermesh_autoscale_{name}", labels)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_full_shard_asks_for_more_and_says_why(rig: Rig) -> None:
    asked = rig.look(record(), 40, memory=0.9)
    assert (asked.scale_to, asked.scale_sparse_to, asked.scale_at) == (None, 2, rig.now)
    assert 1_027 <= rig.now <= 1_031, "after a window"
    assert rig.said == [
        "autoscale: sparse-ps 1 -> 2: memory of the fullest shard 90% of its limit; "
        "by a checkpoint and a restart from it"
    ]
    labels = {"job": "a-1", "role": "sparse-ps"}
    assert rig.metric("wanted_replicas", **labels) == 2
    assert rig.metric("load", **labels) == pytest.approx(0.9 / 0.8)
    assert rig.metric("decisions_total", role="sparse-ps", direction="up") == 1
    assert rig.metric("decisions_total", role="trainer", direction="up") == 0
    assert rig.metric("wanted_replicas", job="a-1", role="trainer") == 1


def test_nothing_is_asked_while_a_change_is_under_way_or_cools_down(rig: Rig) -> None:
    for under_way in ({"scale_to": 2}, {"scale_sparse_to": 2}):
        assert rig.look(record(**under_way), 40, memory=0.9) == record(**under_way)
    recent = record(scale_at=rig.now)
    asked = rig.look(recent, 200, memory=0.9)
    assert asked.scale_sparse_to == 2
    assert rig.now - recent.scale_at == pytest.approx(100, abs=1.5)


def test_a_job_that_ends_or_is_not_running_is_left_alone(rig: Rig) -> None:
    rig.look(record(), 35, memory=0.5)
    assert rig.metric("wanted_replicas", job="a-1", role="sparse-ps") == 1
    done = record()
    assert rig.look(done, 40, memory=0.9, phase=Phase.DONE) is done
    assert rig.metric("wanted_replicas", job="a-1", role="sparse-ps") is None
    starting = dataclasses.replace(record(), state=JobState.STARTING)
    assert rig.look(starting, 40, memory=0.9) is starting
    plain = record()
    plain = dataclasses.replace(plain, spec={**plain.spec, "autoscale": None})
    assert rig.look(plain, 40, memory=0.9) is plain


def test_a_new_generation_or_leader_is_watched_for_a_whole_window_again(rig: Rig) -> None:
    rig.look(record(), 25, memory=0.9)
    following = record()
    following = dataclasses.replace(following, generation=4)
    assert rig.look(following, 20, memory=0.9) is following
    rig.autoscaler.reset()
    assert rig.look(following, 20, memory=0.9) is following
    assert rig.look(following, 20, memory=0.9).scale_sparse_to == 2


def test_jobs_that_are_gone_are_forgotten(rig: Rig) -> None:
    rig.look(record(), 35, memory=0.5)
    rig.autoscaler.keep_only({"a-1"})
    assert rig.metric("load", job="a-1", role="trainer") == pytest.approx(0.7)
    rig.autoscaler.keep_only({"b-1"})
    assert rig.metric("load", job="a-1", role="trainer") is None


# ---- the change itself


def test_shards_are_scaled_through_a_checkpoint_and_both_counts_at_once() -> None:
    asked = commands.scale(record(), 3, 1_990.0, sparse_ps=2)
    assert (asked.scale_to, asked.scale_sparse_to) == (3, 2)
    assert commands.scale(asked, 3, 1_995.0, sparse_ps=2) is asked
    run = Run(job="a-1", generation=3, spec={}, epoch=1, owners=[], active=True)
    processes = tuple(Process(m.role, 0, alive=True) for m in members())
    seen = Seen(run=run, processes=processes, members=members())
    (take,) = step(asked, seen, 2_000.0, LIMITS).actions
    assert getattr(take, "purpose", "") == f"{SCALE} 1990.0"
    taken = CheckpointView(id="000005", uri="file://c/a-1/000005/manifest.json", created=2.0)
    call = Call(3, f"{SCALE} 1990.0", began=2_000.0, ended=2_001.0, checkpoint=taken)
    result = step(asked, dataclasses.replace(seen, call=call), 2_001.0, LIMITS)
    resources = result.record.spec["resources"]
    assert (resources["sparse_ps"], resources["dense_ps"], resources["trainers"]) == (2, 1, 3)
    assert (result.record.scale_to, result.record.scale_sparse_to) == (None, None)
    assert result.record.restore == taken.uri
    assert getattr(result.actions[0], "message", "") == (
        "to 3 trainers, 2 sparse-PS and 1 dense-PS from checkpoint 000005"
    )


def test_what_ends_a_change_ends_both_of_its_counts() -> None:
    asked = commands.scale(record(), 3, 1_990.0, sparse_ps=2)
    back = commands.scale(asked, 1, 1_995.0, sparse_ps=1)
    cancelled = commands.cancel(asked, 2_000.0)
    for after in (back, cancelled):
        assert not after.scaling


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, "give trainers or sparse_ps"),
        ({"trainers": {"min": 3, "max": 2}}, "autoscale.trainers: min 3 is above max 2"),
        ({"trainers": {"max": 2}, "window": "0s"}, "autoscale.window"),
        ({"sparse_ps": {"max": 2, "memory": 1.5}}, "autoscale.sparse_ps.memory"),
    ],
)
def test_a_wrong_section_is_refused_by_name(section: dict[str, Any], words: str) -> None:
    document = {**record().spec, "autoscale": section}
    with pytest.raises(InvalidInput, match=words):
        jobspec.validate(document)
    with pytest.raises(InvalidInput, match="goes through a checkpoint"):
        jobspec.validate({**record().spec, "checkpoint": None})
