"""What the sparse side costs a trainer between two steps: with and without reading rows ahead, and
with the shard in another process, by gRPC and over a bypass, or in this one.

Without it a trainer waits for its push, then for the rows of the next batch. With it the push
brings the rows it changed, and the others were read beside the step. One shard, batches of the
benchmark workload whose rows all exist. Prints one JSON line: milliseconds, the tenth percentile of
all calls, which other work on the machine moves least.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import workload as w
from ps_service.client.plan import KeyPlan, RecentKeys
from ps_service.client.sparse import NextRead, SparseClient
from ps_service.embedded import EmbeddedShard
from ps_service.sharding import ShardMap
from services.kit import rpc
from services.kit.discovery import Run
from trainer_service.layout import Layout, build_layout, load_model
from trainer_service.sources import open_training

BATCHES, ROUNDS, PARTITIONS, PERCENTILE = 20, 5, 1024, 10
SOURCE = "synthetic://criteo?rows={}"
RUN = Run(
    "bench",
    1,
    w.job(SOURCE.format(1), 1).model_dump(mode="json"),
    epoch=1,
    owners=[0] * PARTITIONS,
)

IDENTITY: dict[str, Any] = {"generation": 1, "epoch": 1, "rank": 0}


def serve(pipe: Connection, by_bypass: bool) -> None:
    """A shard in a process of its own, until the other end closes."""
    registry = prometheus_client.CollectorRegistry()
    shard = EmbeddedShard(RUN, 0, registry)
    server = rpc.serve(
        shard.register,
        host="127.0.0.1",
        port=0,
        registry=registry,
        laden=shard.laden,
        bypass=by_bypass,
    )
    pipe.send(server.address)
    pipe.recv()
    shard.close()
    server.drain(1)


def plans(layout: Layout, batch_size: int) -> list[KeyPlan]:
    planner = layout.planner(ShardMap.even(PARTITIONS, 1))
    job = w.job(SOURCE.format(BATCHES * batch_size), batch_size)
    source = open_training(job, rank=0, trainers=1)
    batches = [source.next_batch(timeout=60) for _ in range(BATCHES)]
    source.close()
    return [planner.plan(b.keys, b.offsets, b.samples) for b in batches if b is not None]


def measure(client: SparseClient, layout: Layout, batches: list[KeyPlan]) -> dict[str, float]:
    client.configure(layout.tables, seed=1)
    for plan in batches:
        client.pull(plan, step=1)
    seconds: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[..., Any], *args: Any, **options: Any) -> None:
        start = time.perf_counter()
        call(*args, **options)
        seconds.setdefault(name, []).append(time.perf_counter() - start)

    step = 0
    for now, later in list(itertools.pairwise(batches)) * ROUNDS:
        grads = np.full(now.value_floats, 1e-4, np.float32)
        recent = RecentKeys()
        recent.split(now, 1, 1)
        parts = recent.split(later, 2, 1)
        others, changed = parts[0], parts[1]
        step += 1
        timed("push", client.push, now, grads, step=step, read_step=step, samples=1)
        timed("pull", client.pull, later, step=step)
        step += 1
        then = [NextRead(changed, step + 1)]
        timed(
            "push_with_rows",
            client.push,
            now,
            grads,
            step=step,
            read_step=step,
            samples=1,
            then=then,
        )
        timed("pull_beside", client.pull, others, step=step)
    return {n: round(1e3 * float(np.percentile(s, PERCENTILE)), 2) for n, s in seconds.items()}


def remote(layout: Layout, batches: list[KeyPlan], *, by_bypass: bool) -> dict[str, float]:
    """As `measure`, with the shard in another process."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, by_bypass))
    process.start()
    with SparseClient([here.recv()], **IDENTITY) as client:
        seconds = measure(client, layout, batches)
    here.send("end")
    process.join(20)
    return seconds


def main() -> None:
    args = w.arguments(__doc__)
    spec = w.job(SOURCE.format(1), args.batch_size)
    layout = build_layout(spec, load_model(spec))
    batches = plans(layout, args.batch_size)
    found = {
        name: remote(layout, batches, by_bypass=by_bypass)
        for name, by_bypass in (("grpc", False), ("bypass", True))
    }
    shard = EmbeddedShard(RUN, 0, prometheus_client.CollectorRegistry())
    with SparseClient([""], **IDENTITY, own=shard.servicer) as client:
        found["embedded"] = measure(client, layout, batches)
    shard.close()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
