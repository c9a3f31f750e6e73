"""A gateway scales a job's shards by what their processes say: real Redis, real API, fake
processes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from services.kit.discovery import Role
from tests.integration.gateway_harness import Harness, running_gateway, wait_for


def say(harness: Harness, job: str, generation: int, shards: int, memory: float) -> None:
    for rank in range(shards):
        status = {"memory_share": memory, "cpu_share": 0.1}
        harness.target.report(job, generation, Role.SPARSE_PS, rank, status=status)


@pytest.mark.usefixtures("redis_db")
def test_full_shards_become_more_by_a_checkpoint_and_a_restart(
    redis_url: str, tmp_path: Path
) -> None:
    autoscale = {"sparse_ps": {"min": 2, "max": 3}, "window": "1s", "cooldown": "1h"}
    with running_gateway(redis_url, tmp_path) as harness:
        job = harness.submit(autoscale=autoscale)
        harness.wait(job, "running")
        say(harness, job, 1, 2, memory=0.95)
        view = harness.wait(job, "running", generation=2)
        resources = view.spec["resources"]
        assert (resources["sparse_ps"], resources["dense_ps"], resources["trainers"]) == (3, 1, 2)
        assert view.restarts == 0
        assert sum(m.role == "sparse-ps" for m in view.members) == 3
        assert harness.gateway.registry.run(job).restore.endswith("/000001/manifest.json")
        events = harness.http.get(f"/v1/jobs/{job}/events").json()["events"]
        assert [e["message"] for e in events if e["kind"] == "autoscale"] == [
            "sparse-ps 2 -> 3: memory of the fullest shard 95% of its limit; "
            "by a checkpoint and a restart from it"
        ]
        say(harness, job, 2, 3, memory=0.1)

        def shown() -> bool:
            text = harness.http.get("/metrics").text
            return (
                f'embermesh_autoscale_wanted_replicas{{job="{job}",role="sparse-ps"}} 3.0' in text
            )

        wait_for(shown)
        assert harness.view(job).generation == 2, "the cool-down holds"
