"""Two gateways over one real Redis and one real API server: one falls asleep in the middle of an
action, at any of its writes, and wakes up when the other leads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import redis
from kubernetes.client.exceptions import ApiException

from gateway import commands
from gateway import store as storing
from gateway.__main__ import assemble
from gateway.config import GatewayConfig
from gateway.record import new_record
from gateway.states import move
from gateway.targets.kubernetes import KubernetesTarget
from services.api.spec import validate
from services.api.views import JobState
from services.kit.discovery import Member, Phase, Registry, Role
from tests.fixtures.kubernetes_api import Kubelet, Namespace, wait_until
from tests.fixtures.kubernetes_objects import SPEC
from tests.integration.gateway_harness import OPEN

# The first test waits for the server to start: minutes on a busy machine.
pytestmark = pytest.mark.timeout(400)
LEASE = 0.5


class Gateway:
    """A reconciler that ticks when it is told, and may sleep before one of its writes."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        settings = GatewayConfig(
            redis_url=redis_url,
            target="kubernetes",
            state_dir=str(folder),
            tick_seconds=0.05,
            lease_seconds=LEASE,
        )
        registry = prometheus_client.CollectorRegistry()
        self.parts, self.reconciler = assemble(settings, registry, OPEN)
        assert isinstance(self.parts.target, KubernetesTarget)
        api = self.parts.target._api
        self._send, api._send = api._send, self._watched
        self.refuses: Exception | None = None  # what the server answers to everything
        self.sleep_before: int | None = None  # the write with this number
        self.writes: list[tuple[str, int]] = []  # method, and status if it was refused
        self.asleep, self.wake = threading.Event(), threading.Event()

    def _watched(self, method: str, *rest: Any) -> bytes:
        if self.refuses is not None:
            raise self.refuses
        if method == "GET":
            return self._send(method, *rest)
        if len(self.writes) == self.sleep_before:
            self.asleep.set()
            assert self.wake.wait(60)
        try:
            answer = self._send(method, *rest)
        except ApiException as error:
            self.writes.append((method, error.status))
            raise
        self.writes.append((method, 0))
        return answer

    def tick(self) -> None:
        self.reconciler.tick()

    def trouble(self, job: str) -> str:
        return self.reconciler._trouble.get(job, "")

    def close(self) -> None:
        self.wake.set()
        self.reconciler.close()
        self.parts.checkpoints.close()


@pytest.fixture
def gateways(
    kubernetes_namespace: Namespace, redis_db: redis.Redis, redis_url: str, tmp_path: Path
) -> Iterator[tuple[Gateway, Gateway]]:
    with ExitStack() as stack:
        pair = Gateway(redis_url, tmp_path), Gateway(redis_url, tmp_path)
        for gateway in pair:
            stack.callback(gateway.close)
        yield pair


def submit(redis_url: str) -> str:
    record = new_record(validate(SPEC), 0.0)
    storing.JobStore(storing.connect(redis_url)).create(record)
    return record.id


def state(redis_url: str, job: str) -> JobState:
    return storing.JobStore(storing.connect(redis_url)).get(job).state


class Life:
    """What goes on around the gateways: pods run, and their processes tell Redis so."""

    def __init__(self, redis_url: str, namespace: Namespace) -> None:
        self._registry = Registry(storing.connect(redis_url))
        self._namespace, self._kubelet = namespace, Kubelet(namespace)

    def go_on(self) -> None:
        self._kubelet.look()
        for pod in self._namespace.list("pods"):
            labels = pod["metadata"]["labels"]
            grant = pod["metadata"].get("annotations", {}).get("embermesh.io/incarnation")
            if grant is not None and "deletionTimestamp" not in pod["metadata"]:
                rank = int(pod["metadata"]["name"].rpartition("-")[2])
                generation = int(labels["embermesh.io/generation"])
                place = (labels["embermesh.io/job"], generation, Role(labels["embermesh.io/role"]))
                member = Member(*place, rank, phase=Phase.READY, incarnation=int(grant))
                self._registry.announce(member, lease_seconds=60)


def picture(namespace: Namespace) -> list[Any]:
    """Every object of jobs but for what controllers and the kubelet write in it."""
    return [
        (
            o["metadata"]["name"],
            o["metadata"]["uid"],
            o["metadata"].get("annotations"),
            o.get("data"),
        )
        for kind in ("configmaps", "services", "statefulsets", "pods")
        for o in namespace.list(kind)
    ]


