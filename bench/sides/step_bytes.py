"""Bytes that one trainer moves in a step, beside those of the whole model: a model of 100 million
embedding rows, of which a step touches a few thousand.

A job on a local cluster (2 sparse-PS, 1 dense-PS, 1 trainer) for each of SETTINGS, on the workload
with WIDE_ROWS values in its slots; only the rows that come get memory. Bytes are those of the
trainer's calls Pull, Push and Merge since its start, both directions, by its own counters; the
model's are its weights in float32 without any optimizer's state. Prints one JSON line.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import workload as w
from embermesh.client import Client
from embermesh.cluster import LocalCluster
from embermesh.processes import free_port
from services.api.views import JobView

POLL_SECONDS, DEADLINE_SECONDS = 0.1, 300
_STEPS = re.compile(r"^embermesh_trainer_steps_total (\S+)$", re.MULTILINE)
_KEYS = re.compile(r"^embermesh_trainer_keys_total (\S+)$", re.MULTILINE)
_BYTES = re.compile(
    r"^embermesh_rpc_client_bytes_total\{[^}]*"
    r'service="(SparsePs|DensePs)",verb="(?:Pull|Push|Merge)"\} (\S+)$',
    re.MULTILINE,
)


@dataclass(frozen=True)
class Setting:
    """How a job trains, in the words of a JobSpec."""

    batch_size: int
    mode: str
    values: str  # training.wire.values


SETTINGS = {
    "as_measured": Setting(4096, "hybrid", "fp32"),
    "hybrid": Setting(512, "hybrid", "fp32"),
    "lean": Setting(256, "kstep", "fp16"),
}
HEADLINE = "lean"


@dataclass(frozen=True)
class Look:
    """At a trainer's counters, which begin with the job."""

    steps: float
    keys: float  # distinct ones of all steps
    sparse: float  # bytes to and from sparse-PS
    dense: float  # bytes to and from dense-PS


def look(page: str) -> Look:
    """Of a page of metrics."""
    moved = {"SparsePs": 0.0, "DensePs": 0.0}
    for service, count in _BYTES.findall(page):
        moved[service] += float(count)
    steps, keys = _STEPS.search(page), _KEYS.search(page)
    return Look(
        float(steps[1]) if steps else 0.0,
        float(keys[1]) if keys else 0.0,
        moved["SparsePs"],
        moved["DensePs"],
    )


def model_bytes(parameters: int) -> int:
    """Weights of the whole model, float32."""
    return 4 * (w.WIDE_ROWS * w.DIM + parameters)


def per_step(seen: Look, whole: int) -> dict[str, float]:
    """Means of all steps so far. Raises ValueError when there was none."""
    if seen.steps <= 0:
        raise ValueError("the job was over before its bytes could be counted; give it more steps")
    sparse, dense = seen.sparse / seen.steps, seen.dense / seen.steps
    return {
        "distinct_keys": seen.keys / seen.steps,
        "sparse_bytes": sparse,
        "dense_bytes": dense,
        "bytes_per_step": sparse + dense,
        "bytes_ratio": (sparse + dense) / whole,
    }


def summarise(settings: dict[str, dict[str, float]], whole: int) -> dict[str, Any]:
    """Fields of `results/train.json`."""
    headline = settings[HEADLINE]
    return {
        "bytes_per_step": headline["bytes_per_step"],
        "model_bytes_100m": whole,
        "bytes_ratio": headline["bytes_ratio"],
        "bytes": settings,
    }


def measure(
    client: Client, data: w.Data, setting: Setting, steps: int, whole: int
) -> dict[str, float]:
    """Runs one job to its end; the last look at its trainer counts."""
    spec = w.job(
        data.wide(steps * setting.batch_size).as_uri(),
        setting.batch_size,
        training={"mode": setting.mode, "wire": {"values": setting.values}},
        resources={"sparse_ps": 2, "dense_ps": 1, "trainers": 1},
    )
    job, seen = client.submit(spec.model_dump(mode="json")), Look(0, 0, 0, 0)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not job.state.final and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        job = client.get(job.id)
        seen = trainer(job) or seen
    if job.state != "succeeded":
        raise RuntimeError(f"the job ended as {job.state}: {job.error}")
    return per_step(seen, whole)


def trainer(job: JobView) -> Look | None:
    """A look at the job's trainer, if it answers."""
    for member in job.members:
        if member.role == "trainer" and member.metrics_address:
            url = f"http://{member.metrics_address}/metrics"
            try:
                return look(httpx.get(url, timeout=2.0, trust_env=False).text)
            except httpx.HTTPError:  # it is about to end
                return None
    return None


def main() -> None:
    args = w.arguments(__doc__)
    data = w.data(args)
    from bench.network import build  # brings TensorFlow

    whole = model_bytes(build(w.DENSE, w.SLOTS * w.DIM, w.HIDDEN).count_params())
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster(Path(folder))
        state = cluster.up(port=free_port())
        try:
            with Client(state.url) as client:
                found = {
                    name: measure(client, data, setting, args.steps, whole)
                    for name, setting in SETTINGS.items()
                }
        finally:
            cluster.down()
    sys.stdout.write(json.dumps(summarise(found, whole)) + "\n")


if __name__ == "__main__":
    main()
