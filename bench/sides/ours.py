"""Ours: the benchmark job on a local cluster (1 sparse-PS, 1 dense-PS, 1 trainer as processes).

Everything a user pays for is inside: synthetic samples are generated, planned, pulled and pushed
over gRPC. The rate is taken from the job's progress, between the first and the last report with
samples after the warm-up. Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import workload as w
from embermesh.client import Client
from embermesh.cluster import LocalCluster
from embermesh.processes import free_port

POLL_SECONDS = 0.25
DEADLINE_SECONDS = 300


def main() -> None:
    args = w.arguments(__doc__)
    rows = (args.warm_up + args.steps) * args.batch_size
    spec = w.job(rows, args.batch_size, depth=args.depth, placement=args.placement)
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster(Path(folder))
        state = cluster.up(port=free_port())
        try:
            rate = measure(
                Client(state.url), spec.model_dump(mode="json"), args.warm_up * args.batch_size
            )
        finally:
            cluster.down()
    sys.stdout.write(json.dumps({"samples_per_second": rate}) + "\n")


def measure(client: Client, spec: dict[str, object], warm_up: int) -> float:
    job, points, deadline = client.submit(spec), [], time.monotonic() + DEADLINE_SECONDS
    while not job.state.final and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        job = client.get(job.id)
        if job.progress.samples >= warm_up and (not points or job.progress.samples > points[-1][1]):
            points.append((time.monotonic(), job.progress.samples))
    if job.state != "succeeded" or len(points) < 2:
        raise RuntimeError(
            f"the job ended as {job.state}: {job.error or 'too few progress reports'}"
        )
    (start, first), (end, last) = points[0], points[-1]
    return (last - first) / (end - start)


if __name__ == "__main__":
    main()
