"""One job as a user sees it: trained, evaluated, checkpointed, restored, scaled, killed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from embermesh.client import Client
from embermesh.cluster import LocalCluster
from services.api.views import JobState, JobView
from services.kit.errors import InvalidInput
from tests.e2e.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
Spec = dict[str, Any]
Make = Callable[..., Spec]
Wait = Callable[[str, int], JobView]


def pid_of(job: JobView, cluster: LocalCluster, role: str, rank: int) -> int:
    """Process id of a member, from the local target's file."""
    folder = cluster.folder / "jobs" / job.id / str(job.generation)
    return int(re.findall(r"\d+", (folder / f"{role}-{rank}.pid").read_text())[0])


def events(client: Client, job: JobView) -> list[str]:
    return [f"{event.kind}: {event.message}" for event in client.events(job.id)]


def test_train_checkpoint_and_restore_into_other_counts(
    client: Client, synthetic_job: Make
) -> None:
    done = client.wait(client.submit(synthetic_job()).id, 120)
    assert done.state == JobState.SUCCEEDED, done.error
    assert done.result is not None and done.result.auc is not None
    assert done.progress.samples == 20_000 and done.result.samples == 5_000
    assert 0.5 < done.result.auc < (done.result.bayes_auc or 0)
    assert done.checkpoint is not None and done.checkpoint.samples == 20_000
    assert done.checkpoint.rows == done.progress.rows > 1_000

    client.restore(done.id, sparse_ps=3, dense_ps=2, trainers=1)
    again = client.wait(done.id, 120)
    assert again.state == JobState.SUCCEEDED, again.error
    assert again.generation == done.generation + 1
    assert again.result is not None and again.result.auc is not None
    assert again.result.auc == pytest.approx(done.result.auc, abs=1e-6)
    assert again.progress.samples == 20_000, "nothing may be trained twice"


@pytest.mark.parametrize("mode", ["sync", "async", "kstep"])
def test_the_other_modes_train(client: Client, synthetic_job: Make, mode: str) -> None:
    done = client.wait(client.submit(synthetic_job(training={"mode": mode})).id, 120)
    assert done.state == JobState.SUCCEEDED, done.error
    assert done.progress.samples == 20_000
    assert done.result is not None and (done.result.auc or 0) > 0.5


def test_job_outlives_its_gateway(
    cluster: LocalCluster, client: Client, synthetic_job: Make, wait_samples: Wait
) -> None:
    job = client.submit(synthetic_job(rows=200_000))
    before = wait_samples(job.id, 5_000)
    state = cluster.state()
    assert state is not None
    trainer = pid_of(before, cluster, "trainer", 0)
    os.kill(state.services["gateway"].id.pid, signal.SIGKILL)
    until(lambda: not client.ready(), seconds=10, what="the gateway's end")
    assert Path(f"/proc/{trainer}").exists(), "the trainer must not die with the gateway"

    cluster.up()
    seen = client.get(job.id)
    assert seen.generation == before.generation
    assert pid_of(seen, cluster, "trainer", 0) == trainer
    done = client.wait(job.id, 180)
    assert done.state == JobState.SUCCEEDED, done.error
    assert done.generation == before.generation and done.restarts == 0
    assert done.progress.samples == 200_000


@pytest.mark.parametrize(
    ("role", "mode"), [("sparse-ps", "hybrid"), ("dense-ps", "hybrid"), ("trainer", "sync")]
)
def test_killed_process_rolls_back_to_the_checkpoint(
    cluster: LocalCluster,
    client: Client,
    synthetic_job: Make,
    wait_samples: Wait,
    role: str,
    mode: str,
) -> None:
    job = client.submit(synthetic_job(rows=100_000, training={"mode": mode}))
    wait_samples(job.id, 5_000)
    checkpoint = client.checkpoint(job.id)
    assert checkpoint.samples >= 5_000
    os.kill(pid_of(client.get(job.id), cluster, role, 0), signal.SIGKILL)
    done = client.wait(job.id, 180)
    assert done.state == JobState.SUCCEEDED, done.error
    assert done.restarts == 1 and done.generation == 2
    assert done.progress.samples == 100_000, "every row counts once after the roll-back"
    assert any(f"from {checkpoint.uri}" in line for line in events(client, done))


def test_a_killed_trainer_is_replaced_while_the_job_goes_on(
    cluster: LocalCluster, client: Client, synthetic_job: Make, wait_samples: Wait
) -> None:
    job = client.submit(synthetic_job(rows=100_000, checkpoint=None))
    before = wait_samples(job.id, 5_000)
    os.kill(pid_of(before, cluster, "trainer", 0), signal.SIGKILL)
    done = client.wait(job.id, 180)
    assert done.state == JobState.SUCCEEDED, done.error
    assert (done.generation, done.restarts) == (1, 1), "there was no checkpoint to go back to"
    assert done.progress.samples == 100_000
    assert done.result is not None and done.result.samples == 5_000
    replaced = [line for line in events(client, done) if line.startswith("replacing: ")]
    assert len(replaced) == 1 and "trainer 0 becomes incarnation 1" in replaced[0]


