"""`embermesh export-rows`: what a person reads is what a shard would restore."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from embermesh import cli
from ps_service import _native
from ps_service.server.shard_file import ShardFile
from services.api import manifest as manifests
from services.kit.storage import Storage
from tests.fixtures.ps_batches import EXTREME_KEYS, TABLES, plan, random_batch
from tests.fixtures.ps_cluster import PsCluster


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> tuple[Path, _native.SparseShard]:
    """Folder of checkpoint 1 and its delta 2, of two shards; a shard with the rows of 2."""
    folder = tmp_path_factory.mktemp("export")
    with PsCluster(sparse=2) as cluster:
        sparse, dense = cluster.sparse_client(), cluster.dense_client()
        sparse.configure(TABLES, 3)
        dense.configure("sgd", {"lr": 0.1}, np.ones(3, np.float32))
        for number in (1, 2):
            keys = plan(cluster.shard_map, batch := random_batch(number, 8))
            sparse.pull(keys, step=number)
            sparse.push(keys, keys.scatter(batch.grads), step=number, read_step=number, samples=8)
            cluster.snapshot(folder / f"{number:06d}", number, 1 if number == 2 else None)
        whole = _native.SparseShard([t.native() for t in TABLES], partitions=64, seed=0)
        for block in cluster.rows():
            whole.load_partition(block)
    return folder, whole


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exit_:
        cli.main([str(a) for a in arguments])
    return int(exit_.value.code or 0)


@pytest.mark.parametrize("number", range(len(TABLES)))
def test_all_rows_of_a_table_with_state(checkpoints, tmp_path: Path, number: int) -> None:
    folder, whole = checkpoints
    name, target = TABLES[number].name, tmp_path / "rows.parquet"
    assert run("export-rows", folder / "000002", target, "--table", name, "--state") == 0
    keys, weights, state = whole.export_rows(number)
    found = pq.read_table(target).sort_by("key")
    np.testing.assert_array_equal(found["key"].to_numpy(), keys)
    for column, expected in (("weights", weights), ("state", state)):
        rows = np.array(found[column].to_pylist(), np.float32).reshape(len(keys), -1)
        np.testing.assert_array_equal(rows, expected)
    if number == 0:
        assert {0, 2**64 - 1} <= set(EXTREME_KEYS) & set(keys.tolist())
    assert [p.name for p in tmp_path.iterdir()] == ["rows.parquet"]


def test_a_manifest_uri_and_json(checkpoints, tmp_path: Path, capsys) -> None:
    folder, _ = checkpoints
    target = tmp_path / "rows.parquet"
    uri = f"file://{folder}/000001/manifest.json"
    assert run("export-rows", uri, target, "--table", TABLES[1].name, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    table = pq.read_table(target)
    assert table.column_names == ["key", "weights"]
    assert (told["rows"], told["dim"]) == (table.num_rows, TABLES[1].dim)


def test_an_unknown_table_and_a_missing_checkpoint_are_named(
    checkpoints, tmp_path: Path, capsys
) -> None:
    folder, _ = checkpoints
    target = tmp_path / "rows.parquet"
    assert run("export-rows", folder / "000002", target, "--table", "C9") == 2
    assert "has no table 'C9', only users, items, hours" in capsys.readouterr().err
    assert run("export-rows", folder / "000009", target, "--table", "users") == 2
    assert "000009/manifest.json does not exist" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_damage_is_named_and_leaves_no_file(checkpoints, tmp_path: Path, capsys) -> None:
    shutil.copytree(checkpoints[0], tmp_path / "c")
    victim = tmp_path / "c" / "000002" / "sparse-001.emb"
    entry = manifests.read(Storage(), f"file://{victim.parent}/manifest.json").sparse[1]
    assert ShardFile(Storage(), f"file://{victim}", entry).ids
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    target = tmp_path / "rows.parquet"
    assert run("export-rows", victim.parent, target, "--table", "users") == 1
    assert "sparse-001.emb is damaged" in capsys.readouterr().err.replace("\n", "")
    assert not target.exists()
