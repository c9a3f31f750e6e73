"""Metrics of the two parameter servers. Latency of their verbs is `embermesh_rpc_seconds` of the
kit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import prometheus_client

from ps_service import _native
from services.kit.telemetry import LATENCY_BUCKETS

_STALENESS_BUCKETS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)  # steps
_BARRIER_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 120)
_SWEEP_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1)
_SNAPSHOT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class SparseMetrics:
    """What a sparse-PS shard measures."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self.rows = prometheus_client.Gauge(
            "embermesh_sparse_rows", "Rows held by this shard.", ["table"], registry=registry
        )
        self.bytes = prometheus_client.Gauge(
            "embermesh_sparse_bytes", "Memory of rows and their index.", registry=registry
        )
        self.restored_rows = prometheus_client.Gauge(
            "embermesh_sparse_restored_rows",
            "Rows this shard loaded from the checkpoint it started from.",
            registry=registry,
        )
        self.pulled_keys = prometheus_client.Counter(
            "embermesh_sparse_pulled_keys_total",
            "Keys read, by purpose: train or read_only (evaluation, serving).",
            ["purpose"],
            registry=registry,
        )
        self.pushed_keys = prometheus_client.Counter(
            "embermesh_sparse_pushed_keys_total", "Keys updated by gradients.", registry=registry
        )
        self.missing_keys = prometheus_client.Counter(
            "embermesh_sparse_missing_keys_total",
            "Keys whose gradient found no row and was skipped.",
            registry=registry,
        )
        self.duplicate_pushes = prometheus_client.Counter(
            "embermesh_sparse_duplicate_pushes_total",
            "Repeated pushes that were acknowledged, not applied.",
            registry=registry,
        )
        self.ranges = prometheus_client.Counter(
            "embermesh_sparse_ranges_total",
            "Ranges of source rows pushed, by outcome: applied, duplicate (had been applied "
            "before), fenced (from a trainer that had been replaced).",
            ["outcome"],
            registry=registry,
        )
        self.staleness = prometheus_client.Histogram(
            "embermesh_sparse_staleness_steps",
            "Steps between the read of rows and the write of their gradient.",
            buckets=_STALENESS_BUCKETS,
            registry=registry,
        )
        self.barrier = prometheus_client.Histogram(
            "embermesh_sparse_barrier_seconds",
            "Mode sync: time a push waited for the other trainers, its application included.",
            buckets=_BARRIER_BUCKETS,
            registry=registry,
        )
        self.snapshot = prometheus_client.Histogram(
            "embermesh_sparse_snapshot_seconds",
            "Time to collect and write a shard file.",
            buckets=_SNAPSHOT_BUCKETS,
            registry=registry,
        )
        self.standby = StandbyMetrics(registry)
        self.rounding = RoundingMetrics(registry)
        self.lifecycle = LifecycleMetrics(registry)

    def expose(self, shard: _native.SparseShard, tables: Sequence[str]) -> None:
        """Shows the shard's size from now on; `tables` are the names of its tables."""
        for table_id, table in enumerate(tables):
            self.rows.labels(table).set_function(partial(_table_rows, shard, table_id))
        self.bytes.set_function(lambda: float(shard.bytes()))


def _table_rows(shard: _native.SparseShard, table: int) -> float:
    return float(shard.rows()[table])


class StandbyMetrics:
    """Memory of a shard that has no rows yet."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._bytes = prometheus_client.Gauge(
            "embermesh_sparse_standby_bytes",
            "Memory that stands by for new rows, beside embermesh_sparse_bytes.",
            registry=registry,
        )
        self._cold_chunks = prometheus_client.Gauge(
            "embermesh_sparse_cold_chunks",
            "Chunks of 2 MB, since the start, that were needed when none stood by: new rows waited "
            "for the system to find and clear them.",
            registry=registry,
        )

    def expose(self, standby: _native.StandbyMemory) -> None:
        """Shows what stands by from now on."""
        self._bytes.set_function(lambda: float(standby.bytes()))
        self._cold_chunks.set_function(lambda: float(standby.cold()))


class RoundingMetrics:
    """What 16 bits on the wire take from values."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._rounded_values = prometheus_client.Counter(
            "embermesh_sparse_rounded_values_total",
            "Finite values that a 16-bit wire changed beyond rounding, by verb and effect: clipped "
            "to the largest number, or flushed to zero.",
            ["verb", "effect"],
            registry=registry,
        )

    def count(self, verb: str, clipped: int, flushed: int) -> None:
        """Notes the values of one call."""
        self._rounded_values.labels(verb, "clipped").inc(clipped)
        self._rounded_values.labels(verb, "flushed").inc(flushed)


