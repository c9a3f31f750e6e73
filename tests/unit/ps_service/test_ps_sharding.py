"""Partition -> shard maps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_service.client.dense import even_slices
from ps_service.server.assignment import Assignment, Pace
from ps_service.sharding import ShardMap
from services.api import spec
from services.kit.discovery import Run
from services.kit.errors import Conflict, InvalidInput
from services.wire import ps_pb2

SPEC = {
    "name": "job",
    "model": {"name": "deepfm"},
    "data": {"source": "synthetic://criteo"},
    "features": {"dense": "I1..I2", "sparse": {"C1": {"dim": 4}}},
    "training": {"mode": "sync"},
    "resources": {"sparse_ps": 3, "dense_ps": 2, "trainers": 5},
}


def a_run(**changes) -> Run:
    owners = ShardMap.even(16, 3).owners.tolist()
    parsed = spec.validate(SPEC).model_dump(mode="json")
    run = Run("job-1", 4, parsed, epoch=2, owners=owners, restore="file:///m.json")
    return dataclasses.replace(run, **changes)


@given(st.integers(0, 12), st.integers(1, 600))
def test_even_map_covers_all_partitions_and_is_balanced(log_partitions: int, shards: int) -> None:
    partitions = 1 << log_partitions
    shard_map = ShardMap.even(partitions, shards)
    owned = [shard_map.partitions_of(s) for s in range(shards)]
    assert sorted(p for part in owned for p in part) == list(range(partitions))
    sizes = [len(part) for part in owned]
    assert max(sizes) - min(sizes) <= 1
    assert shard_map.partitions == partitions
    assert shard_map.epoch == 1


@given(st.integers(0, 1000), st.integers(1, 64))
def test_even_slices_are_those_of_array_split(size: int, parts: int) -> None:
    values = np.arange(size)
    for place, expected in zip(
        even_slices(size, parts), np.array_split(values, parts), strict=True
    ):
        np.testing.assert_array_equal(values[place], expected)


@pytest.mark.parametrize("count", [0, 3, 100, 1 << 17])
def test_partitions_must_be_a_power_of_two(count: int) -> None:
    with pytest.raises(InvalidInput, match=f"owners has {count} entries.*power of two"):
        ShardMap.even(count, 2)


@pytest.mark.parametrize("owner", [-1, 2, 70_000])
def test_owner_that_is_no_shard_is_refused(owner: int) -> None:
    with pytest.raises(InvalidInput, match=f"owners names shard {owner}, there are 2 shards"):
        ShardMap.of(1, [0, owner], 2)


def test_wrong_number_of_shards_is_refused() -> None:
    with pytest.raises(InvalidInput, match="shards is 0"):
        ShardMap(1, np.zeros(4, dtype=np.uint16), 0)


def test_assignment_comes_from_the_run() -> None:
    sparse, dense = Assignment.of_sparse(a_run(), 1), Assignment.of_dense(a_run(), 1)
    assert (sparse.peers, dense.peers) == (3, 2)
    assert (sparse.rank, sparse.trainers, sparse.sync) == (1, 5, True)
    assert sparse.restore == "file:///m.json"
    assert sparse.shard_map.partitions_of(1) == [6, 7, 8, 9, 10]
    assert ShardMap.from_run(a_run()).shards == 3


@pytest.mark.parametrize(
    ("mode", "sync", "pace"),
    [
        ("sync", True, Pace.TOGETHER),
        ("hybrid", False, Pace.TOGETHER),
        ("async", False, Pace.ON_ARRIVAL),
        ("kstep", False, Pace.MERGED),
    ],
)
def test_each_mode_has_its_way_with_rows_and_dense_parameters(
    mode: str, sync: bool, pace: Pace
) -> None:
    run = a_run()
    run.spec["training"]["mode"] = mode
    for assignment in (Assignment.of_sparse(run, 1), Assignment.of_dense(run, 1)):
        assert (assignment.sync, assignment.pace) == (sync, pace)


def test_assignment_admits_its_generation_and_epoch_only() -> None:
    assignment = Assignment.of_sparse(a_run(), 0)
    assignment.admit(ps_pb2.Caller(generation=4, epoch=2))
    with pytest.raises(Conflict, match="generation 3 calls, this server is of 4"):
        assignment.admit(ps_pb2.Caller(generation=3, epoch=2))
    with pytest.raises(Conflict, match="epoch 1 calls, the shard map is at 2"):
        assignment.admit(ps_pb2.Caller(generation=4, epoch=1))


def test_rank_beyond_the_resources_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"rank 3 is not in 0\.\.2"):
        Assignment.of_sparse(a_run(), 3)


def test_run_with_a_spec_that_does_not_parse_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"resources.trainers"):
        Assignment.of_dense(a_run(spec={**SPEC, "resources": {"trainers": 0}}), 0)
