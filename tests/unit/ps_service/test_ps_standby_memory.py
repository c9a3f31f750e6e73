"""Memory that stands by for a shard's new rows: how much it is, and that shards use it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import prometheus_client
import pytest

from embermesh.processes import wait_until
from ps_service import _native
from ps_service.embedded import EmbeddedShard
from ps_service.server.assignment import Assignment, standby_of_shard
from ps_service.sharding import ShardMap
from services.api import spec
from services.kit import usage
from services.kit.discovery import Run
from services.kit.errors import InvalidInput
from tests.fixtures.ps_batches import TABLES

MB = 1 << 20
CHUNK = 2 * MB
BYTES = "embermesh_sparse_standby_bytes"


def run() -> Run:
    document = {
        "name": "standby",
        "model": {"name": "lr"},
        "data": {"source": "synthetic://criteo"},
        "features": {"sparse": {"C1": {}}},
    }
    checked = spec.validate(document).model_dump(mode="json")
    owners = ShardMap.even(64, 1).owners.tolist()
    return Run("standby-1", 1, checked, epoch=1, owners=owners)


def soon(true: Callable[[], bool]) -> bool:
    return wait_until(true, 20.0, every=0.002)


@pytest.mark.parametrize(
    ("megabytes", "memory", "expected"),
    [
        (256, 16 << 30, 256 * MB),
        (256, 2 << 30, 256 * MB),
        (256, 1 << 30, 128 * MB),
        (65_536, 64 << 30, 8 << 30),
        (0, 1 << 30, 0),
    ],
)
def test_it_is_what_was_asked_for_but_no_more_than_an_eighth_of_the_memory(
    megabytes: int, memory: int, expected: int
) -> None:
    assert standby_of_shard(megabytes, memory) == expected


def test_a_limit_of_the_container_counts_as_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{800 * MB}\n")
    assert standby_of_shard(256, usage.memory_limit(tmp_path)) == 100 * MB


@pytest.mark.parametrize("megabytes", [-1, 65_537])
def test_an_amount_out_of_bounds_is_refused_by_name(megabytes: int) -> None:
    with pytest.raises(InvalidInput, match=f"standby_mb is {megabytes}, must be 0 to 65536"):
        Assignment.of_sparse(run(), 0, standby_mb=megabytes)


def test_it_fills_to_the_amount_in_whole_chunks() -> None:
    memory = _native.StandbyMemory(3 * MB)
    assert soon(lambda: memory.bytes() == 2 * CHUNK)
    assert memory.cold() == 0


def test_a_shard_takes_its_rows_from_it_and_without_it_from_the_system() -> None:
    memory = _native.StandbyMemory(8 * CHUNK)
    assert soon(lambda: memory.bytes() == 8 * CHUNK)
    native = [table.native() for table in TABLES]
    counts, keys = np.array([50, 50, 50], np.uint32), np.arange(150, dtype=np.uint64)
    rows = [
        bytes(shard.pull(counts, keys, insert=True))
        for shard in (
            _native.SparseShard(native, partitions=4, seed=1, standby=memory),
            _native.SparseShard(native, partitions=4, seed=1),
        )
    ]
    assert rows[0] == rows[1]
    assert memory.bytes() < 8 * CHUNK
    assert memory.cold() == 0


def test_it_lives_as_long_as_a_shard_that_took_from_it() -> None:
    memory = _native.StandbyMemory(CHUNK)
    native = [table.native() for table in TABLES]
    shard = _native.SparseShard(native, partitions=4, seed=1, standby=memory)
    del memory
    counts, keys = np.array([50, 50, 50], np.uint32), np.arange(150, dtype=np.uint64)
    rows = bytes(shard.pull(counts, keys, insert=True))
    assert bytes(shard.pull(counts, keys, insert=False)) == rows


def test_an_embedded_shard_has_it_before_it_has_tables() -> None:
    registry = prometheus_client.CollectorRegistry()
    shard = EmbeddedShard(run(), 0, registry, standby_mb=4)
    assert soon(lambda: registry.get_sample_value(BYTES) == 4 * MB)
    assert registry.get_sample_value("embermesh_sparse_cold_chunks") == 0
    shard.close()
