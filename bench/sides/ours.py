"""Ours: the workload's job on a local cluster (1 sparse-PS, 1 dense-PS, 1 trainer as processes, or
the shard embedded in the trainer).

Everything a user pays for is inside: the rows are read from a Parquet file, planned, pulled and
pushed. The rate is taken from the job's progress, between the first and the last report with
samples after the warm-up. Prints one JSON line; with `--full` one pass over all training rows and
the AUC of the held-out ones. `rss_mb` is the resident memory of the job's processes together.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import workload as w
from embermesh.client import Client
from embermesh.cluster import LocalCluster
from embermesh.processes import free_port
from services.api.spec import JobSpec
from services.api.views import MemberView

POLL_SECONDS = 0.25
DEADLINE_SECONDS = 900
_RESIDENT = re.compile(r"^process_resident_memory_bytes (\S+)$", re.MULTILINE)


def main() -> None:
    args = w.arguments(__doc__)
    data = w.data(args)
    parts = {
        "training": {"pipeline": {"depth": args.depth}},
        "resources": {"placement": args.placement, "dense_ps": 1, "trainers": 1},
    }
    if args.full:
        parts["data"] = {"holdout": {"source": data.test().as_uri()}}
    spec = w.job(data.train(w.rows(args)).as_uri(), args.batch_size, **parts)
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster(Path(folder))
        state = cluster.up(port=free_port())
        try:
            # One client for all looks: to make one is 22 ms of CPU, of certificates.
            with Client(state.url) as client, httpx.Client(timeout=2.0, trust_env=False) as http:
                result = measure(client, http, spec, args.warm_up * args.batch_size)
        finally:
            cluster.down()
    sys.stdout.write(json.dumps(result) + "\n")


def measure(
    client: Client, http: httpx.Client, spec: JobSpec, warm_up: int
) -> dict[str, float | None]:
    """Runs the job to its end."""
    job = client.submit(spec.model_dump(mode="json"))
    points: list[tuple[float, int]] = []
    deadline, resident = time.monotonic() + DEADLINE_SECONDS, 0.0
    while not job.state.final and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        job = client.get(job.id)
        samples = job.progress.samples
        if points and samples == points[-1][1]:
            continue
        if samples >= warm_up:
            points.append((time.monotonic(), samples))
        resident = max(resident, sum(memory(http, member) for member in job.members))
    if job.state != "succeeded":
        raise RuntimeError(f"the job ended as {job.state}: {job.error}")
    rate = job.progress.samples_per_second  # of the whole run, if it was over between two reports
    if len(points) > 2:
        (start, first), (end, last) = points[0], points[-1]
        rate = (last - first) / (end - start)
    return {
        "samples_per_second": rate,
        "rss_mb": resident / 2**20,
        "auc": job.result.auc if job.result else None,
    }


def memory(http: httpx.Client, member: MemberView) -> float:
    """Resident bytes of one process; 0 for a shard that is part of another's process."""
    if not member.metrics_address:
        return 0.0
    try:
        page = http.get(f"http://{member.metrics_address}/metrics")
    except httpx.HTTPError:  # it is about to end
        return 0.0
    found = _RESIDENT.search(page.text)
    return float(found[1]) if found else 0.0


if __name__ == "__main__":
    main()
