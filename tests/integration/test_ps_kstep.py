"""Mode kstep over real gRPC: the rule, its traffic, pauses, restores, retries and early ends."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client
import pytest

from ps_service import _native, halves
from ps_service.client.dense import DenseClient
from ps_service.client.kstep import KStepClient, period
from ps_service.server.assignment import Pace
from ps_service.tables import NO_OPTIONS, UpdateOptions
from services.kit.errors import Conflict, DeadlineExceeded, InvalidInput
from services.kit.rpc_metrics import ClientMetrics
from services.wire import ps_pb2
from tests.fixtures.kstep_reference import Rule, simulate
from tests.fixtures.ps_batches import TABLES
from tests.fixtures.ps_cluster import PsCluster

N = 37
FRESH = np.linspace(-1, 1, N).astype(np.float32)
ADAM = {**_native.OPTIMIZERS["adam"], "lr": 0.01}
DECAYED = UpdateOptions(
    schedule="piecewise", schedule_params={"6": 0.5}, clip_value=1.5, weight_decay=0.1
)
# Each merge rounds a change, and the root that divides, to 11 bits; doubled for float32.
TOLERANCE = 2.0**-9

Batch = tuple[int, np.ndarray]


def batches(trainer: int, steps: int, *, idle: int = 0) -> list[Batch]:
    """(samples, gradient) of some steps; parameters differ in scale, some gradients are all zero;
    `idle` steps have no samples.
    """
    rng = np.random.default_rng(trainer)
    scale = np.logspace(-3, 0, N)
    out = []
    for step in range(steps):
        grad = scale * (rng.normal(size=N) + 0.5) * (rng.random(N) < 0.8)
        samples = 0 if step and idle and step % idle == 0 else int(rng.integers(1, 9))
        out.append((samples, grad.astype(np.float32)))
    return out


def merging(**sizes: Any) -> PsCluster:
    return PsCluster(pace=Pace.MERGED, **sizes)


def kstep(cluster: PsCluster, rank: int, k: int, client: DenseClient | None = None) -> KStepClient:
    return KStepClient(client or cluster.dense_client(rank), k)


def train(client: KStepClient, data: Sequence[Batch], options: UpdateOptions = NO_OPTIONS) -> None:
    """All steps, then leave."""
    client.configure("adam", ADAM, FRESH, options)
    for step, (samples, grad) in enumerate(data, start=1):
        client.push(grad, step=step, samples=samples, pause=False)
    client.leave(len(data))


def train_all(clients: Sequence[KStepClient], data: Sequence[Sequence[Batch]], *more: Any) -> None:
    with ThreadPoolExecutor(len(clients)) as pool:
        for done in [pool.submit(train, c, d, *more) for c, d in zip(clients, data, strict=True)]:
            done.result(30)


def saved(cluster: PsCluster, folder: Path) -> str:
    """URI of the manifest of a checkpoint; the job has tables too."""
    cluster.sparse_client().configure(TABLES, 3)
    return cluster.snapshot(folder)


@pytest.mark.parametrize(
    ("k", "data"),
    [
        (1, [batches(0, 25)]),
        (4, [batches(r, 40) for r in range(3)]),
        (8, [batches(0, 40), batches(1, 13), batches(2, 1), batches(3, 29, idle=3)]),
    ],
    ids=["k-1-alone", "k-4-of-three", "k-8-early-ends-and-idle"],
)
@pytest.mark.parametrize("options", [NO_OPTIONS, DECAYED], ids=["plain", "options"])
def test_any_number_of_trainers_follow_the_rule(
    k: int, data: list[list[Batch]], options: UpdateOptions
) -> None:
    """Against float64: within 2^-9 of the way that a parameter went."""
    plain = options is NO_OPTIONS
    rule = (
        Rule()
        if plain
        else Rule(weight_decay=0.1, clip=1.5, rate=lambda step: 0.5 if step > 6 else 1.0)
    )
    expected, way, total, merges = simulate(rule, k, FRESH, data)
    with merging(dense=2, trainers=len(data)) as cluster:
        train_all([kstep(cluster, r, k) for r in range(len(data))], data, options)
        values = cluster.dense_values()
        for served in cluster.dense:
            value = served.registry.get_sample_value
            assert value("embermesh_dense_version") == total
            assert value("embermesh_dense_merges_total") == merges
            assert value("embermesh_dense_trainers") == 0
    assert np.all(np.abs(values - expected) <= TOLERANCE * way + 1e-6)
    assert way.min() > 0.01, "nothing was trained"


def test_adamw_is_adam_with_the_decay_as_a_parameter() -> None:
    data = batches(5, 30)
    adamw = {**ADAM, "weight_decay": 0.1}
    with merging() as cluster:
        client = kstep(cluster, 0, 4)
        client.configure("adamw", adamw, FRESH)
        for step, (samples, grad) in enumerate(data, start=1):
            client.push(grad, step=step, samples=samples, pause=False)
        client.leave(len(data))
        values = cluster.dense_values()
    expected, way, _, _ = simulate(Rule(weight_decay=0.1), 4, FRESH, [data])
    assert np.all(np.abs(values - expected) <= TOLERANCE * way + 1e-6)


def test_the_first_step_is_adams() -> None:
    (samples, grad), *_ = batches(0, 1)
    block = _native.DenseBlock(FRESH, optimizer="adam", optimizer_params=ADAM)
    block.apply(grad)
    with merging() as cluster:
        client = kstep(cluster, 0, 8)
        client.configure("adam", ADAM, FRESH)
        step = client.push(grad, step=1, samples=samples, pause=False)
        assert step.version == 1
    np.testing.assert_allclose(step.values, block.values(), rtol=0, atol=0.01 * 2.0**-11)


def test_a_gradient_that_wakes_up_between_merges_moves_no_further_than_adam_would() -> None:
    """The shared second moment of the last parameter is zero when its first gradient comes."""
    quiet, loud = np.ones(N, np.float32), np.ones(N, np.float32)
    quiet[-1] = 0
    with merging() as cluster:
        client = kstep(cluster, 0, 8)
        client.configure("adam", ADAM, FRESH)
        for step in range(1, 17):
            values = client.push(quiet, step=step, samples=1, pause=False).values
        assert values[-1] == FRESH[-1]
        moved = client.push(loud, step=17, samples=1, pause=False).values - values
    bound = ADAM["lr"] * (1 - ADAM["beta1"]) / np.sqrt(1 - ADAM["beta2"])
    np.testing.assert_allclose(moved[-1], -bound, rtol=1e-4)


def test_periods_double_until_they_are_k() -> None:
    lengths, version = [], 0
    while version < 40:
        lengths.append(period(8, version))
        version += lengths[-1]
    assert lengths == [1, 1, 2, 4, 8, 8, 8, 8]
    assert [period(3, v) for v in (0, 1, 2, 3, 1000)] == [1, 1, 2, 3, 3]


class Counting(DenseClient):
    """Counts the calls."""

    calls = 0

    def ask(self, verb: Any, requests: Any, **other: Any) -> list[Any]:
        listed = list(requests)
        self.calls += len(listed)
        return super().ask(verb, listed, **other)


def moved(registry: prometheus_client.CollectorRegistry) -> float:
    """Bytes of pushes and merges, both ways."""
    return sum(
        registry.get_sample_value(
            "embermesh_rpc_client_bytes_total",
            {"service": "DensePs", "verb": verb, "direction": way},
        )
        or 0.0
        for verb in ("Push", "Merge")
        for way in ("in", "out")
    )


def test_dense_traffic_is_divided_by_k() -> None:
    """A merge costs as much as a step of hybrid. Of 60 periods of 8 steps, the 3 more merges at the
    start included.
    """
    k, steps, size = 8, 480, 4_000
    initial, grad = np.zeros(size, np.float32), np.ones(size, np.float32)
    sent, calls = {}, {}
    for pace in (Pace.TOGETHER, Pace.MERGED):
        with PsCluster(pace=pace, dense=2) as cluster:
            addresses = [s.server.address for s in cluster.dense]
            registry = prometheus_client.CollectorRegistry()
            caller: dict[str, Any] = {"generation": 1, "epoch": cluster.shard_map.epoch, "rank": 0}
            with Counting(addresses, metrics=ClientMetrics(registry), **caller) as wire:
                client = kstep(cluster, 0, k, wire) if pace is Pace.MERGED else wire
                client.configure("adam", ADAM, initial)
                wire.calls = 0
                for step in range(1, steps + 1):
                    client.push(grad, step=step, samples=1, pause=False)
                sent[pace], calls[pace] = moved(registry), wire.calls
    assert calls == {Pace.TOGETHER: 2 * steps, Pace.MERGED: 2 * (60 + 3)}
    assert sent[Pace.MERGED] <= sent[Pace.TOGETHER] / 7
    assert sent[Pace.MERGED] / 63 == pytest.approx(sent[Pace.TOGETHER] / steps, rel=0.02)


def test_one_trainer_goes_on_bit_by_bit_after_a_restore_into_other_blocks(tmp_path: Path) -> None:
    data = batches(0, 40)
    with merging(dense=1) as cluster:
        train(kstep(cluster, 0, 8), data)
        undisturbed = cluster.dense_values()
    with merging(dense=2) as cluster:
        client = kstep(cluster, 0, 8)
        client.configure("adam", ADAM, FRESH)
        for step, (samples, grad) in enumerate(data, start=1):
            if client.push(grad, step=step, samples=samples, pause=step >= 10).pause:
                break
        assert step == 16, "the merges are after steps 1, 2, 4, 8, 16"
        uri = saved(cluster, tmp_path)
    with merging(dense=3, restore=uri, generation=2) as cluster:
        train(kstep(cluster, 0, 8), data[16:])
        np.testing.assert_array_equal(cluster.dense_values(), undisturbed)


def test_a_pause_of_two_trainers_leaves_all_that_five_need(tmp_path: Path) -> None:
    """Both stop at the same merge and go on with the mean first moment, which a restore finds."""
    data = [batches(r, 8) for r in range(2)]
    with merging(dense=2, trainers=2) as cluster:
        clients = [kstep(cluster, r, 4) for r in range(2)]

        def until_pause(rank: int) -> tuple[int, np.ndarray, np.ndarray]:
            client = clients[rank]
            client.configure("adam", ADAM, FRESH)
            for step, (samples, grad) in enumerate(data[rank], start=1):
                # Rank 1 is asked later: the merge after step 4 is not theirs to pause at.
                asked = step >= (3, 5)[rank]
                told = client.push(grad, step=step, samples=samples, pause=asked)
                if told.pause:
                    return step, told.values, client._configured().momentum()
            raise AssertionError("no common pause")

        with ThreadPoolExecutor(2) as pool:
            stood = [f.result(30) for f in [pool.submit(until_pause, r) for r in range(2)]]
        uri, values = saved(cluster, tmp_path), cluster.dense_values()
        momentum = stood[0][2]
        for step, seen, own in stood:
            assert step == 8
            np.testing.assert_array_equal(seen, values)
            np.testing.assert_array_equal(own, momentum)
    with merging(dense=1, trainers=5, restore=uri, generation=2) as cluster:
        more = [kstep(cluster, r, 4) for r in range(5)]
        for client in more:
            np.testing.assert_array_equal(client.configure("adam", ADAM, FRESH), values)
            np.testing.assert_array_equal(client._configured().momentum(), momentum)
        train_all(more, [batches(10 + r, 6) for r in range(5)])
        assert np.abs(cluster.dense_values() - values).max() > 0.01


def test_a_checkpoint_of_hybrid_goes_on_as_kstep_and_back(tmp_path: Path) -> None:
    data = batches(0, 12)
    with PsCluster(dense=2) as cluster:
        client = cluster.dense_client()
        client.configure("adam", ADAM, FRESH)
        for step, (samples, grad) in enumerate(data, start=1):
            client.push(grad, step=step, samples=samples, pause=False)
        uri, values = saved(cluster, tmp_path / "hybrid"), cluster.dense_values()
    with merging(dense=1, restore=uri, generation=2) as cluster:
        merger = kstep(cluster, 0, 4)
        np.testing.assert_array_equal(merger.configure("adam", ADAM, FRESH), values)
        steps = [merger.push(g, step=i, samples=s, pause=True) for i, (s, g) in enumerate(data, 1)]
        assert [i for i, step in enumerate(steps, 1) if step.pause] == [4, 8, 12]
        uri = saved(cluster, tmp_path / "kstep")
    with PsCluster(restore=uri, generation=3) as cluster:
        client = cluster.dense_client()
        np.testing.assert_array_equal(client.configure("adam", ADAM, FRESH), steps[-1].values)
        assert client.push(data[0][1], step=1, samples=1, pause=False).version == 25


def request(
    cluster: PsCluster, number: int, *, rank: int = 0, **fields: Any
) -> ps_pb2.DenseMergeRequest:
    caller = ps_pb2.Caller(generation=1, epoch=cluster.shard_map.epoch, rank=rank, step=1)
    change = halves.pack(np.ones(N, np.float32))
    return ps_pb2.DenseMergeRequest(
        **{
            "caller": caller,
            "round": number,
            "steps": 1,
            "samples": 1,
            "change": change,
            "roots": change,
            **fields,
        }
    )


def merge(client: DenseClient, message: ps_pb2.DenseMergeRequest) -> ps_pb2.DenseMergeReply:
    (reply,) = client.ask(lambda stub: stub.Merge, [(0, message)])
    assert isinstance(reply, ps_pb2.DenseMergeReply)
    return reply


def test_drift_tells_how_far_the_trainers_went_apart() -> None:
    """Changes of 1 and 3 with weights 1 : 1 lie 1 from their mean of 2."""
    with merging(trainers=2) as cluster, ThreadPoolExecutor(2) as pool:
        clients = [cluster.dense_client(r) for r in range(2)]
        clients[0].configure("adam", ADAM, FRESH)
        changes = [halves.pack(np.full(N, c, np.float32)) for c in (1, 3)]
        calls = [
            pool.submit(merge, client, request(cluster, 1, rank=r, change=changes[r]))
            for r, client in enumerate(clients)
        ]
        assert len({call.result(20).SerializeToString() for call in calls}) == 1
        np.testing.assert_array_equal(cluster.dense_values(), FRESH + 2)
        value = cluster.dense[0].registry.get_sample_value
        assert value("embermesh_dense_merge_drift") == pytest.approx(0.5, rel=1e-6)


def test_a_repeated_merge_is_answered_and_not_added() -> None:
    with merging() as cluster:
        client = cluster.dense_client()
        client.configure("adam", ADAM, FRESH)
        first = merge(client, request(cluster, 1))
        after = cluster.dense_values()
        np.testing.assert_array_equal(after, FRESH + 1)
        assert merge(client, request(cluster, 1, samples=7)) == first
        np.testing.assert_array_equal(cluster.dense_values(), after)
        value = cluster.dense[0].registry.get_sample_value
        assert value("embermesh_dense_duplicate_pushes_total") == 1
        with pytest.raises(Conflict, match="rank 0 is ahead: it pushes step 5, its next step is 2"):
            merge(client, request(cluster, 5))


def test_a_missing_trainer_is_named_and_leaving_for_it_lets_the_others_go_on() -> None:
    data = batches(0, 4)
    with merging(trainers=2, barrier_seconds=0.3) as cluster:
        client = kstep(cluster, 0, 2)
        client.configure("adam", ADAM, FRESH)
        with pytest.raises(DeadlineExceeded, match=r"ranks \[1\] did not push within 0.3 s"):
            client.push(data[0][1], step=1, samples=1, pause=False)
    with merging(trainers=2) as cluster, ThreadPoolExecutor(1) as pool:
        client = kstep(cluster, 0, 2)
        client.configure("adam", ADAM, FRESH)
        waiting = pool.submit(client.push, data[0][1], step=1, samples=1, pause=False)
        cluster.dense_client(1).leave(0)
        assert waiting.result(10).version == 1
        assert client.push(data[1][1], step=2, samples=1, pause=False).version == 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"change": ps_pb2.Halves(values=b"12")}, "change has 2 bytes, expected 74"),
        ({"roots": ps_pb2.Halves()}, "roots has 0 bytes, expected 74"),
        ({"pause": True}, "momentum has 0 bytes, expected 148"),
        ({"momentum": b"1234"}, "momentum has 4 bytes, expected 0"),
    ],
)
def test_malformed_merges_are_refused_and_lose_nothing(fields: dict[str, Any], says: str) -> None:
    with merging() as cluster:
        client = cluster.dense_client()
        client.configure("adam", ADAM, FRESH)
        with pytest.raises(InvalidInput, match=says):
            merge(client, request(cluster, 1, **fields))
        assert merge(client, request(cluster, 1)).version == 1


def test_each_mode_refuses_the_verb_of_the_other() -> None:
    with merging() as cluster:
        client = cluster.dense_client()
        client.configure("adam", ADAM, FRESH)
        with pytest.raises(Conflict, match=r"Push: this job's mode is kstep.*call Merge"):
            client.push(FRESH, step=1, samples=1, pause=False)
    for pace in (Pace.TOGETHER, Pace.ON_ARRIVAL):
        with PsCluster(pace=pace) as cluster:
            client = cluster.dense_client()
            client.configure("adam", ADAM, FRESH)
            with pytest.raises(Conflict, match=r"Merge: this job's mode is not kstep.*call Push"):
                merge(client, request(cluster, 1))


def test_an_optimizer_without_a_second_moment_is_refused() -> None:
    with merging() as cluster:
        client = kstep(cluster, 0, 8)
        with pytest.raises(Conflict, match=r"momentum has not.*must be one of adam, adamw"):
            client.configure("momentum", {"lr": 0.1}, FRESH)
        with pytest.raises(Conflict, match="call configure first"):
            client.push(FRESH, step=1, samples=1, pause=False)
