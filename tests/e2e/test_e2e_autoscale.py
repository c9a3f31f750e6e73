"""A real job whose number of shards the gateway changes by itself; it keeps what it learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from embermesh.client import Client
from services.api.views import JobState, JobView
from tests.e2e.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_a_job_outside_its_bounds_is_scaled_and_goes_on(
    client: Client, synthetic_job: Callable[..., dict[str, Any]]
) -> None:
    spec = synthetic_job(
        rows=100_000_000,
        resources={"sparse_ps": 1, "trainers": 1},
        autoscale={"sparse_ps": {"min": 2, "max": 2}, "window": "3s"},
    )
    job = client.submit(spec)

    def scaled() -> JobView | None:
        view = client.get(job.id)
        assert not view.state.final, view.error
        there = view.generation == 2 and view.state == JobState.RUNNING
        return view if there and view.progress.rows > 0 else None

    view = until(scaled, seconds=120, what="the second generation")
    counts = {"placement": "remote", "sparse_ps": 2, "dense_ps": 1, "trainers": 1}
    assert counts.items() <= view.spec["resources"].items()
    assert view.restarts == 0
    (taken,) = client.checkpoints(job.id)
    assert taken.rows > 0

    def restored() -> JobView | None:
        """The job once both shards' leases, renewed every few seconds, tell what they hold."""
        seen = client.get(job.id)
        shards = [m for m in seen.members if m.role == "sparse-ps"]
        told = len(shards) == 2 and all(m.status.get("configured") for m in shards)
        return seen if told else None

    seen = until(restored, seconds=30, what="both shards' word of what they restored")
    rows = [m.status["restored_rows"] for m in seen.members if m.role == "sparse-ps"]
    assert sum(rows) == taken.rows
    assert view.progress.samples >= taken.samples > 0
    (said,) = [e.message for e in client.events(job.id) if e.kind == "autoscale"]
    assert said.startswith("sparse-ps 1 -> 2: 1 is outside min 2, max 2")
    client.cancel(job.id)
