"""Codings of the wire over real gRPC: what arrives, what is refused, what is counted."""

from __future__ import annotations

import itertools

import numpy as np
import prometheus_client
import pytest

from ps_service import codec
from ps_service.client.plan import KeyPlanner
from ps_service.tables import table_spec
from services.api.optimizers import InitializerSpec, OptimizerSpec
from services.kit import rpc
from services.kit.errors import InvalidInput
from services.kit.rpc_metrics import ClientMetrics
from services.wire import ps_pb2, ps_pb2_grpc
from tests.fixtures.ps_cluster import PsCluster

DIM, KEYS = 8, 200
SGD = OptimizerSpec(name="sgd", params={"lr": 1.0})
CALLER = ps_pb2.Caller(generation=1, epoch=1, rank=0, step=1)


def table(value: float):
    return [table_spec("t", DIM, SGD, InitializerSpec(name="constant", params={"value": value}))]


def through(values: np.ndarray, coding: str) -> np.ndarray:
    number = codec.value_coding(coding)
    return codec.unpack_values(codec.pack_values(values, number).data, number, "x", len(values))


@pytest.mark.parametrize("coding", ["fp16", "scaled-fp16"])
def test_rows_and_gradients_are_those_that_the_coding_makes(coding: str) -> None:
    """Two shards: each shard's reply and request is encoded by itself."""
    rng = np.random.default_rng(3)
    keys = rng.choice(2**40, KEYS, replace=False).astype(np.uint64)
    tables = table(0.0)
    with PsCluster(sparse=2) as cluster:
        exact, coded = cluster.sparse_client(), cluster.sparse_client(values=coding)
        exact.configure(tables, 0)
        planner = KeyPlanner(tables, [0], [0], ["sum"], DIM, cluster.shard_map)
        plan = planner.plan(keys, np.arange(KEYS + 1, dtype=np.int32), KEYS)
        exact.pull(plan, step=1)
        grads = rng.normal(0, 1e-5, plan.value_floats).astype(np.float32)
        coded.push(plan, grads, step=1, read_step=1, samples=KEYS)
        seen = np.concatenate([through(grads[s.values], coding) for s in plan.shards])
        rows = exact.pull(plan, step=2)
        np.testing.assert_array_equal(rows, -seen)  # sgd with lr 1 from 0
        pulled = coded.pull(plan, step=2)
        expected = [through(rows[s.values], coding) for s in plan.shards]
        np.testing.assert_array_equal(pulled, np.concatenate(expected))
        assert pulled.flags.writeable


def test_clipped_and_flushed_values_are_counted_by_verb() -> None:
    tables = table(1e6)
    with PsCluster() as cluster:
        client = cluster.sparse_client(values="fp16")
        client.configure(tables, 0)
        planner = KeyPlanner(tables, [0], [0], ["sum"], DIM, cluster.shard_map)
        plan = planner.plan(np.array([5], np.uint64), np.array([0, 1], np.int32), 1)
        assert client.pull(plan, step=1).tolist() == [65504.0] * DIM
        grads = np.array([1e9, -1e9, 1e-12, 0, 1, 2, 3, np.inf], np.float32)
        for _ in range(2):  # a repeated push is counted once
            client.push(plan, grads, step=1, read_step=1, samples=1)
        counted = {
            labels: cluster.sparse[0].registry.get_sample_value(
                "embermesh_sparse_rounded_values_total",
                dict(zip(("verb", "effect"), labels, strict=True)),
            )
            for labels in itertools.product(("Pull", "Push"), ("clipped", "flushed"))
        }
    assert counted == {
        ("Pull", "clipped"): DIM,
        ("Pull", "flushed"): 0,
        ("Push", "clipped"): 2,
        ("Push", "flushed"): 1,
    }


@pytest.mark.parametrize(
    ("verb", "fields", "message"),
    [
        ("Pull", {"value_coding": 9}, "value_coding: 9 is not a coding of values"),
        ("Pull", {"key_coding": 9}, "keys: 9 is not a coding of keys"),
        ("Pull", {"key_coding": 1}, "keys has 8 bytes, .*|keys table 0: the data ends"),
        ("Pull", {"key_coding": 1, "keys": bytes(10)}, "keys has 1 bytes too many"),
        ("Push", {"value_coding": 1, "grads": bytes(4 * DIM)}, "grads has 32 bytes, expected 16"),
        ("Push", {"value_coding": 2, "grads": bytes(20)}, "grads block 0 has norm 0"),
        ("Push", {"value_coding": 9, "grads": bytes(16)}, "grads: 9 is not a coding of values"),
    ],
)
def test_a_malformed_coding_changes_nothing_and_names_its_field(verb, fields, message) -> None:
    kind = {"Pull": ps_pb2.SparsePullRequest, "Push": ps_pb2.SparsePushRequest}[verb]
    with PsCluster() as cluster:
        cluster.sparse_client().configure(table(0.5), 0)
        with rpc.connect(cluster.sparse[0].server.address) as channel:
            method = getattr(ps_pb2_grpc.SparsePsStub(channel), verb)
            request = kind(**{"caller": CALLER, "counts": [1], "keys": bytes(8), **fields})
            with pytest.raises(InvalidInput, match=message):
                rpc.call(method, request, peer="sparse-PS", timeout=10)
        assert cluster.sparse[0].servicer.status()["rows"] == 0


def test_both_sides_count_the_same_bytes() -> None:
    tables, registry = table(0.5), prometheus_client.CollectorRegistry()
    keys = np.arange(KEYS, dtype=np.uint64)
    with PsCluster() as cluster:
        client = cluster.sparse_client(metrics=ClientMetrics(registry))
        client.configure(tables, 0)
        planner = KeyPlanner(tables, [0], [0], ["sum"], DIM, cluster.shard_map)
        plan = planner.plan(keys, np.arange(KEYS + 1, dtype=np.int32), KEYS)
        grads = client.pull(plan, step=1)
        client.push(plan, grads, step=1, read_step=1, samples=KEYS)
        server = cluster.sparse[0].registry
    values = 4 * DIM * KEYS
    payload = {("Pull", "out"): KEYS + 9, ("Pull", "in"): values}
    payload |= {("Push", "out"): KEYS + 9 + values, ("Push", "in"): 0}
    for (verb, direction), size in payload.items():
        labels = {"service": "SparsePs", "verb": verb, "direction": direction}
        sent = registry.get_sample_value("embermesh_rpc_client_bytes_total", labels)
        labels["direction"] = {"in": "out", "out": "in"}[direction]
        assert server.get_sample_value("embermesh_rpc_bytes_total", labels) == sent
        assert sent is not None and size <= sent < size + 60, (verb, direction)
