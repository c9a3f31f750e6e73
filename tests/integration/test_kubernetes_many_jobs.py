"""Two hundred jobs on one Kubernetes API: what a round over them costs, counted in requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
import pytest
import redis

from gateway import compile as compiling
from gateway.__main__ import assemble
from gateway.config import GatewayConfig
from gateway.kubernetes import ledger as ledgers
from gateway.kubernetes import names
from gateway.kubernetes.api import Api
from gateway.kubernetes.config import KubernetesConfig
from gateway.kubernetes.ledger import Grant, Ledger
from gateway.loop import Reconciler
from gateway.record import JobRecord, new_record
from gateway.targets.kubernetes import KubernetesTarget
from services.api import spec as jobspec
from services.api.views import JobState
from services.kit.discovery import Role
from tests.fakes.kubernetes_store import ObjectStore
from tests.integration.gateway_harness import OPEN, SPEC

JOBS = 200
STORE = ObjectStore()  # of the test that runs, for `store_target`
ROUND = {("GET", "configmaps, all"): 1, ("GET", "pods, all"): 1}


def store_target(settings: GatewayConfig) -> KubernetesTarget:
    """`create` of the target, for EMBERMESH_GATEWAY_TARGET."""
    api = Api(STORE.send, "jobs", seconds=0.3)
    return KubernetesTarget(api, KubernetesConfig(), settings.stop_seconds)


def put_pods(record: JobRecord) -> None:
    """The job's ledger and its pods, all running what they were granted."""
    places = compiling.expected(record.job_spec)
    grants = {place: Grant(0, f"{record.id}-{place}") for place in places}
    ledger = Ledger(record.id, 1, record.generation, grants)
    STORE.put("configmaps", ledgers.render(ledger, "embermesh"))
    for role, rank in places:
        meta = {
            "name": f"{names.role_name(record.id, record.generation, role)}-{rank}",
            "uid": grants[role, rank].uid,
            "labels": names.of_role("embermesh", record.id, record.generation, role),
            "annotations": {names.GRANT: "0"},
        }
        STORE.put("pods", {"metadata": meta, "status": {"phase": "Running"}})


@pytest.fixture
def running(redis_url: str, redis_db: redis.Redis, tmp_path: Path) -> Iterator[Reconciler]:
    STORE.objects.clear()
    STORE.refuses = 0
    settings = GatewayConfig(
        redis_url=redis_url, state_dir=str(tmp_path), target=f"{__name__}:store_target"
    )
    gateway, reconciler = assemble(settings, prometheus_client.CollectorRegistry(), OPEN)
    for _ in range(JOBS):
        record = new_record(jobspec.validate(SPEC), 1.0)
        record = dataclasses.replace(record, state=JobState.RUNNING, generation=1)
        gateway.store.create(record)
        gateway.registry.publish_run(compiling.make_run(record, record.job_spec))
        put_pods(record)
    assert not reconciler.tick()  # the first round sweeps, too
    STORE.requests.clear()
    yield reconciler
    reconciler.close()
    gateway.checkpoints.close()
    gateway.audit.close()


def states(reconciler: Reconciler) -> set[JobState]:
    return {record.state for record in reconciler._tools.store.active()}


def test_a_round_over_all_jobs_is_two_requests(running: Reconciler) -> None:
    for _ in range(3):
        assert not running.tick()
    assert {kind: count / 3 for kind, count in STORE.requests.items()} == ROUND
    assert states(running) == {JobState.RUNNING}


def test_a_pod_that_failed_is_seen_among_all(running: Reconciler) -> None:
    name = next(n for (plural, n) in STORE.objects if plural == "pods" and "-trainer-" in n)
    pod = STORE.objects["pods", name]
    ended = {"name": names.CONTAINER, "state": {"terminated": {"exitCode": 2, "message": "why"}}}
    pod["status"]["containerStatuses"] = [ended]
    STORE.logs[name] = "first\nwhy\n"
    assert running.tick()
    stopped = [r for r in running._tools.store.active() if r.state == JobState.STOPPING]
    assert [(r.id, r.becomes) for r in stopped] == [
        (pod["metadata"]["labels"][names.JOB], JobState.FAILED)
    ]
    assert "ended with exit code 2; its log ends:\nwhy" in stopped[0].error
    # Kept before the pod goes.
    kept, rank = running._tools.kept, names.rank_of(name)
    assert kept.find(stopped[0].id, 1, Role.TRAINER, rank, 9) == "first\nwhy\n"


def test_a_damaged_ledger_is_the_trouble_of_its_job_alone(running: Reconciler) -> None:
    name = next(n for (plural, n) in STORE.objects if plural == "configmaps")
    STORE.objects["configmaps", name]["data"] = {}
    assert not running.tick()
    job = STORE.objects["configmaps", name]["metadata"]["labels"][names.JOB]
    assert running._trouble.keys() == {job}
    assert "is no ledger of a job" in running._trouble[job]


def test_a_server_that_refuses_is_asked_once_for_all(running: Reconciler) -> None:
    STORE.refuses = 503
    assert not running.tick()
    assert 1 <= STORE.requests.total() <= 5, "tries of one request, not one for each job"
    assert len(running._trouble) == JOBS
    assert all("refused by the test" in why for why in running._trouble.values())
    STORE.refuses = 0
    STORE.requests.clear()
    assert not running.tick()
    assert (dict(STORE.requests), running._trouble) == (ROUND, {})
    assert states(running) == {JobState.RUNNING}
