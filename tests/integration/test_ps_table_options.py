"""Schedules, clipping, decay and 16-bit weights through the whole parameter server: the same bits
for any number of shards, and across a restore.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ps_service import _native
from ps_service.tables import TableSpec, UpdateOptions, dense_optimizer, table_spec
from services.api.optimizers import OptimizerSpec
from services.kit.errors import InvalidInput
from tests.fixtures.ps_batches import NORMAL, plan, random_batch
from tests.fixtures.ps_cluster import PsCluster

SCHEDULE = {"exponential": {"steps": 2, "rate": 0.5, "warmup": 3}}
USERS = {"adagrad": {"lr": 0.1}, "schedule": SCHEDULE, "clip": {"norm": 0.5, "value": 1}}
ITEMS = {"adam": {"lr": 0.1}, "schedule": {"cosine": {"steps": 9}}, "weight_decay": 0.1}
HOURS = {"group_ftrl": {"lr": 0.1}, "schedule": {"piecewise": {4: 0.5, 6: 0}}}
TABLES = [
    table_spec("users", 4, OptimizerSpec.model_validate(USERS), NORMAL, "fp16"),
    table_spec("items", 2, OptimizerSpec.model_validate(ITEMS), None, "bf16"),
    table_spec("hours", 1, OptimizerSpec.model_validate(HOURS), NORMAL),
]
DENSE = OptimizerSpec.model_validate(
    {"momentum": {"lr": 0.1}, "schedule": SCHEDULE, "clip": {"value": 0.5}, "weight_decay": 0.1}
)
FRESH = np.linspace(-1, 1, 11).astype(np.float32)


def train(cluster: PsCluster, seeds: range) -> tuple[list[bytes], bytes]:
    """Steps of one trainer; the rows and dense values after them."""
    sparse, dense = cluster.sparse_client(), cluster.dense_client()
    sparse.configure(TABLES, 3)
    optimizer, params, options = dense_optimizer(DENSE)
    dense.configure(optimizer, params, FRESH, options)
    for step, seed in enumerate(seeds, start=1):
        batch = random_batch(seed, 8)
        keys = plan(cluster.shard_map, batch)
        sparse.pull(keys, step=step)
        sparse.push(keys, keys.scatter(batch.grads), step=step, read_step=step, samples=8)
        dense.push(batch.dense, step=step, samples=8, pause=False)
    return cluster.rows(), cluster.dense_values().tobytes()


@pytest.mark.parametrize("sync", [False, True])
def test_the_same_bits_for_any_number_of_shards_and_blocks(sync: bool) -> None:
    outcomes = []
    for sparse, dense in ((1, 1), (3, 2)):
        with PsCluster(sparse=sparse, dense=dense, sync=sync) as cluster:
            outcomes.append(train(cluster, range(8)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("sync", [False, True])
def test_schedules_and_rounding_go_on_where_a_checkpoint_left_them(
    tmp_path: Path, sync: bool
) -> None:
    """Twice restored, and the steps of each generation begin at 1."""
    with PsCluster(sync=sync) as undisturbed:
        expected = train(undisturbed, range(9))
    with PsCluster(sparse=2, dense=3, sync=sync) as cluster:
        train(cluster, range(3))
        uri = cluster.snapshot(tmp_path / "000001")
    with PsCluster(sparse=3, dense=1, sync=sync, restore=uri, generation=2) as cluster:
        train(cluster, range(3, 5))
        uri = cluster.snapshot(tmp_path / "000002")
    with PsCluster(sparse=1, dense=2, sync=sync, restore=uri, generation=3) as cluster:
        assert train(cluster, range(5, 9)) == expected


def test_rows_of_another_weight_type_are_refused_by_name(tmp_path: Path) -> None:
    with PsCluster() as cluster:
        train(cluster, range(2))
        uri = cluster.snapshot(tmp_path / "000001")
    users = OptimizerSpec.model_validate(USERS)
    changed = [table_spec("users", 4, users, NORMAL, "bf16"), *TABLES[1:]]
    with (
        PsCluster(restore=uri, generation=2) as cluster,
        pytest.raises(InvalidInput, match="'users' has weights 'fp16', the job wants 'bf16'"),
    ):
        cluster.sparse_client().configure(changed, 3)


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_options_travel_over_the_wire_and_into_the_core(table: TableSpec) -> None:
    assert TableSpec.from_proto(table.to_proto()) == table
    native = table.native()
    assert native.weights == table.weights
    assert native.options.schedule == table.options.schedule
    assert native.options.schedule_params == table.options.schedule_params
    assert native.options.clip_norm == table.options.clip_norm
    assert native.options.weight_decay == table.options.weight_decay


def test_options_are_filled_in_from_the_spec() -> None:
    assert TABLES[0].options == UpdateOptions(
        schedule="exponential",
        schedule_params={**_native.SCHEDULES["exponential"], **SCHEDULE["exponential"]},
        clip_value=1.0,
        clip_norm=0.5,
    )
    assert TABLES[2].options.schedule_params == {"warmup": 0.0, "4": 0.5, "6": 0.0}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"sgd": {}, "schedule": "linear"}, "'C1': unknown schedule 'linear'; known: constant, c"),
        ({"sgd": {}, "schedule": {"cosine": {"rate": 1}}}, "'cosine' has no parameter 'rate'; kn"),
        ({"sgd": {}, "schedule": {"piecewise": {"1.5": 1}}}, "'piecewise' has no parameter '1.5'"),
        ({"sgd": {}, "schedule": "piecewise"}, "'C1'.*needs a step with its factor"),
        ({"ftrl": {}, "weight_decay": 0.1}, "'C1'.*'ftrl' takes no weight_decay"),
    ],
)
def test_bad_options_are_refused_by_name(spec: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        table_spec("C1", 4, OptimizerSpec.model_validate(spec), None)


def test_dense_parameters_refuse_what_needs_a_row() -> None:
    with pytest.raises(InvalidInput, match="dense: clip_norm: the dense parameters lie in blocks"):
        dense_optimizer(OptimizerSpec.model_validate({"sgd": {}, "clip": {"norm": 1}}))
    with pytest.raises(InvalidInput, match="dense: optimizer 'group_ftrl' treats a row as one"):
        dense_optimizer(OptimizerSpec(name="group_ftrl"))
