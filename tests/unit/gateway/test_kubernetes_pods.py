"""What pods and a ledger say of processes, and what is done for those that shall be: examples, and
a cluster that does what clusters do in any order.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.kubernetes import pods
from gateway.kubernetes.ledger import Grant, Ledger, Place
from gateway.kubernetes.pods import End, Pod
from gateway.targets import NOT_YET, Process
from services.kit.discovery import Role
from tests.fixtures.kubernetes_objects import JOB, container, pod, processes

ZERO = (Role.TRAINER, 0)
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def ended(code: int, reason: str = "Error", message: str = "", signal: int = 0) -> dict[str, Any]:
    return {
        "terminated": {"exitCode": code, "reason": reason, "message": message, "signal": signal}
    }


def ledger(**grants: tuple[int, str]) -> Ledger:
    """`trainer_0=(incarnation, uid)`, …"""
    held = {
        (Role(role.replace("_", "-")), int(rank)): Grant(*grant)
        for (role, _, rank), grant in ((n.rpartition("_"), g) for n, g in grants.items())
    }
    return Ledger(JOB, fence=1, generation=1, grants=held, uid="l", version="1")


def seen(held: Ledger, *documents: dict[str, Any]) -> list[Process]:
    return pods.observe(held, 1, [pods.parse(d) for d in documents])


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ({"containerStatuses": container(RUNNING)}, None),
        ({"phase": "Pending"}, None),
        (
            {"containerStatuses": container(ended(2, message="no column C9"))},
            End(2, "no column C9"),
        ),
        ({"containerStatuses": container(ended(0, "Completed"))}, End(0, "")),
        # Kubernetes started it again: what counts is how the first run ended.
        ({"containerStatuses": container(RUNNING, ended(1), 1)}, End(1, "")),
        ({"containerStatuses": container(ended(143), ended(1), 1)}, End(1, "")),
        ({"containerStatuses": container(ended(137, "OOMKilled"))}, End(-9, "OOMKilled")),
        ({"containerStatuses": container(ended(143))}, End(-15, "")),
        ({"containerStatuses": container(ended(0, signal=6))}, End(-6, "")),
        (
            {"containerStatuses": container(RUNNING, restarts=3)},
            End(None, "its container was started again"),
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."},
            End(None, "Evicted: The node was low on memory."),
        ),
        ({"phase": "Succeeded"}, End(None, "its pod succeeded")),
    ],
)
def test_how_a_process_ended(status: dict[str, Any], end: End | None) -> None:
    assert pods.parse(pod(granted=0, **status)).end == end
    (process,) = seen(ledger(trainer_0=(0, "u0")), pod(granted=0, **status))
    if end is None:
        assert process.alive and process.exit_code is None
    else:
        assert process == Process(*ZERO, False, end.code, end.words)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"containerStatuses": container({"waiting": {"reason": "ContainerCreating"}})}, ""),
        (
            {
                "containerStatuses": container(
                    {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
                )
            },
            "ImagePullBackOff: no such image",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available",
                    }
                ],
            },
            "Unschedulable: 0/3 nodes are available",
        ),
        ({"conditions": [{"type": "PodScheduled", "status": "True"}]}, ""),
    ],
)
def test_why_a_process_does_not_run_yet(status: dict[str, Any], reason: str) -> None:
    (process,) = seen(ledger(trainer_0=(0, "u0")), pod(granted=0, **status))
    assert process == Process(*ZERO, True, waits_for=reason)


def test_a_pod_that_came_back_is_an_end_and_a_place_that_waits() -> None:
    held = ledger(trainer_0=(1, "u0"))
    assert seen(held, pod(uid="u1")) == [
        Process(*ZERO, True, incarnation=NOT_YET),
        Process(*ZERO, False, None, "its pod was deleted", 1),
    ]
    assert seen(held) == [Process(*ZERO, False, None, "its pod was deleted", 1)]


def test_a_process_that_is_asked_to_end_is_alive_until_its_pod_is_gone() -> None:
    (process,) = seen(ledger(trainer_0=(0, "u0")), pod(granted=0, deleting=True))
    assert process.alive


def test_a_grant_that_was_not_handed_over_is_no_process_but_must_be_stopped() -> None:
    assert seen(ledger(trainer_0=(0, "u0")), pod()) == [Process(*ZERO, True, incarnation=NOT_YET)]


def test_grants_of_another_generation_count_for_nothing() -> None:
    held = dataclasses.replace(ledger(trainer_0=(0, "u0")), generation=2)
    assert pods.observe(held, 1, []) == []
    assert seen(held, pod(generation=2)) == []


def test_pods_are_granted_once_and_then_left_alone() -> None:
    specs = [p for p in processes() if p.role == Role.TRAINER]
    there = [pods.parse(pod(rank=rank, uid=f"u{rank}")) for rank in (0, 1)]
    planned = pods.plan(ledger(), there, specs)
    assert planned.ledger.grants == {ZERO: Grant(0, "u0"), (Role.TRAINER, 1): Grant(0, "u1")}
    assert [(p.uid, i) for p, i in planned.deliver] == [("u0", 0), ("u1", 0)]
    again = pods.plan(planned.ledger, there, specs)  # died before it handed them over
    assert (again.ledger, again.deliver) == (planned.ledger, planned.deliver)
    have = [dataclasses.replace(p, granted=0) for p in there]
    done = pods.plan(planned.ledger, have, specs)
    assert (done.ledger, done.deliver, done.kill) == (planned.ledger, (), ())


def test_a_replacement_kills_the_pod_and_is_granted_its_successor() -> None:
    specs = [p for p in processes(incarnations=(0, 1)) if (p.role, p.rank) == (Role.TRAINER, 1)]
    held = ledger(trainer_1=(0, "u1"))
    lives = pods.parse(pod(rank=1, uid="u1", granted=0))
    planned = pods.plan(held, [lives], specs)
    assert (planned.ledger, planned.deliver, planned.kill) == (held, (), (lives,))
    came = pods.parse(pod(rank=1, uid="u2"))
    planned = pods.plan(held, [came], specs)
    assert planned.ledger.grants == {(Role.TRAINER, 1): Grant(1, "u2")}
    assert planned.deliver == ((came, 1),) and planned.kill == ()


@pytest.mark.parametrize(
    "spoilt",
    [
        pod(uid="u0"),  # was promised incarnation 0; who promised may still hand it over
        pod(uid="u1", granted=0),
        pod(uid="u1", deleting=True),
        pod(uid="u1", containerStatuses=container(RUNNING, ended(1), 1)),
        pod(uid="u1", phase="Failed"),
    ],
)
def test_only_an_untouched_pod_is_granted_a_later_incarnation(spoilt: dict[str, Any]) -> None:
    held = ledger(trainer_0=(0, "u0"))
    specs = [p for p in processes(incarnations=(1, 0)) if (p.role, p.rank) == ZERO]
    planned = pods.plan(held, [pods.parse(spoilt)], specs)
    assert planned.ledger == held and not planned.deliver
    assert [p.uid for p in planned.kill] == [spoilt["metadata"]["uid"]]


def test_an_old_wish_changes_nothing() -> None:
    held = ledger(trainer_0=(2, "u0"))
    specs = [p for p in processes(incarnations=(1, 0)) if (p.role, p.rank) == ZERO]
    planned = pods.plan(held, [pods.parse(pod(granted=2))], specs)
    assert (planned.ledger, planned.deliver, planned.kill) == (held, (), ())


# ---- a cluster in which anything happens at any time


class Cluster:
    """Pods of a job's places, a ledger, and a gateway that may die between any two writes."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places
        self.pods: dict[Place, Pod] = {}
        self.ledger = Ledger(JOB, 1, 1, uid="l", version="1")
        self.wanted = dict.fromkeys(places, 0)
        self.begun: dict[tuple[Place, int], set[str]] = defaultdict(set)  # uids that ran it
        self.ran: dict[str, set[int]] = defaultdict(set)  # uid -> incarnations it ran
        self._made = 0

    def bring_back(self, place: Place) -> None:
        """What a StatefulSet does."""
        if place not in self.pods:
            self._made += 1
            name = f"em-{JOB}-1-{place[0]}-{place[1]}"
            self.pods[place] = Pod(name, f"u{self._made}", "1", 1, place[0])

    def delete(self, place: Place) -> None:
        self.pods.pop(place, None)

    def die(self, place: Place) -> None:
        if place in self.pods:
            self.pods[place] = dataclasses.replace(self.pods[place], end=End(1, ""), again=True)

    def replace(self, place: Place) -> None:
        self.wanted[place] += 1

    def start(self, writes: int) -> None:
        """The target's `start`, cut short after so many writes."""
        specs = [
            dataclasses.replace(p, incarnation=self.wanted[p.role, p.rank])
            for p in processes(trainers=3)
            if (p.role, p.rank) in self.wanted
        ]
        plan = pods.plan(self.ledger, self.pods.values(), specs)
        if plan.ledger != self.ledger:
            if writes == 0:
                return
            self.ledger, writes = plan.ledger, writes - 1
        for given_to, incarnation in plan.deliver[: max(0, writes)]:
            place = given_to.place
            assert self.pods[place].granted is None
            self.pods[place] = dataclasses.replace(given_to, granted=incarnation)
            if given_to.end is None:
                self.begun[place, incarnation].add(given_to.uid)
                self.ran[given_to.uid].add(incarnation)
        for spoilt in plan.kill[: max(0, writes - len(plan.deliver))]:
            self.delete(spoilt.place)

    def shown(self) -> dict[Place, int]:
        """Of each place the incarnation that `observe` shows alive."""
        seen = pods.observe(self.ledger, 1, self.pods.values())
        return {
            (p.role, p.rank): p.incarnation for p in seen if p.alive and p.incarnation != NOT_YET
        }


PLACES: list[Place] = [(Role.TRAINER, 0), (Role.TRAINER, 1), (Role.TRAINER, 2)]
EVENTS = st.one_of(
    st.tuples(st.sampled_from(["bring_back", "delete", "die", "replace"]), st.sampled_from(PLACES)),
    st.tuples(st.just("start"), st.integers(0, 5)),
)


@settings(max_examples=200)
@given(st.lists(EVENTS, max_size=40))
def test_no_incarnation_begins_twice_and_in_the_end_all_run(events: list[tuple[str, Any]]) -> None:
    cluster = Cluster(PLACES)
    for name, argument in events:
        getattr(cluster, name)(argument)
        assert all(len(uids) == 1 for uids in cluster.begun.values())
        assert all(len(incarnations) == 1 for incarnations in cluster.ran.values())
    # The reconciler asks for the next incarnation of what ended, and the storm is over.
    for place in PLACES:
        cluster.replace(place)
    for _ in range(3):
        for place in PLACES:
            cluster.bring_back(place)
        cluster.start(writes=99)
    assert cluster.shown() == cluster.wanted
    before = cluster.ledger, dict(cluster.pods)
    cluster.start(writes=99)
    assert (cluster.ledger, cluster.pods) == before