# Writes of a start: the ledger, its generation, nine objects, the grants, then five pods.
@pytest.mark.parametrize("asleep_before", [0, 1, 2, 7, 11, 12, 14])
def test_a_gateway_that_slept_through_its_lease_changes_nothing(
    gateways: tuple[Gateway, Gateway],
    kubernetes_namespace: Namespace,
    redis_url: str,
    asleep_before: int,
) -> None:
    one, two = gateways
    job, life = submit(redis_url), Life(redis_url, kubernetes_namespace)
    one.sleep_before = asleep_before

    def act() -> None:
        while not one.asleep.is_set():
            one.tick()

    sleeper = threading.Thread(target=act)
    sleeper.start()
    wait_until(one.asleep.is_set, "the first gateway is at that write")
    assert one.reconciler.leads

    def running() -> bool:
        two.tick()
        life.go_on()
        return state(redis_url, job) == JobState.RUNNING

    wait_until(running, f"the second gateway has the job running: {two.trouble(job)}")
    assert two.reconciler.leads
    before = picture(kubernetes_namespace)
    one.wake.set()
    sleeper.join(60)
    assert not sleeper.is_alive()
    late = one.writes[asleep_before:]
    assert late and all(status in (404, 409) for _, status in late), late
    assert picture(kubernetes_namespace) == before
    assert state(redis_url, job) == JobState.RUNNING


def test_without_the_api_server_the_job_waits_and_goes_on_when_it_is_back(
    gateways: tuple[Gateway, Gateway], kubernetes_namespace: Namespace, redis_url: str
) -> None:
    one, _ = gateways
    job, life = submit(redis_url), Life(redis_url, kubernetes_namespace)
    monkey = one.parts.target._api  # type: ignore[attr-defined]
    monkey._seconds = 0.3
    one.refuses = ApiException(status=503, reason="Service Unavailable")
    for _ in range(4):
        one.tick()
    assert "Kubernetes: GET" in one.trouble(job) and "503" in one.trouble(job)
    assert state(redis_url, job) == JobState.STARTING
    one.refuses, monkey._seconds = None, 10.0

    def running() -> bool:
        one.tick()
        life.go_on()
        return state(redis_url, job) == JobState.RUNNING

    wait_until(running, f"the job runs: {one.trouble(job)}")
    one.refuses = ApiException(status=429, reason="Too Many Requests")
    monkey._seconds = 0.3
    one.tick()
    assert state(redis_url, job) == JobState.RUNNING  # what can't be seen has not ended
    one.refuses = None


def test_an_ended_job_leaves_nothing_in_the_namespace(
    gateways: tuple[Gateway, Gateway], kubernetes_namespace: Namespace, redis_url: str
) -> None:
    one, _ = gateways
    job, life = submit(redis_url), Life(redis_url, kubernetes_namespace)

    def reached(wanted: JobState) -> bool:
        one.tick()
        life.go_on()
        return state(redis_url, job) == wanted

    wait_until(lambda: reached(JobState.RUNNING), "the job runs")
    one.parts.store.update(job, lambda record: commands.cancel(record, 1.0))
    wait_until(lambda: reached(JobState.CANCELLED), "the job is cancelled")

    def gone() -> bool:
        one.tick()
        life.go_on()
        return picture(kubernetes_namespace) == []

    wait_until(gone, "nothing is left")


def test_a_paused_job_leaves_nothing_in_the_namespace_and_comes_back(
    gateways: tuple[Gateway, Gateway], kubernetes_namespace: Namespace, redis_url: str
) -> None:
    one, two = gateways
    job, life = submit(redis_url), Life(redis_url, kubernetes_namespace)

    def reached(gateway: Gateway, wanted: JobState) -> bool:
        gateway.tick()
        life.go_on()
        return state(redis_url, job) == wanted

    def gone() -> bool:
        one.tick()
        life.go_on()
        return picture(kubernetes_namespace) == []

    wait_until(lambda: reached(one, JobState.RUNNING), "the job runs")
    # As if the checkpoint were taken: this file has no service that takes one.
    paused = {"becomes": JobState.PAUSED, "restore": "file://c/000001/manifest.json"}
    one.parts.store.update(job, lambda record: move(record, JobState.STOPPING, 1.0, **paused))
    wait_until(lambda: reached(one, JobState.PAUSED), "the job is paused")
    wait_until(gone, "nothing is left of it")
    one.reconciler.close()
    two.parts.store.update(job, lambda record: commands.resume(record, 2.0))
    wait_until(lambda: reached(two, JobState.RUNNING), f"it runs again: {two.trouble(job)}")
    record = two.parts.store.get(job)
    assert (record.generation, record.restore) == (2, "file://c/000001/manifest.json")
    names = [pod["metadata"]["name"] for pod in kubernetes_namespace.list("pods")]
    assert len(names) == 5, names