def test_scale_every_role(client: Client, synthetic_job: Make, wait_samples: Wait) -> None:
    job = client.submit(synthetic_job(rows=100_000, resources={"trainers": 1}))
    wait_samples(job.id, 5_000)
    client.scale(job.id, trainers=3, sparse_ps=3, dense_ps=2)
    done = client.wait(job.id, 180)
    assert done.state == JobState.SUCCEEDED, done.error
    counts = {"placement": "remote", "trainers": 3, "sparse_ps": 3, "dense_ps": 2}
    assert counts.items() <= done.spec["resources"].items() and done.generation == 2
    assert done.progress.samples == 100_000


def test_cancel(client: Client, synthetic_job: Make, wait_samples: Wait) -> None:
    job = client.submit(synthetic_job(rows=1_000_000))
    wait_samples(job.id, 1_000)
    client.cancel(job.id)
    assert client.wait(job.id, 60).state == JobState.CANCELLED


def test_periodic_checkpoints_and_retention(client: Client, synthetic_job: Make) -> None:
    spec = synthetic_job(rows=150_000)
    spec["checkpoint"] |= {"every": "2s", "keep": 2}
    done = client.wait(client.submit(spec).id, 180)
    assert done.state == JobState.SUCCEEDED, done.error
    kept = client.checkpoints(done.id)
    assert len(kept) == 2 and int(kept[-1].id) > 2, "older ones are removed"
    assert kept[-1].samples == 150_000


def test_metrics_of_every_process(client: Client, synthetic_job: Make, wait_samples: Wait) -> None:
    job = client.submit(synthetic_job(rows=500_000))
    wait_samples(job.id, 5_000)
    targets = httpx.get(f"{client.url}/v1/services/prometheus", trust_env=False).json()
    pages = {}
    for group in targets:
        labels = group["labels"]
        if labels.get("job_id", labels.get("job")) != job.id:
            continue
        for target in group["targets"]:
            page = httpx.get(f"http://{target}/metrics", trust_env=False).text
            pages[f"{labels['role']}-{labels['rank']}"] = page
    client.cancel(job.id)
    assert sorted(pages) == ["dense-ps-0", "sparse-ps-0", "sparse-ps-1", "trainer-0", "trainer-1"]
    assert 'embermesh_rpc_seconds_count{service="SparsePs",verb="Pull"}' in pages["sparse-ps-0"]
    trained = re.search(r"^embermesh_trainer_samples_total (\S+)", pages["trainer-0"], re.M)
    assert trained and float(trained[1]) > 0
    assert "embermesh_jobs" in httpx.get(f"{client.url}/metrics", trust_env=False).text
    assert client.wait(job.id, 60).state == JobState.CANCELLED


def test_input_error_fails_the_job_without_restarts(
    client: Client, synthetic_job: Make, tmp_path: Path
) -> None:
    clicks = tmp_path / "clicks.csv"
    clicks.write_text("label,price\n1,3.5\n0,2\n" * 100)
    spec = synthetic_job(
        data={"source": f"file://{clicks}"},
        features={"dense": ["price"], "sparse": {"shop": {"dim": 4}}},
    )
    done = client.wait(client.submit(spec).id, 90)
    assert done.state == JobState.FAILED and done.restarts == 0
    assert "shop" in done.error and "price" in done.error, "names what lacks and what there is"


def test_damaged_checkpoint_is_refused_by_name(client: Client, synthetic_job: Make) -> None:
    done = client.wait(client.submit(synthetic_job(rows=4_000)).id, 120)
    assert done.checkpoint is not None
    file = Path(done.checkpoint.uri.removeprefix("file://")).parent / "sparse-000.emb"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    client.restore(done.id)
    again = client.wait(done.id, 120)
    assert again.state == JobState.FAILED and file.name in again.error


def test_bad_jobspec_names_every_field(client: Client, synthetic_job: Make) -> None:
    spec = synthetic_job(training={"batchsize": 5, "mode": "fast"})
    with pytest.raises(InvalidInput) as refused:
        client.submit(spec)
    assert "training.batchsize" in str(refused.value) and "training.mode" in str(refused.value)
    with pytest.raises(InvalidInput, match="learning"):
        client.submit(synthetic_job(optimizers={"sparse": {"adagrad": {"learning": 1}}}))