class LifecycleMetrics:
    """How rows come and go in a sparse-PS shard."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self.trained_keys = prometheus_client.Counter(
            "embermesh_sparse_trained_keys_total",
            "Keys of training pulls.",
            ["table"],
            registry=registry,
        )
        self.admitted_rows = prometheus_client.Counter(
            "embermesh_sparse_admitted_rows_total",
            "Rows made by training pulls.",
            ["table"],
            registry=registry,
        )
        self.rejected_keys = prometheus_client.Counter(
            "embermesh_sparse_rejected_keys_total",
            "Keys of training pulls that had no row and were not admitted.",
            ["table"],
            registry=registry,
        )
        self.dropped_gradients = prometheus_client.Counter(
            "embermesh_sparse_dropped_gradients_total",
            "Gradients of keys without a row: not admitted, or evicted since the pull.",
            ["table"],
            registry=registry,
        )
        self.evicted_rows = prometheus_client.Counter(
            "embermesh_sparse_evicted_rows_total",
            "Rows removed, by rule: ttl, lru, lfu, norm or score.",
            ["table", "reason"],
            registry=registry,
        )
        self._gauges(registry)

    def _gauges(self, registry: prometheus_client.CollectorRegistry) -> None:
        self.hit_ratio = prometheus_client.Gauge(
            "embermesh_sparse_hit_ratio",
            "Share of the keys of training pulls that had a row, since the start.",
            ["table"],
            registry=registry,
        )
        self.hot_key_share = prometheus_client.Gauge(
            "embermesh_sparse_hot_key_share",
            "Share of recent training pulls that the hottest keys have, by place from 1.",
            ["table", "place"],
            registry=registry,
        )
        self.partition_peak = prometheus_client.Gauge(
            "embermesh_sparse_partition_peak_to_mean",
            "Keys that recent requests named in the busiest partition of this shard, over the mean "
            "of its partitions; 1 is even.",
            registry=registry,
        )
        self.partition_top_share = prometheus_client.Gauge(
            "embermesh_sparse_partition_top_share",
            "Share of this shard's recent keys that the busiest partition has.",
            registry=registry,
        )
        self.gate_bytes = prometheus_client.Gauge(
            "embermesh_sparse_admission_bytes",
            "Memory of the filters that count keys without a row.",
            ["table"],
            registry=registry,
        )
        self.load = prometheus_client.Gauge(
            "embermesh_sparse_index_load", "Share of the index's slots in use.", registry=registry
        )
        self.probes = prometheus_client.Gauge(
            "embermesh_sparse_probe_rows",
            "Rows by the cache lines of index that finding them reads, the last place for more; "
            "of a sample of the partitions.",
            ["lines"],
            registry=registry,
        )
        self.sweep_seconds = prometheus_client.Histogram(
            "embermesh_sparse_sweep_seconds",
            "Time to look for rows to evict in one partition, in slices.",
            buckets=_SWEEP_BUCKETS,
            registry=registry,
        )


class DenseMetrics:
    """What a dense-PS block measures."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self.parameters = prometheus_client.Gauge(
            "embermesh_dense_parameters", "Parameters of this block.", registry=registry
        )
        self.version = prometheus_client.Gauge(
            "embermesh_dense_version", "Steps applied to this block.", registry=registry
        )
        self.trainers = prometheus_client.Gauge(
            "embermesh_dense_trainers", "Trainers still taking steps.", registry=registry
        )
        self.duplicate_pushes = prometheus_client.Counter(
            "embermesh_dense_duplicate_pushes_total",
            "Repeated pushes that were answered, not applied.",
            registry=registry,
        )
        self.merges = prometheus_client.Counter(
            "embermesh_dense_merges_total",
            "Mode kstep: merges of the trainers' local steps.",
            registry=registry,
        )
        self.drift = prometheus_client.Gauge(
            "embermesh_dense_merge_drift",
            "Mode kstep: RMS distance of the trainers' changes from their mean at the last merge, "
            "over the RMS of that mean; grows with training.k.",
            registry=registry,
        )
        self.staleness = prometheus_client.Histogram(
            "embermesh_dense_staleness_steps",
            "Mode async: steps applied to the block between a trainer's read of the values and the "
            "write of its gradient.",
            buckets=_STALENESS_BUCKETS,
            registry=registry,
        )
        self.ranges = prometheus_client.Counter(
            "embermesh_dense_ranges_total",
            "Ranges of source rows pushed, by outcome: applied, duplicate (had been applied "
            "before), fenced (from a trainer that had been replaced).",
            ["outcome"],
            registry=registry,
        )
        self.apply = prometheus_client.Histogram(
            "embermesh_dense_apply_seconds",
            "Time to average the gradients of a step and apply the optimizer, or to merge.",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.barrier = prometheus_client.Histogram(
            "embermesh_dense_barrier_seconds",
            "Time a push waited for the other trainers, its application included.",
            buckets=_BARRIER_BUCKETS,
            registry=registry,
        )
        self.snapshot = prometheus_client.Histogram(
            "embermesh_dense_snapshot_seconds",
            "Time to collect and write a block file.",
            buckets=_SNAPSHOT_BUCKETS,
            registry=registry,
        )
