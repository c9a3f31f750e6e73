"""What a job will take, from its spec alone: rows x bytes of every table, memory of every shard,
bytes of a step. Pure.

How many rows a table will hold can't be known before its data is seen. It is bounded where the spec
bounds it (an lru or lfu eviction, bucketize); elsewhere the caller's assumption is used, and the
answer says so. What a shard's process takes beside its rows is not counted: Python, requests, and
the memory that stands by for new rows (`standby_mb` of services.kit.member.MemberConfig).
"""

from __future__ import annotations

import math

from gateway.compile import PARTITIONS
from ps_service import tables
from ps_service.sharding import ShardMap
from services.api.access import Usage
from services.api.features import SparseFeature
from services.api.spec import JobSpec
from services.api.views import JobSize, StepSize, TableSize

ASSUMED_ROWS = 1_000_000
# Beside weights and state a row takes its part of the index and of slabs that are not full: 28 to
# 48 bytes at a million rows. Below that a partition's first slab is what counts.
ROW_OVERHEAD_BYTES = 40
PARTITION_BYTES = 1 << 14
_KEY_BYTES, _FLOAT_BYTES = 8, 4


def size(spec: JobSpec, assumed_rows: int = ASSUMED_ROWS) -> JobSize:
    """The job's size; tables without a bound get `assumed_rows`. Raises InvalidInput like
    `tables.table_spec`.
    """
    sized = [_table(spec, name, feature, assumed_rows) for name, feature in _tables(spec)]
    memory = max(PARTITIONS * PARTITION_BYTES, sum(table.bytes for table in sized))
    owned = ShardMap.even(PARTITIONS, spec.resources.sparse_ps).owners.tolist()
    share = max(owned.count(shard) for shard in set(owned)) / PARTITIONS
    return JobSize(
        tables=sized,
        rows=sum(table.rows for table in sized),
        memory_bytes=memory,
        shards=spec.resources.sparse_ps,
        shard_memory_bytes=math.ceil(memory * share),
        trainers=spec.resources.trainers,
        step=_step(spec),
    )


def usage(specs: list[JobSpec]) -> Usage:
    """What these jobs take together."""
    sizes = [size(spec) for spec in specs]
    return Usage(
        jobs=len(sizes),
        trainers=sum(s.trainers for s in sizes),
        memory_bytes=sum(s.memory_bytes for s in sizes),
    )


def _tables(spec: JobSpec) -> list[tuple[str, SparseFeature]]:
    return list(spec.features.tables().items())


def _table(spec: JobSpec, name: str, feature: SparseFeature, assumed: int) -> TableSize:
    optimizer = feature.optimizer or spec.optimizers.sparse
    table = tables.table_spec(name, feature.dim, optimizer, feature.initializer, feature.weights)
    rows, source = _rows(spec, name, assumed)
    each = table.native().row_bytes + ROW_OVERHEAD_BYTES
    return TableSize(
        name=name,
        dim=feature.dim,
        rows=rows,
        rows_from=source,
        row_bytes=each,
        bytes=rows * each + _filter_bytes(feature),
    )


def _rows(spec: JobSpec, name: str, assumed: int) -> tuple[int, str]:
    readers = [f for n, f in spec.features.sparse.items() if (f.table or n) == name]
    limit = readers[0].eviction
    bounded = [rule.rows for rule in (limit.lru, limit.lfu) if rule] if limit else []
    if bounded:
        return min(bounded), "eviction"
    if all(feature.bucketize is not None for feature in readers):
        # Boundaries part the values into one more; an empty value has a row of its own.
        longest = max(len(feature.bucketize or ()) for feature in readers)
        return longest + 2, "bucketize"
    return assumed, "assumed"


def _filter_bytes(feature: SparseFeature) -> int:
    """A count admission's Bloom filter: -ln(error) / ln(2)^2 counters of 4 bits for each key."""
    count = feature.admission.count if feature.admission else None
    if count is None:
        return 0
    return math.ceil(count.keys * -math.log(count.error) / math.log(2) ** 2 / 2)


def _step(spec: JobSpec) -> StepSize:
    """All values of a batch taken as distinct, one for each feature: what the wire carries at most
    unless a feature has several values.
    """
    batch, features = spec.training.batch_size, spec.features.sparse.values()
    keys = batch * len(features)
    floats = batch * sum(feature.dim for feature in features)
    pulled = keys * _KEY_BYTES + floats * _FLOAT_BYTES
    return StepSize(keys=keys, pull_bytes=pulled, push_bytes=pulled)
