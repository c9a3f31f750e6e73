"""A job is paused in the middle of its training, its gateway and then the whole cluster are started
anew meanwhile, and it goes on: every row trains exactly once.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embermesh import cli
from embermesh.client import Client
from embermesh.cluster import LocalCluster
from embermesh.processes import ProcessId
from services.api.views import JobState, JobView
from tests.e2e.waiting import until
from tests.fixtures.ports import find_free_port
from tests.fixtures.row_counts import updates_of_rows

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
ROWS = 120_000


def counting_job(folder: Path) -> dict[str, Any]:
    """Each row has a key of its own, whose optimizer state counts how often it was trained."""
    clicks = folder / "clicks.csv"
    clicks.write_text("label,price,row\n" + "".join(f"{i % 2},0.5,{i}\n" for i in range(ROWS)))
    return {
        "name": "paused",
        "model": {"name": "lr"},
        "data": {"source": f"file://{clicks}"},
        "features": {
            "dense": ["price"],
            "sparse": {"row": {"dim": 1, "encode": "id", "optimizer": {"adam": {"lr": 0.001}}}},
        },
        "training": {"mode": "hybrid", "batch_size": 16},
        "resources": {"sparse_ps": 2, "dense_ps": 1, "trainers": 2},
        "checkpoint": {"to": f"file://{folder / 'checkpoints'}", "keep": 5},
    }


def alive(cluster: LocalCluster, job: str) -> list[str]:
    """Processes of the job that are there, whatever their generation."""
    files = (cluster.folder / "jobs" / job).glob("*/*.pid")
    return [str(f) for f in files if ProcessId.from_text(f.read_text()).alive()]


def test_every_row_trains_once_across_two_pauses(
    cluster: LocalCluster,
    client: Client,
    wait_samples: Callable[[str, int], JobView],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = client.submit(counting_job(tmp_path)).id
    wait_samples(job, 2_000)
    monkeypatch.setenv("EMBERMESH_STATE_DIR", str(cluster.folder))
    with pytest.raises(SystemExit) as exit_code:
        cli.main(["pause", job, "--wait", "--json"])
    said = capsys.readouterr()
    assert exit_code.value.code in (0, None), said.err
    paused = JobView.model_validate(json.loads(said.out))
    assert paused.state == JobState.PAUSED and paused.checkpoint is not None
    assert alive(cluster, job) == []
    assert 2_000 <= paused.checkpoint.samples < ROWS, "the pause must come before the end"
    assert paused.progress.samples == paused.checkpoint.samples
    counts = updates_of_rows(paused.checkpoint.uri)
    assert sum(counts.values()) == paused.checkpoint.samples and set(counts.values()) <= {0, 1}

    state = cluster.state()
    assert state is not None
    os.kill(state.services["gateway"].id.pid, signal.SIGKILL)
    until(lambda: not client.ready(), seconds=10, what="the gateway's end")
    cluster.up()
    assert client.get(job).state == JobState.PAUSED
    with pytest.raises(SystemExit) as exit_code:
        cli.main(["resume", job])
    assert exit_code.value.code in (0, None)
    wait_samples(job, paused.checkpoint.samples + 2_000)

    client.scale(job, trainers=1, sparse_ps=3)
    client.pause(job)  # overtakes the scaling, or comes in the middle of it
    paused = client.wait_paused(job, 90)
    assert paused.state == JobState.PAUSED, paused.error
    assert (cluster.down(), alive(cluster, job)) == (True, [])
    url = cluster.up(port=find_free_port()).url
    with Client(url) as later:
        assert later.get(job).state == JobState.PAUSED, "down cancels only what runs"
        later.resume(job)
        done = later.wait(job, 180)
    assert done.state == JobState.SUCCEEDED, done.error
    assert {"trainers": 1, "sparse_ps": 3}.items() <= done.spec["resources"].items()
    assert (done.progress.samples, done.restarts) == (ROWS, 0)
    assert done.checkpoint is not None
    assert updates_of_rows(done.checkpoint.uri) == dict.fromkeys(range(ROWS), 1)
