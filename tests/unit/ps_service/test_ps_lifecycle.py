"""The server's lifecycle: event clock, who is evicted when, and what is published."""

from __future__ import annotations

import time

import numpy as np
import prometheus_client
import pytest

from ps_service import _native
from ps_service.server.lifecycle import SWEEP_STEPS, Lifecycle
from ps_service.server.metrics import LifecycleMetrics
from ps_service.tables import RowPolicy, table_spec
from services.api.lifecycle import Eviction
from services.api.optimizers import OptimizerSpec
from services.kit.errors import InvalidInput

NOW = 1_800_000_000
PARTITIONS = 128
KEYS = np.arange(2000, dtype=np.uint64)
COUNTS = np.array([2000], np.uint32)


class Fixture:
    """A shard whose rows are kept for ten seconds of event time."""

    def __init__(self, *, sync: bool, ttl: bool = True) -> None:
        rules = Eviction.model_validate({"ttl": 10}) if ttl else None
        table = table_spec("C1", 2, OptimizerSpec(name="sgd"), None, rows=RowPolicy.of(None, rules))
        self.shard = _native.SparseShard([table.native()], partitions=PARTITIONS, seed=1)
        self.registry = prometheus_client.CollectorRegistry()
        self.lifecycle = Lifecycle(
            self.shard,
            [table],
            range(PARTITIONS),
            LifecycleMetrics(self.registry),
            sync=sync,
            now=lambda: float(NOW),
            sweep_seconds=0.05,
        )

    def train(self, event_time: int) -> None:
        self.lifecycle.observe(event_time)
        self.shard.pull(COUNTS, KEYS, insert=True, event_time=event_time)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"embermesh_sparse_{name}", labels)

    def rows(self) -> int:
        return int(self.shard.rows()[0])


def test_a_thread_evicts_in_mode_hybrid() -> None:
    fixture = Fixture(sync=False)
    fixture.train(NOW)
    fixture.lifecycle.observe(NOW + 11)
    fixture.lifecycle.start()
    deadline = time.monotonic() + 20
    while fixture.rows() and time.monotonic() < deadline:
        time.sleep(0.01)
    fixture.lifecycle.close()
    assert fixture.rows() == 0
    assert (fixture.value("sweep_seconds_count") or 0) >= PARTITIONS


def test_steps_evict_in_mode_sync_and_no_thread_does() -> None:
    fixture = Fixture(sync=True)
    fixture.train(NOW)
    fixture.lifecycle.observe(NOW + 11)
    fixture.lifecycle.start()
    time.sleep(0.2)
    assert fixture.rows() == 2000
    left = []
    for step in range(1, SWEEP_STEPS + 1):
        fixture.lifecycle.stepped(step)
        left.append(fixture.rows())
    fixture.lifecycle.close()
    assert left == sorted(left, reverse=True)
    assert 0 < left[SWEEP_STEPS // 2] < 2000
    assert left[-1] == 0


def test_nothing_is_evicted_before_the_first_event_and_while_held() -> None:
    fixture = Fixture(sync=True)
    fixture.train(0)
    fixture.lifecycle.stepped(1)
    assert fixture.value("sweep_seconds_count") == 0
    fixture.train(NOW)
    with fixture.lifecycle.held():
        pass
    fixture.lifecycle.stepped(1)
    assert fixture.value("sweep_seconds_count") == PARTITIONS // SWEEP_STEPS


def test_the_event_clock_never_goes_back_nor_far_ahead() -> None:
    lifecycle = Fixture(sync=True).lifecycle
    for seconds, expected in [(NOW, NOW), (NOW - 5, NOW), (0, NOW), (NOW + 86_400, NOW + 86_400)]:
        lifecycle.observe(seconds)
        assert lifecycle.event_time == expected
    with pytest.raises(InvalidInput, match=f"event_time is {NOW + 86_401}, must be <= "):
        lifecycle.observe(NOW + 86_401)


def test_metrics_tell_what_happened_to_the_rows() -> None:
    fixture = Fixture(sync=True)
    for _ in range(40):
        fixture.train(NOW)
    fixture.lifecycle.publish()
    assert fixture.value("trained_keys_total", table="C1") == 80_000
    assert fixture.value("admitted_rows_total", table="C1") == 2000
    assert fixture.value("rejected_keys_total", table="C1") == 0
    assert fixture.value("hit_ratio", table="C1") == 1 - 2000 / 80_000
    assert 0 < (fixture.value("index_load") or 0) <= 1
    assert (fixture.value("probe_rows", lines="1") or 0) > 0
    assert 0 < (fixture.value("hot_key_share", table="C1", place="1") or 0) < 1
    fixture.lifecycle.observe(NOW + 11)
    for step in range(SWEEP_STEPS):
        fixture.lifecycle.stepped(step)
    fixture.shard.push(COUNTS, KEYS, np.zeros(4000, np.float32))
    for _ in range(2):  # a second look counts nothing twice
        fixture.lifecycle.publish()
    assert fixture.value("evicted_rows_total", table="C1", reason="ttl") == 2000
    assert fixture.value("dropped_gradients_total", table="C1") == 2000
    stats = fixture.lifecycle.stats()[0]
    assert (stats.rows, stats.pulled, dict(stats.evicted)["ttl"]) == (0, 80_000, 2000)


def test_metrics_tell_how_evenly_recent_requests_went_to_the_partitions() -> None:
    fixture = Fixture(sync=True)
    fixture.lifecycle.publish()
    assert fixture.value("partition_top_share") == 0, "nothing was asked yet"
    fixture.train(NOW)
    named = fixture.shard.partition_keys()
    assert (named.shape, named.sum()) == ((PARTITIONS,), 2000)
    fixture.lifecycle.publish()
    even = fixture.value("partition_peak_to_mean") or 0
    assert even == pytest.approx(named.max() * PARTITIONS / 2000)
    hot = np.full(2000, 7, np.uint64)
    fixture.shard.push(COUNTS, hot, np.zeros(4000, np.float32))
    grown = fixture.shard.partition_keys() - named
    assert sorted(grown.tolist())[-2:] == [0, 2000], "as often as it is named"
    fixture.lifecycle.publish()
    assert fixture.value("partition_peak_to_mean") == pytest.approx(PARTITIONS)
    assert fixture.value("partition_top_share") == 1.0
    fixture.lifecycle.publish()  # a time without requests changes nothing
    assert fixture.value("partition_top_share") == 1.0
