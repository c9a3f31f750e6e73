"""A job whose shards are in its trainers: same result as with remote ones, and back and forth."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from embermesh.client import Client
from services.api.views import JobState, JobView, MemberView
from services.kit.discovery import Role

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
Make = Callable[..., dict[str, Any]]
EMBEDDED = {"placement": "embedded", "trainers": 2}


def finished(client: Client, job: JobView) -> JobView:
    done = client.wait(job.id, 120)
    assert done.state == JobState.SUCCEEDED, done.error
    assert done.result is not None and done.result.auc is not None
    return done


def auc(job: JobView) -> float:
    assert job.result is not None and job.result.auc is not None
    return job.result.auc


def standing_by(member: MemberView) -> float:
    """Bytes of memory for new rows of the process's shard."""
    page = httpx.get(f"http://{member.metrics_address}/metrics", timeout=5, trust_env=False).text
    found = re.search(r"^embermesh_sparse_standby_bytes (\S+)$", page, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_placement_changes_neither_result_nor_checkpoints(
    client: Client, synthetic_job: Make
) -> None:
    """In mode sync the bits are the same; each checkpoint then starts the other kind of job."""
    options: dict[str, Any] = {"rows": 4_000, "training": {"mode": "sync"}}
    jobs = [
        client.submit(synthetic_job(**options)),
        client.submit(synthetic_job(**options, resources=EMBEDDED)),
    ]
    remote, embedded = (finished(client, job) for job in jobs)
    assert auc(embedded) == auc(remote)
    assert embedded.checkpoint is not None and remote.checkpoint is not None
    assert embedded.checkpoint.rows == remote.checkpoint.rows > 1_000

    client.restore(embedded.id, placement="remote", sparse_ps=3, trainers=1)
    client.restore(remote.id, placement="embedded", trainers=3)
    for job in jobs:
        again = finished(client, client.get(job.id))
        assert again.generation == 2
        assert auc(again) == pytest.approx(auc(remote), abs=1e-6)
        assert again.progress.rows == remote.checkpoint.rows
        assert again.progress.samples == 4_000, "nothing may be trained twice"


@pytest.mark.slow
def test_trainers_with_shards_scale_and_keep_their_rows(
    client: Client, synthetic_job: Make, wait_samples: Callable[[str, int], JobView]
) -> None:
    job = client.submit(synthetic_job(rows=60_000, training={"mode": "hybrid"}, resources=EMBEDDED))
    before = wait_samples(job.id, 5_000)
    roles = sorted(str(m.role) for m in before.members)
    assert roles == sorted(map(str, [Role.DENSE_PS, *[Role.SPARSE_PS, Role.TRAINER] * 2]))
    for member in before.members:
        if member.role == Role.TRAINER:
            assert standing_by(member) > 0
    client.scale(job.id, trainers=1)
    done = finished(client, client.get(job.id))
    assert done.generation == before.generation + 1
    assert done.progress.samples == 60_000
    assert done.spec["resources"]["sparse_ps"] == 1
